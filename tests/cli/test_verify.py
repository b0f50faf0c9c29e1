"""``trtkit verify``: changed manifests, lost and swapped ranks, and targets that an engine is not for."""

import json
import re
import shlex
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from trtkit.canonical import canonical_json
from trtkit.catalog.formats import KV_CACHE, WEIGHTS
from trtkit.catalog.trtllm import LINES
from trtkit.contract.load import parse_contract
from trtkit.contract.models import Contract
from trtkit.conventions import MANIFEST
from trtkit.engine.store import Stage, Store
from trtkit.errors import ContractError, InputError, Severity
from trtkit.flow.against import Target, compare, parse_target
from trtkit.plan import Machine, make_plan
from trtkit.plan.hf_config import parse_hf_config

PRETRAINED = {
    "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_size": 16, "intermediate_size": 128,
    "vocab_size": 256, "hidden_act": "silu", "norm_epsilon": 1e-5, "max_position_embeddings": 256,
    "rotary_base": 1e4, "rotary_scaling": None, "attn_bias": False, "mlp_bias": False,
    "position_embedding_type": "rope_gpt_neox",
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
}  # fmt: skip
CHAT = "name: chat\nmodel: {source: .}\nclasses: {chat: {priority: 1}}\nengine: {backend: tensorrt}\n"
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
        (["SM 89"], "SM 89", ["engine.gpu="]),
        (["8.9"], "SM 89", ["engine.gpu="]),
        (["sm_80"], "SM 80", ["engine.gpu="]),
        (["1.2"], "TensorRT-LLM 1.2.x", ["engine.gpu=h100-sxm", "engine.trtllm=1.2"]),
        (["25.06"], "TensorRT-LLM 0.20.0", ["engine.trtllm=0.20"]),
        (["l40s", "1.2"], "SM 89, TensorRT-LLM 1.2.x", ["engine.gpu=l40s", "engine.trtllm=1.2"]),
        (["cpu"], "the CPU", ["engine.backend=cpu", "engine.gpu=null"]),
    ],
)
def test_another_target_is_refused_with_the_command_that_builds_for_it(
    trtkit, engine, against, told, changed
):
    code, _, err = trtkit("verify", engine, *(word for each in against for word in ("--against", each)))
    assert code == 6
    (line,) = [line for line in err.splitlines() if "built for" in line]
    assert "SM 90, TensorRT-LLM 1.1.0, " in line.partition("target has")[0]
    assert told in line.partition("target has")[2]
    words = shlex.split(err.partition("fix: ")[2].splitlines()[0])
    assert words[:3] == ["trtkit", "build", "/contracts/chat.yaml"]
    assert [any(word.startswith(each) for word in words) for each in changed] == [True] * len(changed)
    assert len([word for word in words if word.startswith("engine.gpu=")]) == 1
    contract = parse_contract(CHAT, Path("chat.yaml"), [word for word in words if "=" in word]).contract
    taken = {f"engine.trtllm={contract.engine.trtllm}", f"engine.gpu={contract.engine.gpu or 'null'}"}
    assert {
        each for each in changed if each.startswith(("engine.trtllm", "engine.gpu")) and each[-1] != "="
    } <= taken


@pytest.mark.parametrize("text", ["", "null", "[" * 200_000, '{"schema": 3}'])
def test_a_manifest_that_is_none_is_a_fault_of_the_folder(trtkit, engine, text):
    (engine / MANIFEST).write_text(text)
    for verb in ("verify", "inspect"):
        code, _, err = trtkit(verb, engine)
        assert (code, err.count("not a trtkit manifest")) == (6, 1)


def test_who_moves_from_the_cpu_to_a_release_is_told_that_it_takes_a_gpu(trtkit, foreign):
    (foreign / "config.json").write_text('{"backend": "cpu"}')
    assert "--set engine.gpu=GPU --set engine.trtllm=1.2" in trtkit("verify", foreign, "--against", "1.2")[2]


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


def version(folder, text):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"version": text}))


