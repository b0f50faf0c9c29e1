"""Contracts on their way to another back end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plan.published import published
from trtkit.contract import load_contract
from trtkit.contract.formats import BackendName
from trtkit.contract.load import parse_contract
from trtkit.engine.exported import EXPORTED
from trtkit.errors import InputError
from trtkit.flow.migrate import migrate
from trtkit.plan import Machine, make_plan

SHIPPED = sorted((Path(__file__).parents[2] / "build_configs").glob("*.yaml"))
OLD = """\
name: it
model: {source: "hf:org/name"}   # the source
quantization:
  # INT8 was the fastest
  weights: int8-sq     # before SM 89
  alpha: 0.5
  kv_cache: int8
engine:
  backend: tensorrt
  gpu: a100-80         # eight of them
  trtllm: "0.21"
  build_flags: {gemm_plugin: auto}
  lora: {modules: [attn_q], max_rank: 8}
  speculation: {mode: lookahead, lookahead: {window: 7, ngram: 7, verification: 7}}
classes: {only: {priority: 1, ttft_ms: 900}}
"""


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


def test_what_is_lost_is_told_with_its_reason(old):
    migration = migrate(load_contract(old), BackendName.LLMAPI)
    lost = {each.key: each for each in migration.lost}
    assert {*lost} == {
        "quantization.weights",
        "quantization.kv_cache",
        "engine.build_flags.gemm_plugin",
        "engine.lora",
        "engine.speculation",
    }
    assert lost["quantization.weights"].after == "int4-awq"
    assert "no INT8" in lost["quantization.weights"].why
    changed = {each.key: each.after for each in migration.changes if not each.lost}
    assert changed == {"engine.backend": "llmapi", "engine.trtllm": "1.2", "quantization.alpha": None}
    assert {"model.source", "engine.gpu", "classes.only.ttft_ms"} <= {*migration.kept}


def test_comments_stay_beside_what_they_are_about(old):
    text = migrate(load_contract(old), BackendName.LLMAPI).text
    for line in ('source: "hf:org/name"}   # the source', "  # INT8 was the fastest", "# eight of them"):
        assert line in text
    assert "weights: int4-awq    # before SM 89" in text
    assert "build_flags" not in text


def test_a_comment_above_a_section_stays_there_when_the_one_before_gains_or_loses_its_last_key(old):
    text = OLD.replace("classes:", "# what was promised\nclasses:")
    for last in ("gpu: a100-80", "lora: {modules: [attn_q], max_rank: 8}"):
        head, _, rest = text.partition("engine:\n")
        keys = ["backend: tensorrt", *{"gpu: a100-80", last}]
        keys.sort(key=last.__eq__)
        old.write_text(f"{head}engine:\n  " + "\n  ".join(keys) + "\n" + rest[rest.index("# what") :])
        moved = migrate(load_contract(old), BackendName.LLMAPI, gpu="h100-sxm").text
        assert "\n# what was promised\nclasses:" in moved


@pytest.mark.parametrize("backend", EXPORTED)
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_contracts_move_to_ones_that_can_be_planned(path, backend):
    file = load_contract(path)
    if file.contract.engine.backend.value == backend:
        return
    gpu = "rtx-5090" if backend == "edgellm" else None if file.contract.engine.gpu else "h100-sxm"
    if backend == "edgellm" and not path.stem.startswith(("smollm2", "qwen3", "llama-3.1")):
        pytest.skip("too large for the GPU, or heads that Edge-LLM lacks")
    text = migrate(file, BackendName(backend), gpu=gpu).text
    contract = parse_contract(text, path).contract
    plan = make_plan(contract, published(path.stem.partition("__")[0]), Machine(2, 16 * 10**9))
    assert plan.backend == backend


def test_a_type_that_the_back_end_chose_stays(old):
    old.write_text(
        'name: it\nmodel: {source: "hf:a/b"}\nengine: {backend: rtx, gpu: l4}\nclasses: {c: {priority: 1}}\n'
    )
    text = migrate(load_contract(old), BackendName.LLMAPI).text
    assert parse_contract(text, old).contract.dtype.value == "float16"


@pytest.mark.parametrize(("backend", "gpu", "said"), [
    ("tensorrt", None, "for tensorrt already"),
    ("cpu", None, "not moved to cpu"),
    ("llmapi", "h10", "no GPU of the catalog"),
    ("edgellm", "h100-sxm", "edgellm has no kernels for h100-sxm"),
])  # fmt: skip
def test_what_cannot_be_moved_says_why(old, backend, gpu, said):
    with pytest.raises(InputError, match=said):
        migrate(load_contract(old), BackendName(backend), gpu=gpu)


def test_an_unproven_format_comes_nearer_than_none(old):
    migration = migrate(load_contract(old), BackendName.VLLM)
    lost = {each.key: (each.after, each.why) for each in migration.lost}
    assert lost["quantization.weights"][0] == lost["quantization.kv_cache"][0] == "fp8"
    assert "fp8 comes nearest, and is not proven there" in lost["quantization.weights"][1]


def test_pools_stay_as_they_are(old):
    pools = "pools:\n  standard: {}\n  long: {min_prompt_tokens: 1000, limits: {max_seq_len: 65536}}\n"
    old.write_text(OLD + pools)
    text = migrate(load_contract(old), BackendName.LLMAPI).text
    assert text.endswith(pools)
    assert "build_flags" not in text


def test_relative_paths_are_not_carried_elsewhere(trtkit, tmp_path, old):
    old.write_text(OLD.replace("hf:org/name", "model"))
    (tmp_path / "there").mkdir()
    code, _, err = trtkit("migrate", old, "--to", "llmapi", "-o", tmp_path / "there" / "new.yaml")
    assert (code, "model would lead elsewhere" in err) == (2, True)
    new = tmp_path / "new.yaml"
    code, out, _ = trtkit("migrate", old, "--to", "llmapi", "-o", new, "--output", "json")
    assert code == 0
    assert json.loads(out)["text"] == new.read_text()
    code, _, err = trtkit("migrate", old, "--to", "llmapi", "-o", new)
    assert (code, "is there already" in err) == (2, True)


def test_what_an_alias_shares_is_written_out(tmp_path):
    path = tmp_path / "old.yaml"
    classes = "classes: {first: &same {priority: 2, ttft_ms: 90}, second: *same, only:"
    path.write_text(OLD.replace("classes: {only:", classes))
    migration = migrate(load_contract(path, ["classes.second.priority=3"]), BackendName.LLMAPI)
    moved = parse_contract(migration.text, path).contract
    assert "*" not in migration.text
    assert {name: each.priority for name, each in moved.classes.items()} == {
        "first": 2,
        "second": 3,
        "only": 1,
    }


def test_overrides_are_read_as_everywhere(old):
    migration = migrate(load_contract(old, ["engine.trtllm=1.1", "name=0x10"]), BackendName.LLMAPI)
    moved = parse_contract(migration.text, old).contract
    assert (moved.engine.trtllm, moved.name) == ("1.1", "0x10")
