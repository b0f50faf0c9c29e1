"""What the description of a quantized source says that engines do not have is refused by name."""

from __future__ import annotations

import json

import pytest

from tests.checkpoint import quantized_model as model
from tests.checkpoint.quantized_model import (
    AWQ,
    DYNAMIC8,
    FBGEMM,
    FLOAT8,
    FLOAT8_ROWS,
    GPTQ,
    INT4,
    INT8_ROWS,
    MODELOPT,
    MODELOPT_INT4,
    TOKEN,
    compressed,
)
from tests.checkpoint.takeover import stored, write
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.forms.taken_over import take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.errors import ContractError, InputError
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.plan.types import QuantPlan

CT_FP8 = model.FORMATS["ct-fp8"].block
FP8 = {"quant_method": "fp8", "activation_scheme": "static"}
OF_GPTQ = [
    ({"desc_act": True}, "desc_act is true"),
    ({"bits": 3}, "bits is 3"),
    ({"bits": 8}, "bits is 8"),
    ({"bits": True}, "bits is True"),
    ({"group_size": -1}, "group_size is -1"),
    ({"group_size": 32}, "group_size is 32"),
    ({"group_size": 256}, "group_size is 256"),
    ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
    ({"is_marlin_format": True}, "is_marlin_format"),
    ({"lm_head": True}, "lm_head is True"),
    ({"dynamic": {"-:.*down.*": {}}}, "dynamic"),
    ({"sym": "yes"}, "sym is 'yes'"),
    ({"format": "gptq_v2", "checkpoint_format": "gptq"}, "contradicts format 'gptq_v2'"),
    ({"format": "bitblas"}, "format is 'bitblas'"),
    ({"rotation": "hadamard"}, "rotation is 'hadamard'"),
]
OF_AWQ = [
    ({"bits": 8}, "bits is 8"),
    ({"version": "gemv"}, "version is 'gemv'"),
    ({"zero_point": False}, "zero_point is false"),
    ({"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
    ({"format": "marlin"}, "format is 'marlin'"),
    ({"checkpoint_format": "gemv"}, "checkpoint_format is 'gemv'"),
    ({"desc_act": True}, "desc_act is true"),
]
OF_COMPRESSED_FP8 = [
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    ({"transform_config": {"config_groups": {}}}, "transform_config"),
    ({"kv_cache_scheme": FLOAT8 | {"type": "int"}}, "kv_cache_scheme: type is 'int'"),
    ({"kv_cache_scheme": FLOAT8 | {"dynamic": True}}, "kv_cache_scheme: dynamic is True"),
    ({"config_groups": {"a": {}, "b": {}}}, "2 groups"),
    ({"ignore": ["re:("]}, "malformed regular expression"),
    ({"ignore": ["re:(\\w+\\.?)+X"]}, "may take forever"),
]
OF_PACKED_WEIGHTS = [
    ({"actorder": "group"}, "actorder is 'group'"),
    ({"actorder": "dynamic"}, "actorder is 'dynamic'"),
    ({"actorder": [None]}, "actorder is [None]"),
    ({"actorder": {}}, "actorder is {}"),
    ({"num_bits": 2}, "int 2"),
    ({"num_bits": "4"}, "int '4'"),
    ({"num_bits": [4]}, "weights are int [4]"),
    ({"num_bits": {}}, "weights are int {}"),
    ({"type": ["int"]}, "weights are ['int']"),
    ({"type": {}}, "weights are {}"),
    ({"strategy": "channel"}, "strategy is 'channel'"),
    ({"group_size": 32}, "group_size is 32"),
    ({"dynamic": True}, "dynamic is True"),
]
OF_FLOAT8_WEIGHTS = [
    ({"strategy": "block"}, "strategy is 'block'"),
    ({"dynamic": True}, "weights: dynamic"),
    ({"group_size": 128}, "group_size is 128"),
    ({"group_size": -1}, "group_size is -1"),
]
OF_DYNAMIC_INPUTS = [
    ({"num_bits": 4}, "input_activations: "),
    ({"type": "int"}, "input_activations: "),
    ({"type": None}, "input_activations: "),
    ({"group_size": 128}, "input_activations: "),
]
OF_MODELOPT = [
    ({"quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'"),
    ({"quant_algo": "MIXED_PRECISION"}, "quant_algo is 'MIXED_PRECISION'"),
    ({"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo is 'NVFP4'"),
    ({"kv_cache_quant_algo": ["FP8"]}, "kv_cache_quant_algo is ['FP8']"),
]
OF_MODELOPT_INT4 = [
    ({"group_size": None}, "group_size is None"),
    (
        {"group_size": None, "config_groups": {"a": {"weights": {"group_size": {}}}}},
        "group_size is {}",
    ),
    ({"has_zero_point": True}, "has_zero_point is True"),
]
OF_FP8 = [
    (
        {"activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "blocks of [128, 128]",
    ),
    ({"activation_scheme": "dynamic"}, "activation_scheme is 'dynamic'"),
    ({"kv_cache_scheme": {}}, "kv_cache_scheme is {}"),
]
CHANGES = [
    (GPTQ, OF_GPTQ),
    (AWQ, OF_AWQ),
    (CT_FP8, OF_COMPRESSED_FP8),
    (MODELOPT, OF_MODELOPT),
    (MODELOPT_INT4, OF_MODELOPT_INT4),
    (FP8, OF_FP8),
    (FBGEMM, [({"activation_scale_ub": 0}, "activation_scale_ub is 0")]),
]
PAIRS = [
    ("marlin-24", INT4, None, "format is 'marlin-24'"),
    ("pack-quantized", INT4, TOKEN, "activations are quantized too"),
    ("float-quantized", FLOAT8_ROWS, FLOAT8, "no such mix"),
    ("float-quantized", FLOAT8, None, "activations are not quantized"),
    ("float-quantized", FLOAT8, {}, "input_activations: type is 'int'"),
    ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}, None, "float 4"),
    ("int-quantized", INT8_ROWS, INT8_ROWS, "static scales"),
    ("int-quantized", INT8_ROWS | {"symmetric": False}, TOKEN, "symmetric is False"),
    ("int-quantized", INT8_ROWS, DYNAMIC8, "input_activations: type is 'float'"),
    *(("pack-quantized", INT4 | change, None, reason) for change, reason in OF_PACKED_WEIGHTS),
    *(("float-quantized", FLOAT8 | change, FLOAT8, reason) for change, reason in OF_FLOAT8_WEIGHTS),
    *(("float-quantized", FLOAT8_ROWS, DYNAMIC8 | change, reason) for change, reason in OF_DYNAMIC_INPUTS),
]
"""Forms of compressed-tensors: weights and inputs that do not go together, or not with it."""
REFUSED = [
    *((block | change, reason) for block, changes in CHANGES for change, reason in changes),
    *((compressed(*pair), reason) for *pair, reason in PAIRS),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantized by 'bitsandbytes'"),
    ({"quant_method": ["gptq"]}, "quantized by ['gptq']"),
]


@pytest.mark.parametrize(("block", "reason"), REFUSED)
def test_what_engines_do_not_have_is_named(block, reason):
    with pytest.raises(ContractError) as caught:
        stored(block)
    assert "fix: " in str(caught.value)
    assert reason in str(caught.value)


def test_two_descriptions_have_to_agree(tmp_path):
    folder = write(tmp_path, "modelopt-fp8-kv")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    path.write_text(json.dumps(config | {"quantization_config": block | {"kv_cache_scheme": scheme}}))
    assert HfCheckpoint.open(folder).storage.kv_cache == "fp8"
    path.write_text(json.dumps(config | {"quantization_config": block}))
    with pytest.raises(ContractError, match=r"hf_quant_config.json: contradicts quantization_config"):
        HfCheckpoint.open(folder)


@pytest.mark.parametrize(
    ("form", "name", "content", "reason"),
    [
        ("gptq-sym", "quantize_config.json", {"bits": 8, "group_size": 64}, "bits is 8"),
        (
            "gptq-sym",
            "quantize_config.json",
            {"bits": 4, "group_size": 64, "sym": False},
            "contradicts quant",
        ),
        ("gptq-v2", "quantize_config.json", {"bits": 4, "group_size": 64, "sym": False}, "zero_offset=1"),
        ("awq", "quant_config.json", {"w_bit": 4, "q_group_size": 128, "version": "GEMM"}, "groups of 128"),
        (
            None,
            "quant_config.json",
            {"w_bit": 4, "q_group_size": 128},
            "quantized by awq, and config.json does not",
        ),
    ],
)
def test_a_description_beside_config_json_counts(tmp_path, form, name, content, reason):
    folder = write(tmp_path, form or "awq")
    if form is None:
        (folder / "config.json").write_text(json.dumps(model.CONFIG))
    (folder / name).write_text(json.dumps({"version": "4.1.0", "damp": 0.1}))
    assert form is None or HfCheckpoint.open(folder).storage
    (folder / name).write_text(json.dumps(content))
    with pytest.raises(ContractError) as caught:
        HfCheckpoint.open(folder)
    assert f"{name}: " in str(caught.value)
    assert reason in str(caught.value)


def test_keys_that_nobody_knows_are_told():
    group = {"weights": FLOAT8 | {"twist": 3, "scale_dtype": None}, "input_activations": FLOAT8}
    blocks = {
        "rotated": GPTQ | {"rotated": True, "damp_percent": 0.1, "other": None},
        "config_groups.a.weights.twist": CT_FP8 | {"config_groups": {"a": group}},
    }
    for key, block in blocks.items():
        assert stored(block).unknown == (key,)
        assert f"{key} is not known" in take_over(stored(block)).warnings([], "float16")[0].message
    assert not any(
        stored(form.block).unknown for form in model.FORMATS.values() if "quant_method" in form.block
    )


def test_a_regular_expression_ignores_what_it_matches():
    skips = stored(
        CT_FP8 | {"ignore": ["re:.*lm_head", "re:model\\.layers\\.0\\..*", "model.layers.1.mlp.up_proj"]}
    ).skips
    assert skips("model.layers.0.mlp.up_proj")
    assert skips("model.layers.1.mlp.up_proj")
    assert not skips("model.layers.10.mlp.up_proj")


def test_modelopt_excludes_modules_with_all_below_them():
    skips = stored(MODELOPT | {"exclude_modules": ["lm_head", "model.layers.0*", "*.layers.1.mlp"]}).skips
    assert skips("model.layers.0.mlp.up_proj")
    assert skips("model.layers.1.mlp.up_proj")
    assert not skips("model.layers.1.self_attn.q_proj")


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"weights": "none"}, "'none' is asked for, and the source has 'int4-gptq' (GPTQ)"),
        ({"weights": "fp8"}, "'fp8' is asked for"),
        ({"kv_cache": "fp8"}, "of scales for the KV cache the source has none"),
        ({"target_sm": 100}, "SM 100 is not known"),
        ({"target_sm": 70}, "SM 70 is not known"),
        ({"target_sm": 90}, "SM 90 is not known but for TensorRT-LLM 0.17"),
        ({"target_sm": 90, "trtllm_version": "0.18.0"}, "SM 90 is not known but for TensorRT-LLM 0.17"),
        ({"trtllm_version": "0.17.0"}, "fits every version too"),
    ],
)
def test_other_formats_than_the_sources_are_refused(wishes, message):
    with pytest.raises(ContractError) as caught:
        take_over(stored(GPTQ), **wishes)
    assert message in str(caught.value)