@pytest.mark.parametrize(
    ("built", "against", "code"),
    [
        ("1.2.0", "1.2.0", 0),
        ("1.2.0", "1.2.1", 6),
        ("1.2.0", "26.03", 0),
        ("1.2.0", "26.07", 6),
        ("1.2.1", "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3", 0),
        ("1.0.0", "25.11", 6),
        ("0.18.0", "25.04", 6),
        ("0.21.0+cu12", "0.21", 0),
        ("0.21.0+cu12", "0.21.0", 0),
        ("0.21.0+cu12", "0.21.1", 6),
        ("1.2.0rc3", "1.2.0", 6),
        ("1.2.0rc3", "1.2.0rc3", 0),
        ("1.3.0", "1.2", 6),
    ],
)
def test_an_engine_is_loaded_by_the_release_that_built_it(trtkit, foreign, built, against, code):
    version(foreign, built)
    assert trtkit("verify", foreign, "--against", against)[0] == code


def test_another_release_is_refused_with_the_image_that_has_it(trtkit, engine):
    err = trtkit("verify", engine, "--against", "1.1.1")[2]
    assert "release: built for" in err
    err = trtkit("verify", engine, "--against", "26.03")[2]
    assert "engine.trtllm=1.2  # in nvcr.io/nvidia/tritonserver:26.03-trtllm-python-py3" in err


def test_a_pre_release_is_told_where_only_the_line_is_asked_for(trtkit, foreign):
    version(foreign, "1.2.0rc3")
    code, _, err = trtkit("verify", foreign, "--against", "1.2")
    assert (code, "pre-release 1.2.0rc3" in err, "--against 1.2.0rc3" in err) == (0, True, True)


SOFTWARE = [
    (["tensorrt=10.13.3"], "", 0),
    (["tensorrt 10.13.3.9", "driver=580.95.05", "1.1.0"], "", 0),
    (["driver=590.44"], "", 0),
    (["26.02", "driver=580.95"], "", 0),
    (["26.02", "tensorrt=10.13.3"], "", 0),
    (["tensorrt=10.14.1"], "TensorRT 10.13.3, target has TensorRT 10.14.1", 6),
    (["tensorrt=10.13.2.9"], "TensorRT 10.13.3, target has TensorRT 10.13.2.9", 6),
    (["tensorrt-rtx=1.7.1"], "TensorRT 10.13.3, target has TensorRT for RTX 1.7.1", 6),
    (["1.1", "driver=580.88"], "driver 580.95 or newer, target has TensorRT-LLM 1.1.x, driver 580.88", 6),
    (
        ["h100-sxm", "driver=575.57.8"],
        "driver 580.95 or newer, target has H100 SXM, SM 90, driver 575.57.8",
        6,
    ),
]


@pytest.mark.parametrize(("against", "said", "code"), SOFTWARE)
def test_an_engine_runs_on_its_tensorrt_and_on_no_older_driver(trtkit, engine, against, said, code):
    found, _, err = trtkit("verify", engine, *(word for each in against for word in ("--against", each)))
    assert (found, said in err) == (code, True), err
    assert ("built for" in err) == bool(code)


@pytest.mark.parametrize(
    ("against", "fix"),
    [
        (["tensorrt=10.14.1"], "--set engine.trtllm=1.2  # in nvcr.io/nvidia/tritonserver:26.07-trtllm"),
        (["tensorrt=11.4.0"], "fix: use TensorRT 10.13.3 there: no image"),
        (["driver=575.57"], "engine.trtllm=1.0  # in nvcr.io/nvidia/tritonserver:25.10-trtllm"),
        (["driver=575.57"], "fix: install driver 580.95 or newer there, or build for it: trtkit build"),
        (["driver=550.1"], "fix: install driver 580.95 or newer there: no image"),
        (["tensorrt-rtx=1.7.1"], "engine.backend=rtx  # with tensorrt-rtx-cu13 1.7.1"),
    ],
)
def test_what_builds_for_other_software_is_told(trtkit, engine, against, fix):
    assert fix in trtkit("verify", engine, "--against", *against)[2]


def test_no_command_is_told_for_a_tensorrt_that_no_release_has(trtkit, foreign):
    (foreign / "config.json").write_text('{"backend": "cpu"}')
    assert "fix: no image of TensorRT-LLM" in trtkit("verify", foreign, "--against", "tensorrt=11.4.0")[2]
    known = trtkit("verify", foreign, "--against", "tensorrt=10.13.3")[2]
    assert "--set engine.backend=tensorrt --set engine.gpu=GPU --set engine.trtllm=1.1" in known


