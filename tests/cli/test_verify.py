"""``trtkit verify``: checkpoints, sources and products that are not as they were, and ranks that changed places."""

import json

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.engines import ORIGIN, TARGET
from tests.cli.test_jobs import contract  # noqa: F401 - a fixture
from trtkit.canonical import canonical_json
from trtkit.conventions import MANIFEST


def test_convert_then_verify(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "checkpoint"
    assert trtkit("convert", tiny_llama(), "-o", out)[0] == 0
    code, text, _ = trtkit("verify", out)
    assert (code, text) == (0, f"{out}: a sound TensorRT-LLM checkpoint\n")


def test_verify_finds_what_is_wrong_and_exits_6(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "checkpoint"
    trtkit("convert", tiny_llama(), "-o", out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    code, _, err = trtkit("verify", out)
    assert code == 6
    assert "transformer.layers.0.mlp.proj.weight" in err
    assert "128" in err


@pytest.mark.parametrize("changes", [{"architecture": ["x"]}, {"quantization": {"quant_algo": []}}])
def test_verify_names_a_checkpoint_that_is_none(trtkit, tiny_llama, tmp_path, changes):  # noqa: F811
    out = tmp_path / "checkpoint"
    trtkit("convert", tiny_llama(), "-o", out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | changes))
    code, _, err = trtkit("verify", out)
    assert code == 6
    assert str(out / "config.json") in err


def test_verify_compares_products_with_their_manifest(trtkit, contract, tmp_path):  # noqa: F811
    trtkit("build", contract())
    (weights,) = (tmp_path / "home").glob("convert/*/checkpoint/rank0.safetensors")
    product = weights.parent.parent
    assert trtkit("verify", product)[:2] == (0, f"{product}: a sound build product\n")
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    code, _, err = trtkit("verify", product)
    assert code == 6
    assert "SHA-256" in err


def test_an_engine_as_it_was_built_is_sound(trtkit, engine):
    assert trtkit("verify", engine)[0] == 0


@pytest.mark.parametrize("text", ["", "null", "[" * 200_000, '{"schema": 3}'])
def test_a_manifest_that_is_none_is_a_fault_of_the_folder(trtkit, engine, text):
    (engine / MANIFEST).write_text(text)
    for verb in ("verify", "inspect"):
        code, _, err = trtkit(verb, engine)
        assert (code, err.count("not a trtkit manifest")) == (6, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {"sm": 80}},
        {"key": "0" * 64},
        {"stage": "convert"},
        {"origin": {**ORIGIN, "target": {**TARGET, "sm": 89}}},
        {"trtkit": "9.9"},
        {"facts": {"x": 1}},
    ],
)
def test_a_changed_manifest_is_found_whatever_was_changed(trtkit, engine, change):
    manifest = json.loads((engine / MANIFEST).read_text())
    (engine / MANIFEST).write_text(canonical_json(manifest | change))
    code, _, err = trtkit("verify", engine)
    assert code == 6
    assert "was changed after it was written" in err


def drop(folder):
    (folder / "rank1.engine").unlink()


def swap(folder):
    first, second = (folder / f"rank{rank}.engine" for rank in range(2))
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def leave_over(folder):
    (folder / "rank2.engine").write_bytes(b"plan")


def add(folder):
    (folder / "evil.so").write_bytes(b"")


def empty(folder):
    (folder / "rank0.engine").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop, "rank1.engine: the file is missing"),
        (swap, "rank0.engine: holds what belongs into rank1.engine"),
        (leave_over, "rank2.engine: left over; config.json is for 2 ranks"),
        (empty, "rank0.engine: has 0 bytes"),
        (add, "evil.so: was added"),
    ],
)
def test_ranks_that_are_not_as_they_were_are_named_once(trtkit, engine, damage, said):
    damage(engine)
    code, _, err = trtkit("verify", engine)
    assert code == 6
    assert said in err
    assert err.count(said.partition(":")[0] + ": ") == 1


@pytest.mark.parametrize("damage", [drop, leave_over, empty])
def test_ranks_are_counted_without_a_manifest_too(trtkit, foreign, damage):
    assert trtkit("verify", foreign)[0] == 0
    damage(foreign)
    assert trtkit("verify", foreign)[0] == 6


def test_a_source_that_is_wrong_is_told_from_what_is_none(trtkit, tiny_llama, tmp_path):  # noqa: F811
    folder = tiny_llama(edit=lambda tensors: tensors.pop("model.norm.weight"))
    code, out, err = trtkit("verify", folder, "--output", "json")
    assert (code, "model.norm.weight: the tensor is missing" in err) == (6, True)
    assert [each["key"] for each in json.loads(out)["problems"]] == ["model.norm.weight"]
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert trtkit("verify", folder)[0] == 2
    weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert trtkit("verify", folder)[0] == 2
