"""What the images and the compose file name is there: paths, extras, commands, options, ports, tags."""

import fnmatch
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
import yaml

from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.cli import app
from trtkit.contract import load_contract
from trtkit.errors import InputError
from trtkit.flow.compose import compose_files
from trtkit.triton.folder import check
from trtkit.triton.launch import SCRIPT, Ports

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
DOCKERFILES = sorted(FOLDER.glob("*.Dockerfile"))
CONTRACT = ROOT / "build_configs/llama-3.1-8b__fp8-kv_fp8__h100-sxm-tp1.yaml"
PROJECT = (ROOT / "pyproject.toml").read_text()
COMMAND = typer.main.get_command(app)


def instructions(path):
    """Return (word, rest) of a Dockerfile, continued lines joined."""
    text = re.sub(r"\\\n", " ", "\n".join(line for line in path.read_text().splitlines() if line[:1] != "#"))
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line.strip()]


def option(verb, name):
    return next(each for each in COMMAND.commands[verb].params if name in each.opts)


def test_there_are_two_images():
    assert [path.name for path in DOCKERFILES] == ["builder.Dockerfile", "proxy.Dockerfile"]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path):
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    done = subprocess.run([program, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_without_privileges_and_say_what_they_are(path):
    found = instructions(path)
    users = [rest for word, rest in found if word == "USER"]
    assert users
    assert all(user.split(":")[0] not in {"0", "root"} for user in users)
    labels = " ".join(rest for word, rest in found if word == "LABEL")
    for name in ("title", "description", "version", "licenses", "base.name"):
        assert f"org.opencontainers.image.{name}=" in labels


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_commands_and_extras_are_trtkit_s(path):
    extras = set(
        re.findall(r"^([a-z]+) = \[", PROJECT.partition("[project.optional-dependencies]")[2], re.MULTILINE)
    )
    (asked,) = re.findall(r'"/src\[(.*?)\]"', path.read_text())
    assert set(asked.split(",")) <= extras
    assert not {"cpu", "rtx", "calib", "dev"} & set(asked.split(","))
    health = next(rest for word, rest in instructions(path) if word == "HEALTHCHECK")
    _, verb, address = re.findall(r'"(.*?)"', health.partition("CMD")[2])
    assert verb in COMMAND.commands
    port = int(address.rpartition(":")[2])
    exposed = {int(word) for kind, rest in instructions(path) if kind == "EXPOSE" for word in rest.split()}
    assert port in exposed
    ports = Ports()
    proxy = {option("proxy", f"--{kind}-port").default for kind in ("grpc", "metrics")}
    assert exposed == (proxy if "proxy" in path.name else {ports.http, ports.grpc, ports.metrics})


def test_the_builder_is_the_newest_image_of_the_catalog():
    (tag,) = [rest for word, rest in instructions(DOCKERFILES[0]) if word == "ARG" and "TRITON_TAG=" in rest]
    assert tag == f"TRITON_TAG={PROFILES[NEWEST].images[-1]}"


def test_what_the_package_is_built_from_reaches_the_builder_and_nothing_else():
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    named = re.findall(r'^(?:readme|license-files) = \[?"(.*?)"', PROJECT, re.MULTILINE)
    assert kept == {"pyproject.toml", *named, "trtkit"}
    assert all((ROOT / name).exists() for name in kept)
    assert rules[0] == "*"
    assert any(fnmatch.fnmatch("trtkit/a/__pycache__", rule) for rule in rules[1:])


def test_the_compose_file_is_what_is_exported_today():
    files = compose_files(load_contract(CONTRACT), FOLDER)
    assert check(files, FOLDER) == [], f"run: trtkit export compose {CONTRACT.relative_to(ROOT)} -o docker"


def test_the_compose_file_names_what_there_is():
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for service in services.values():
        build = service.get("build")
        if build:
            assert (FOLDER / build["context"] / build["dockerfile"]).resolve() in DOCKERFILES
        for volume in service["volumes"]:
            given = volume["source"] if isinstance(volume, dict) else volume
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", given).split(":")[0]
            assert source.startswith("${") or (FOLDER / source).exists()
    contract, *words = services["proxy"]["command"]
    assert (ROOT / "build_configs" / Path(contract).name).is_file()
    assert all(option("proxy", word) for word in words if word.startswith("--"))
    assert services["triton"]["command"][-1] == f"/model_repo/{SCRIPT}"
    targets = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    hosts = {
        target.split(":")[0]
        for job in targets
        for each in job["static_configs"]
        for target in each["targets"]
    }
    assert hosts <= set(services)


def test_pools_get_servers_and_gpus_of_their_own():
    pools = ["pools.standard={}", "pools.long={min_prompt_tokens: 8192}", "engine.tensor_parallel=2"]
    services = yaml.safe_load(compose_files(load_contract(CONTRACT, pools), FOLDER)["compose.yaml"])[
        "services"
    ]
    devices = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in services.items()
        if "deploy" in service
    }
    assert devices == {"triton-standard": ["0", "1"], "triton-long": ["2", "3"]}
    assert "long=triton-long:8001" in services["proxy"]["command"]
    assert services["triton-long"]["volumes"][0]["source"].endswith("}/long")
    words = services["proxy"]["command"]
    # The proxy reads the same file, and has to be told what is not in it.
    assert [words[place + 1] for place, word in enumerate(words) if word == "--set"] == pools


def test_pools_of_like_names_get_servers_of_their_own():
    file = load_contract(CONTRACT, ["pools={v1-0: {}, v1.0: {min_prompt_tokens: 8192}}"])
    services = yaml.safe_load(compose_files(file, FOLDER)["compose.yaml"])["services"]
    assert {"triton-v1-0", "triton-v1.0"} <= set(services)


def test_a_server_has_the_gpus_of_its_draft_model_too(tmp_path):
    given = [
        "engine.tensor_parallel=2",
        f"engine.speculation={{mode: draft-target, draft: {tmp_path / 'draft.yaml'}}}",
    ]
    content = yaml.safe_load(CONTRACT.read_text())
    content["engine"]["tensor_parallel"] = 4
    (tmp_path / "draft.yaml").write_text(yaml.safe_dump(content))
    services = yaml.safe_load(compose_files(load_contract(CONTRACT, given), FOLDER)["compose.yaml"])[
        "services"
    ]
    (device,) = services["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["0", "1", "2", "3"]


def test_what_the_proxy_reads_is_in_its_container_wherever_contract_and_model_lie(tmp_path):
    (tmp_path / "models/m").mkdir(parents=True)
    (tmp_path / "in").mkdir()
    contract = tmp_path / "in/c.yaml"
    contract.write_text(CONTRACT.read_text())
    file = load_contract(contract, ["model.source=../models/m"])
    proxy = yaml.safe_load(compose_files(file, tmp_path / "dk/x")["compose.yaml"])["services"]["proxy"]
    here = {each["target"]: each["source"] for each in proxy["volumes"] if isinstance(each, dict)}
    assert here == {"/contracts": "${TRTKIT_CONTRACTS:-../../in}", "/model": "../../models/m"}
    assert "model.source=/model" in proxy["command"]
    # Outside of a clone there is no Dockerfile beside the folder.
    assert proxy["build"]["context"].startswith("${TRTKIT_CLONE:?")


@pytest.mark.parametrize(
    ("contract", "change", "message", "hint"),
    [
        ("smollm2-135m__int8-wo-kv_auto__cpu", [], "back end cpu is not served", "trtkit serve"),
        ("llama-3.1-8b__fp8-kv_auto__h100-sxm-tp1", [], "back end vllm is not served", "launch.sh"),
        (CONTRACT.stem, ["engine.tensor_parallel=16"], "16 ranks are on several", "TRTKIT_HOSTFILE"),
        (
            CONTRACT.stem,
            ["engine.tensor_parallel=8", "pools.short={}", "pools.long={min_prompt_tokens: 8192}"],
            "2 pools of 8 GPUs are 16, and a machine has 8",
            "engine.gpus_per_node",
        ),
    ],
)
def test_what_one_image_or_machine_does_not_serve_is_refused(contract, change, message, hint):
    with pytest.raises(InputError, match=message) as caught:
        compose_files(load_contract(ROOT / f"build_configs/{contract}.yaml", change), FOLDER)
    assert hint in caught.value.hint


def test_engines_of_the_python_api_get_the_same_servers():
    file = load_contract(ROOT / "build_configs/llama-3.1-8b__fp8-kv_fp8__h200-tp1.yaml")
    assert file.contract.engine.backend.value == "llmapi"
    assert set(yaml.safe_load(compose_files(file, FOLDER)["compose.yaml"])["services"]) == {
        "triton",
        "proxy",
        "prometheus",
    }