def test_software_that_one_side_does_not_say_is_told(trtkit, engine, foreign):
    out = trtkit("verify", engine, "--against", "h100-sxm")[1]
    open_ = "not compared, as the target does not say: TensorRT (10.13.3 built it), driver (580.95 or newer)"
    assert open_ in out
    out = trtkit("verify", engine, "--against", "26.02", "--output", "json")[1]
    assert json.loads(out)["not_compared"] == ["driver (580.95 or newer)"]
    version(foreign, "1.2.0rc3")  # of no image
    code, _, err = trtkit("verify", foreign, "--against", "tensorrt=10.14.1", "--against", "driver=590.44")
    assert (code, "which TensorRT built it" in err, "which driver it needs" in err) == (0, True, True)


def test_what_the_manifest_planned_counts_only_where_that_release_built_it(trtkit, tmp_path):
    planned = TARGET | {"release": "1.1.0", "tensorrt": "10.13.9", "driver": "581.1"}
    for release, tensorrt in (("1.1.0", "10.13.9"), ("1.1.1", "10.13.3")):
        origin = ORIGIN | {"target": planned | {"release": release}}
        store = Store(tmp_path / release)
        path = store.produce(Stage("compile", {}, write_engine), origin=origin).path
        assert trtkit("verify", path, "--against", f"tensorrt={tensorrt}")[0] == 0
        assert trtkit("verify", path, "--against", "tensorrt=10.13.4")[0] == 6


def test_an_engine_of_tensorrt_for_rtx_runs_on_the_version_that_built_it(tmp_path):
    target = {"backend": "rtx", "gpu": "l40s", "sm": 89, "sms": [89], "tensorrt": None, "driver": None}
    origin = ORIGIN | {"target": target, "tools": {"tensorrt_rtx": "1.7.1.116"}}

    def write(out):
        (out / "config.json").write_text('{"backend": "rtx", "build_config": {}}')
        return {}

    path = Store(tmp_path / "store").produce(Stage("compile", {}, write), origin=origin).path
    for version_, same in (("1.7.1.116", True), ("1.7.1", True), ("1.7.2", False)):
        problems = compare(path, parse_target([f"tensorrt-rtx={version_}"])).problems
        assert [each.key for each in problems] == ([] if same else ["TensorRT"])
    (problem,) = compare(path, parse_target(["tensorrt=10.14.1"])).problems
    assert (problem.key, "--set engine.backend=tensorrt" in problem.hint) == ("back end and TensorRT", True)
    (problem,) = compare(path, parse_target(["89", "driver=590.44"])).problems
    assert (problem.severity, problem.message[:32]) == (Severity.WARNING, "nothing says which driver it nee")


@pytest.mark.parametrize("name", ["tensorrt=10.14", "tensorrt=10", "driver=590", "driver=new", "tensorrt="])
def test_software_without_its_full_version_is_refused(name):
    with pytest.raises(InputError, match=f"--against {name}"):
        parse_target([name])


def test_an_image_whose_release_is_not_known_names_the_line_alone():
    assert parse_target(["25.05"]) == Target(line="0.19", tensorrt="10.9.0")
    assert parse_target([f"26.07@sha256:{'a' * 64}"]).image_digest == f"sha256:{'a' * 64}"


@pytest.mark.parametrize("missing", ["backend", "gpu", "sm", "trtllm", "image"])
def test_a_manifest_without_a_field_says_that_it_does_not_say(trtkit, tmp_path, missing):
    target = {name: value for name, value in TARGET.items() if name != missing}
    origin = ORIGIN | {"target": target}
    path = Store(tmp_path / "store").produce(Stage("compile", {}, write_engine), origin=origin).path
    code, _, err = trtkit("verify", path, "--against", "h100-sxm", "--against", "1.1")
    said = {"backend": "does not say which back end", "sm": "does not say which SM"}
    assert (code, said.get(missing, "") in err) == (6 if missing in said else 0, True)


def test_a_manifest_that_the_engine_contradicts_is_told(trtkit, tmp_path):
    origin = ORIGIN | {"target": TARGET | {"trtllm": "1.2"}}
    path = Store(tmp_path / "store").produce(Stage("compile", {}, write_engine), origin=origin).path
    code, _, err = trtkit("verify", path, "--against", "h100-sxm")
    assert (code, "the manifest says TensorRT-LLM 1.2, the engine 1.1.0" in err) == (6, True)


