"""What the README says is so."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from typer.main import get_command

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.checkpoint.storage import METHODS
from trtkit.cli import app
from trtkit.contract import Contract
from trtkit.plan import Machine, make_plan
from trtkit.proxy.admission import Admission, Reason
from trtkit.proxy.metrics import Metrics

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = {
    str(path.relative_to(ROOT)): path.read_text() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
}


def section(title: str) -> str:
    return README.split(f"# {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGES[page])
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_anchors_are_headings(page):
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", PAGES[page]):
        target = (ROOT / page).parent / link if link else ROOT / page
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES)
def test_options_of_verbs_exist(page):
    commands = get_command(app).commands
    for verb, rest in re.findall(r"\btrtkit (\w+)([^`\n|#&]*)", PAGES[page]):
        if verb in commands:
            both = (commands[verb], *getattr(commands[verb], "commands", {}).values())
            known = {option for command in both for each in command.params for option in each.opts}
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)) <= known, verb


def test_every_architecture_and_storage_is_listed():
    page = PAGES["docs/conversion.md"]
    assert set(re.findall(r"`(\w+(?:CausalLM|LMHeadModel))`", page)) == set(ARCHITECTURES)
    assert {name for name in METHODS if f"`{name}`" not in page} == set()


def test_every_verb_is_listed_and_every_listed_verb_exists():
    listed = set(re.findall(r"^\| `trtkit (\w+)", README, re.MULTILINE))
    assert listed == set(get_command(app).commands)


def test_make_targets_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|\$ )make ([\w-]+)", "\n".join(PAGES.values()))
    assert named
    assert set(named) <= targets


def test_the_contract_in_it_is_one(smollm2):
    contract = Contract.model_validate(yaml.safe_load(re.search(r"```yaml\n(.*?)```", README, re.DOTALL)[1]))
    make_plan(contract, smollm2, Machine(cores=2, memory_bytes=8 * 10**9))


def test_every_reason_is_listed_with_its_code():
    rows = re.findall(r"^\| (`\w+`.*?) \| (.*?) \|", section("What the proxy does"), re.MULTILINE)
    listed = {reason: code for reasons, code in rows for reason in re.findall(r"`(\w+)`", reasons)}
    internal = {"ok", "internal"}
    missing = {reason.value for reason in Reason} - listed.keys() - internal
    assert missing == set()
    for reason in Reason:
        if reason.value not in internal:
            assert reason.code in listed[reason.value]


def test_every_metric_is_listed(smollm2):
    contract = Contract(name="x", model={"source": "x"}, classes={"a": {"priority": 1, "ttft_ms": 5}})
    plan = make_plan(contract, smollm2, Machine(cores=2, memory_bytes=8 * 10**9))
    registry = CollectorRegistry()
    metrics = Metrics(contract.classes, registry)
    metrics.watch(Admission(contract.admission, plan.zones, plan.limits.tokens_per_block))
    exported = set(
        re.findall(r"^# TYPE trtkit_proxy_(\w+?) ", generate_latest(registry).decode(), re.MULTILINE)
    )
    exported = {name for name in exported if not name.endswith("_created")}
    listed = set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section("Metrics"), re.MULTILINE)))
    )
    assert exported == listed - {"ttft", "tpot", "deadline", "all", "missing", "absurd", "zero", "frozen"}