def test_a_gpu_is_named_for_int4_only_and_has_to_be_for_asymmetric_weights():
    with pytest.raises(ContractError, match="no layout that depends on the GPU"):
        take_over(stored(model.FORMATS["ct-int8"].block), target_sm=80)
    with pytest.raises(ContractError, match="one GPU family only"):
        take_over(stored(model.FORMATS["ct-int4-asym"].block))


def test_quantized_weights_are_never_taken_for_plain_ones(tmp_path):
    recipe = Plain(QuantPlan("none", "auto", None, None))
    source = HfCheckpoint.open(write(tmp_path, "fbgemm"))
    with pytest.raises(ContractError, match="is quantized already"):
        convert(source, tmp_path / "out", dtype="float16", recipe=recipe)


def test_the_source_chooses_the_recipe(tmp_path):
    source = HfCheckpoint.open(write(tmp_path, "ct-fp8"))
    both = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert choose_recipe(source, ConvertOptions()).quantization == both
    with pytest.raises(InputError, match="nothing would use alpha"):
        choose_recipe(source, ConvertOptions(alpha=0.7))


def test_what_was_not_run_on_a_gpu_is_said():
    recipe = take_over(stored(AWQ))
    assert "has not been run on a GPU" in recipe.warnings([], "float16")[0].message
    assert not take_over(stored(GPTQ)).warnings([], "float16")
