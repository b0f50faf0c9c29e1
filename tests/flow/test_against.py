"""Targets by their names, and checkpoints and sources that are compared with them."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.engines import PRETRAINED
from trtkit.catalog.formats import KV_CACHE, WEIGHTS
from trtkit.catalog.trtllm import LINES
from trtkit.contract.models import Contract
from trtkit.errors import ContractError, InputError, Severity
from trtkit.flow.against import Target, compare, parse_target
from trtkit.plan import Machine, make_plan
from trtkit.plan.hf_config import parse_hf_config


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


@pytest.mark.parametrize("name", ["tensorrt=10.14", "tensorrt=10", "driver=590", "driver=new", "tensorrt="])
def test_software_without_its_full_version_is_refused(name):
    with pytest.raises(InputError, match=f"--against {name}"):
        parse_target([name])


def test_an_image_whose_release_is_not_known_names_the_line_alone():
    assert parse_target(["25.05"]) == Target(line="0.19", tensorrt="10.9.0")
    assert parse_target([f"26.07@sha256:{'a' * 64}"]).image_digest == f"sha256:{'a' * 64}"


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