@pytest.mark.parametrize(
    "name",
    ["h101", "7.4", "3.0", "99.99", "", "sm", "٨٩", "26.07-vllm-python-py3", "python:26.07", "1", "cpu2"],
)
def test_a_target_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(InputError, match="l40s"):
        parse_target([name])


def test_a_gpu_that_comes_in_several_forms_is_asked_back():
    with pytest.raises(InputError, match="did you mean h100-pcie, h100-sxm, h100-nvl"):
        parse_target(["H100"])


def test_two_names_that_contradict_each_other_are_refused():
    assert parse_target(["l40s", "89"]) == Target(gpu="l40s", sm=89)
    for names in (
        ["l40s", "90"],
        ["cpu", "driver=590.44"],
        ["1.2", "cpu"],
        ["26.03", "1.2.1"],
        ["26.03", "tensorrt=10.9.0"],
    ):
        with pytest.raises(InputError, match="cannot both be"):
            parse_target(names)
    assert parse_target(["1.2", "1.2.1"]) == Target(line="1.2", release="1.2.1")


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


def checkpoint(folder, algorithm=None, kv_cache=None, **changes):
    """Write the description of a checkpoint; no weights are read to compare it."""
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": kv_cache}
    folder.mkdir(exist_ok=True)
    one = {"world_size": 1, "tp_size": 1, "pp_size": 1}
    config = PRETRAINED | {"quantization": quantization, "head_size": 64, "mapping": one} | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def told(comparison):
    return [(problem.severity.value, problem.message) for problem in comparison.problems]


