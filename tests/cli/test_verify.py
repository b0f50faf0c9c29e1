"""``trtkit verify``: changed manifests, lost and swapped ranks, and targets that an engine is not for."""

import json
import shlex

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from trtkit.conventions import MANIFEST
from trtkit.engine.manifest import canonical_json
from trtkit.engine.store import Stage, Store
from trtkit.errors import InputError
from trtkit.flow.against import Target, parse_target, target_problems

PRETRAINED = {
    "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 16, "intermediate_size": 128,
    "vocab_size": 256, "hidden_act": "silu", "norm_epsilon": 1e-5, "max_position_embeddings": 256,
    "rotary_base": 1e4, "rotary_scaling": None, "attn_bias": False, "mlp_bias": False,
    "position_embedding_type": "rope_gpt_neox",
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
}  # fmt: skip
TARGET = {"backend": "tensorrt", "gpu": "h100-sxm", "sm": 90, "trtllm": "1.1", "image": "26.02"}
ORIGIN = {
    "contract": {"path": "/contracts/chat.yaml", "name": "chat", "set": ["engine.gpu=h100-sxm"]},
    "target": TARGET,
}


def write_engine(out):
    """Write what TensorRT-LLM's builder leaves, with stand-ins for the plans."""
    config = {"version": "1.1.0", "pretrained_config": PRETRAINED, "build_config": {"max_batch_size": 8}}
    (out / "config.json").write_text(json.dumps(config))
    for rank in range(2):
        (out / f"rank{rank}.engine").write_bytes(b"plan of rank %d" % rank)
    return {}


@pytest.fixture
def engine(tmp_path):
    """An engine for an H100 with its manifest."""
    return Store(tmp_path / "store").produce(Stage("compile", {"sm": 90}, write_engine), origin=ORIGIN).path


@pytest.fixture
def foreign(tmp_path):
    """An engine that trtkit did not make."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    write_engine(folder)
    return folder


def test_an_engine_as_it_was_built_is_sound_for_its_target(trtkit, engine):
    assert trtkit("verify", engine)[0] == 0
    assert trtkit("verify", engine, "--against", "h100-sxm", "--against", "1.1")[0] == 0
    assert trtkit("verify", engine, "--against", "90", "--against", "26.02")[0] == 0


@pytest.mark.parametrize(
    ("against", "told", "changed"),
    [
        (["l40s"], "SM 89", ["engine.gpu=l40s"]),
        (["8.9"], "SM 89", ["engine.gpu="]),
        (["sm_80"], "SM 80", ["engine.gpu="]),
        (["1.2"], "TensorRT-LLM 1.2", ["engine.gpu=h100-sxm", "engine.trtllm=1.2"]),
        (["25.06"], "TensorRT-LLM 0.20", ["engine.trtllm=0.20"]),
        (["l40s", "1.2"], "SM 89, TensorRT-LLM 1.2", ["engine.gpu=l40s", "engine.trtllm=1.2"]),
        (["cpu"], "the CPU", ["engine.backend=cpu", "engine.gpu=null"]),
    ],
)
def test_another_target_is_refused_with_the_command_that_builds_for_it(
    trtkit, engine, against, told, changed
):
    code, _, err = trtkit("verify", engine, *(word for each in against for word in ("--against", each)))
    assert code == 6
    (line,) = [line for line in err.splitlines() if "built for" in line]
    assert "SM 90, TensorRT-LLM 1.1, target has" in line
    assert told in line.partition("target has")[2]
    words = shlex.split(err.partition("fix: ")[2].splitlines()[0])
    assert words[:3] == ["trtkit", "build", "/contracts/chat.yaml"]
    assert [any(word.startswith(each) for word in words) for each in changed] == [True] * len(changed)
    assert len([word for word in words if word.startswith("engine.gpu=")]) == 1


def test_another_gpu_of_the_same_sm_is_a_warning(trtkit, engine):
    code, _, err = trtkit("verify", engine, "--against", "h200")
    assert code == 0
    assert "warning" in err
    assert "kernels that were chosen on another GPU" in err


def test_what_an_engine_does_not_say_is_not_taken_for_a_yes(trtkit, foreign):
    assert trtkit("verify", foreign, "--against", "1.1")[0] == 0
    code, _, err = trtkit("verify", foreign, "--against", "90")
    assert code == 6
    assert "does not say which SM it was built for" in err


@pytest.mark.parametrize("name", ["h101", "7.4", "3.0", "99.99", "", "sm"])
def test_a_target_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(InputError, match="l40s"):
        parse_target([name])


def test_two_names_that_contradict_each_other_are_refused():
    assert parse_target(["l40s", "89"]) == Target(gpu="l40s", sm=89)
    with pytest.raises(InputError, match="cannot both be"):
        parse_target(["l40s", "90"])


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


def empty(folder):
    (folder / "rank0.engine").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (drop, "rank1.engine: the file is missing"),
        (swap, "rank0.engine: holds what belongs into rank1.engine"),
        (leave_over, "rank2.engine: left over; config.json is for 2 ranks"),
        (empty, "rank0.engine: has 0 bytes"),
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


@pytest.mark.parametrize(
    ("algorithm", "sm", "said"),
    [
        (None, "80", ""),
        ("FP8", "89", ""),
        ("FP8", "80", "no FP8 before SM 89"),
        ("W8A8_SQ_PER_CHANNEL_PLUGIN", "100", "the builder raises for SmoothQuant"),
        ("NVFP4", "80", "nothing is known of NVFP4"),
    ],
)
def test_a_format_that_the_gpu_does_not_run_is_refused(tmp_path, algorithm, sm, said):
    config = PRETRAINED | {"quantization": {"quant_algo": algorithm}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    problems = target_problems(tmp_path, parse_target([sm]))
    assert [said in problem.message for problem in problems] == [True] * bool(said)


def test_a_checkpoint_is_compared_with_what_the_gpu_runs(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out)
    assert trtkit("verify", out, "--against", "a100-80")[0] == 0
    config = json.loads((out / "config.json").read_text())
    config["trtkit"] = {"target_sm": 80, "layout": "interleaved"}
    (out / "config.json").write_text(json.dumps(config))
    code, _, err = trtkit("verify", out, "--against", "90")
    assert code == 6
    assert "built for the layout of SM 80, target has SM 90" in err
    assert "--target-sm 90" in err
    assert trtkit("verify", out, "--against", "86")[0] == 0


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