REFUSED = [
    ({"algorithm": "FP8"}, ["80"], "no FP8 before SM 89"),
    ({"algorithm": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"}, ["100"], "the builder raises for SmoothQuant"),
    ({"algorithm": "W8A16", "kv_cache": "FP8"}, ["a100-80"], "no FP8 before SM 89"),
    ({"kv_cache": "FP8"}, ["80"], "no FP8 before SM 89"),
    ({"kv_cache": "INT8"}, ["b200"], "an INT8 KV cache"),
    ({"algorithm": "FP8", "kv_cache": "INT8"}, ["b200"], "an INT8 KV cache"),
    (
        {"algorithm": "W8A8_SQ_PER_CHANNEL", "architecture": "MixtralForCausalLM"},
        ["a100-80"],
        "int8-sq layers",
    ),
    ({"algorithm": "W8A8_SQ_PER_CHANNEL", "architecture": "MixtralForCausalLM"}, ["1.2"], "int8-sq layers"),
    ({"architecture": "Qwen3ForCausalLM"}, ["0.20"], "0.20 has no Qwen3ForCausalLM"),
    ({"architecture": "Qwen3ForCausalLM"}, ["h100-sxm", "0.20"], "0.20 has no Qwen3ForCausalLM"),
    ({"head_size": 100}, ["a100-80"], "no multiple of 8"),
    ({"dtype": "float32"}, ["a100-80"], "compute in 16 bits"),
    ({"algorithm": "NVFP4"}, ["80"], "no engine runs NVFP4 weights there"),
    ({"architecture": "MixtralForCausalLM"}, ["cpu"], "does not run architecture: MixtralForCausalLM"),
    ({"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, ["cpu"], "does not run ranks: 2"),
]


@pytest.mark.parametrize(("changes", "against", "said"), REFUSED)
def test_what_the_target_does_not_run_is_refused(tmp_path, changes, against, said):
    (only,) = told(compare(checkpoint(tmp_path, **changes), parse_target(against)))
    assert (only[0], said in only[1]) == ("error", True), only


@pytest.mark.parametrize(
    ("changes", "against", "compared"),
    [
        ({}, ["80"], {"weights", "KV cache", "head size", "data type"}),
        ({"algorithm": "FP8", "kv_cache": "FP8"}, ["89"], {"weights", "KV cache", "head size", "data type"}),
        ({"algorithm": "FP8"}, ["1.0"], {"architecture", "head size", "data type"}),
        ({"algorithm": "NVFP4"}, ["b200"], {"weights", "KV cache", "head size", "data type"}),
        (
            {"algorithm": "W4A8_AWQ"},
            ["cpu"],
            {"architecture", "rotary scaling", "ranks", "weights (w4a8-awq)", "KV cache"},
        ),
    ],
)
def test_what_was_compared_is_told(tmp_path, changes, against, compared):
    found = compare(checkpoint(tmp_path, **changes), parse_target(against))
    assert (told(found), set(found.compared)) == ([], compared)


@pytest.mark.parametrize("algorithm", ["W8A16_GPTQ", "W4A8_QSERVE_PER_GROUP", "W8A8_SQ_NONSENSE"])
def test_a_format_that_no_table_has_is_a_warning(tmp_path, algorithm):
    found = compare(checkpoint(tmp_path, algorithm), parse_target(["b200"]))
    ((severity, message),) = told(found)
    assert (severity, f"nothing is known of {algorithm}" in message) == ("warning", True)
    assert "weights" not in found.compared


def test_each_layer_of_a_mixed_checkpoint_is_judged(tmp_path):
    folder, a100 = checkpoint(tmp_path, "MIXED_PRECISION"), parse_target(["a100-80"])
    assert told(compare(folder, a100))[0][0] == "error"
    layers = {"a": {"quant_algo": "W4A16_AWQ"}, "b": {"quant_algo": "FP8"}}
    (folder / "quant_cfg.json").write_text(json.dumps({"quantized_layers": layers}))
    assert [message for _, message in told(compare(folder, a100)) if "no FP8 before" in message]
    assert told(compare(folder, parse_target(["h100-sxm"]))) == []


@pytest.mark.parametrize(
    ("block", "against", "said"),
    [
        ({"quant_method": "fp8", "activation_scheme": "static"}, "a100-80", "no FP8 before"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": False},
            "b200",
            "not compared|raises",
        ),
        ({"quant_method": "bitsandbytes"}, "b200", "not compared"),
        (None, "a100-80", ""),
    ],
)
def test_a_source_s_own_format_is_compared(tiny_llama, block, against, said):  # noqa: F811
    folder = tiny_llama()
    if block:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": block}))
    messages = [message for _, message in told(compare(folder, parse_target([against])))]
    assert any(re.search(said, each) for each in messages) or not said, messages


PLANNED = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gemma-3-1b"]),
        "weights": st.sampled_from(sorted(WEIGHTS)),
        "kv_cache": st.sampled_from(sorted(KV_CACHE)),
        "gpu": st.sampled_from(["a100-80", "l40s", "h200", "b200", "rtx-pro-6000"]),
        "line": st.sampled_from(LINES),
    }
)
MODELS = Path(__file__).parents[1] / "plan" / "models"


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=PLANNED)
def test_verification_and_plan_are_of_one_opinion(tmp_path, case):
    model, _ = parse_hf_config(json.loads((MODELS / f"{case['name']}.json").read_text()), file="config.json")
    formats = {"weights": case["weights"], "kv_cache": case["kv_cache"]}
    engine = {"backend": "tensorrt", "gpu": case["gpu"], "trtllm": case["line"], "tensor_parallel": 2}
    limits = {"max_batch_size": 1, "max_seq_len": 512, "max_num_tokens": 512}
    contract = {
        "name": "x", "model": {"source": "m", "dtype": "bfloat16"}, "quantization": formats,
        "engine": engine | {"limits": limits}, "classes": {"only": {"priority": 1, "ttft_ms": 20000}},
    }  # fmt: skip
    try:
        make_plan(Contract.model_validate(contract), model, Machine(cores=2, memory_bytes=8 * 10**9))
        keys = set()
    except ContractError as error:
        keys = {each.key for each in error.problems}
    algorithm, kv_cache = WEIGHTS[case["weights"]].quant_algo, KV_CACHE[case["kv_cache"]]
    sizes = {"architecture": model.architecture, "head_size": model.head_size}
    found = compare(
        checkpoint(tmp_path, algorithm, kv_cache, **sizes), parse_target([case["gpu"], case["line"]])
    )
    refused = {each.key for each in found.problems if each.severity is Severity.ERROR}
    assert ("quantization.weights" in keys) == ("quantization.quant_algo" in refused)
    assert ("quantization.kv_cache" in keys) == ("quantization.kv_cache_quant_algo" in refused)
    assert ("engine.trtllm" in keys) == ("architecture" in refused)


def test_a_checkpoint_is_compared_with_what_the_gpu_runs(trtkit, tiny_llama, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    trtkit("convert", tiny_llama(), "-o", out)
    code, told, _ = trtkit("verify", out, "--against", "a100-80")
    assert (code, "for A100" in told, "compared: weights, KV cache" in told) == (0, True, True)
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
