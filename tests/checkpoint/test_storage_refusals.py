"""What cannot be honoured of a quantized source is refused by name, before anything is written."""

from __future__ import annotations

import dataclasses
import json

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint import quantized_model as model
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.forms.taken_over import take_over
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.storage import find_storage
from trtkit.checkpoint.trtllm import verify
from trtkit.errors import ContractError, InputError
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.plan.types import QuantPlan


def stored(block: dict, key: str = "quantization_config"):
    return find_storage({key: block}, None, file="config.json")


def refusal(block: dict) -> str:
    with pytest.raises(ContractError) as caught:
        stored(block)
    assert "fix: " in str(caught.value)
    return str(caught.value)


def attempt(folder, *, ranks=ONE_RANK, dtype="float16", **wishes) -> None:
    source = HfCheckpoint.open(folder)
    recipe = take_over(source.storage, **wishes)
    convert(source, folder.with_name("out"), dtype=dtype, recipe=recipe, parallelism=ranks)


def failure(folder, **options) -> str:
    with pytest.raises(InputError) as caught:
        attempt(folder, **options)
    assert not folder.with_name("out").exists()
    return str(caught.value)


CT_FP8 = model.FORMATS["ct-fp8"].block
CT_INT8 = model.FORMATS["ct-int8"].block


def compressed_int4(**changes) -> dict:
    return model.compressed("pack-quantized", model.INT4 | changes)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (model.GPTQ | {"desc_act": True}, "desc_act is true"),
        (model.GPTQ | {"bits": 3}, "bits is 3"),
        (model.GPTQ | {"bits": 8}, "bits is 8"),
        (model.GPTQ | {"bits": True}, "bits is True"),
        (model.GPTQ | {"group_size": -1}, "group_size is -1"),
        (model.GPTQ | {"group_size": 32}, "group_size is 32"),
        (model.GPTQ | {"group_size": 256}, "group_size is 256"),
        (model.GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        (model.GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
        (model.GPTQ | {"lm_head": True}, "lm_head is True"),
        (model.GPTQ | {"dynamic": {"-:.*down.*": {}}}, "dynamic"),
        (model.GPTQ | {"sym": "yes"}, "sym is 'yes'"),
        (model.AWQ | {"bits": 8}, "bits is 8"),
        (model.AWQ | {"version": "gemv"}, "version is 'gemv'"),
        (model.AWQ | {"zero_point": False}, "zero_point is false"),
        (model.AWQ | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert is 'lm_head'"),
        (compressed_int4(actorder="group"), "actorder is 'group'"),
        (compressed_int4(actorder="dynamic"), "actorder is 'dynamic'"),
        (compressed_int4(num_bits=2), "int 2"),
        (compressed_int4(strategy="channel"), "strategy is 'channel'"),
        (compressed_int4(group_size=32), "group_size is 32"),
        (model.compressed("marlin-24", model.INT4), "format is 'marlin-24'"),
        (model.compressed("pack-quantized", model.INT4, model.TOKEN), "activations are quantized too"),
        (CT_FP8 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (CT_FP8 | {"transform_config": {"config_groups": {}}}, "transform_config"),
        (CT_FP8 | {"kv_cache_scheme": model.FLOAT8 | {"type": "int"}}, "kv_cache_scheme: type is 'int'"),
        (CT_FP8 | {"kv_cache_scheme": model.FLOAT8 | {"dynamic": True}}, "kv_cache_scheme: dynamic is True"),
        (CT_FP8 | {"config_groups": {"a": {}, "b": {}}}, "2 groups"),
        (CT_FP8 | {"ignore": ["re:("]}, "malformed regular expression"),
        (CT_FP8 | {"ignore": ["re:(\\w+\\.?)+X"]}, "may take forever"),
        (model.compressed("float-quantized", model.FLOAT8 | {"strategy": "block"}), "strategy is 'block'"),
        (model.compressed("float-quantized", model.FLOAT8_ROWS, model.FLOAT8), "no such mix"),
        (model.compressed("float-quantized", model.FLOAT8, None), "activations are not quantized"),
        (model.compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}), "float 4"),
        (model.compressed("int-quantized", model.INT8_ROWS, model.INT8_ROWS), "static scales"),
        (
            model.compressed("int-quantized", model.INT8_ROWS | {"symmetric": False}, model.TOKEN),
            "symmetric is False",
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
            "blocks of [128, 128]",
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "activation_scheme is 'dynamic'"),
        (model.MODELOPT | {"quant_algo": "NVFP4"}, "quant_algo is 'NVFP4'"),
        (model.MODELOPT | {"quant_algo": "MIXED_PRECISION"}, "quant_algo is 'MIXED_PRECISION'"),
        (model.MODELOPT | {"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo is 'NVFP4'"),
        (model.MODELOPT_INT4 | {"group_size": None}, "group_size is None"),
        (model.MODELOPT_INT4 | {"has_zero_point": True}, "has_zero_point is True"),
        *((compressed_int4(type=value), f"weights are {value}") for value in (["int"], {})),
        *((compressed_int4(num_bits=value), f"weights are int {value}") for value in ([4], {})),
        *((compressed_int4(actorder=value), f"actorder is {value}") for value in ([None], {})),
        (compressed_int4(dynamic=True), "dynamic is True"),
        (compressed_int4(num_bits="4"), "int '4'"),
        *(
            (
                model.compressed("float-quantized", model.FLOAT8_ROWS, model.DYNAMIC8 | change),
                "input_activations: ",
            )
            for change in ({"num_bits": 4}, {"type": "int"}, {"type": None}, {"group_size": 128})
        ),
        (model.compressed("float-quantized", model.FLOAT8, {}), "input_activations: type is 'int'"),
        (
            model.compressed("float-quantized", model.FLOAT8 | {"dynamic": True}, model.FLOAT8),
            "weights: dynamic",
        ),
        (
            model.compressed("float-quantized", model.FLOAT8 | {"group_size": 128}, model.FLOAT8),
            "group_size is 128",
        ),
        (
            model.compressed("float-quantized", model.FLOAT8 | {"group_size": -1}, model.FLOAT8),
            "group_size is -1",
        ),
        (
            model.compressed("int-quantized", model.INT8_ROWS, model.DYNAMIC8),
            "input_activations: type is 'float'",
        ),
        (model.MODELOPT | {"kv_cache_quant_algo": ["FP8"]}, "kv_cache_quant_algo is ['FP8']"),
        (
            model.MODELOPT_INT4
            | {"group_size": None, "config_groups": {"a": {"weights": {"group_size": {}}}}},
            "group_size is {}",
        ),
        (model.GPTQ | {"format": "gptq_v2", "checkpoint_format": "gptq"}, "contradicts format 'gptq_v2'"),
        (model.GPTQ | {"format": "bitblas"}, "format is 'bitblas'"),
        (model.GPTQ | {"rotation": "hadamard"}, "rotation is 'hadamard'"),
        (model.AWQ | {"format": "marlin"}, "format is 'marlin'"),
        (model.AWQ | {"checkpoint_format": "gemv"}, "checkpoint_format is 'gemv'"),
        (model.AWQ | {"desc_act": True}, "desc_act is true"),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "kv_cache_scheme": {}},
            "kv_cache_scheme is {}",
        ),
        (model.FBGEMM | {"activation_scale_ub": 0}, "activation_scale_ub is 0"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantized by 'bitsandbytes'"),
        ({"quant_method": ["gptq"]}, "quantized by ['gptq']"),
    ],
)
def test_what_engines_do_not_have_is_named(block, reason):
    assert reason in refusal(block)


def test_two_descriptions_have_to_agree(tmp_path):
    source = model.write(tmp_path / "hf", model.FORMATS["modelopt-fp8-kv"])
    path = source.folder / "config.json"
    config = json.loads(path.read_text())
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}
    path.write_text(json.dumps(config | {"quantization_config": block | {"kv_cache_scheme": scheme}}))
    assert HfCheckpoint.open(source.folder).storage.kv_cache == "fp8"
    path.write_text(json.dumps(config | {"quantization_config": block}))
    with pytest.raises(ContractError, match=r"hf_quant_config.json: contradicts quantization_config"):
        HfCheckpoint.open(source.folder)


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
    folder = model.write(tmp_path / "hf", model.FORMATS[form or "awq"]).folder
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
    group = {"weights": model.FLOAT8 | {"twist": 3, "scale_dtype": None}, "input_activations": model.FLOAT8}
    blocks = {
        "rotated": model.GPTQ | {"rotated": True, "damp_percent": 0.1, "other": None},
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
    skips = stored(
        model.MODELOPT | {"exclude_modules": ["lm_head", "model.layers.0*", "*.layers.1.mlp"]}
    ).skips
    assert skips("model.layers.0.mlp.up_proj")
    assert skips("model.layers.1.mlp.up_proj")
    assert not skips("model.layers.1.self_attn.q_proj")


def test_scales_of_activations_are_not_lost_in_a_layout_without_them(tmp_path):
    def edit(tensors):
        for layer in range(2):
            tensors[f"model.layers.{layer}.mlp.down_proj.pre_quant_scale"] = np.full(512, 2, np.float16)

    folder = model.write(tmp_path / "hf", model.FORMATS["modelopt-int4"], edit=edit).folder
    assert "down_proj.pre_quant_scale: W4A16_GPTQ layers do not" in failure(folder, target_sm=80)
    attempt(folder)


def test_q_k_and_v_have_to_want_the_same_scale_of_activations(tmp_path):
    def edit(tensors):
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.q_proj.pre_quant_scale"] = np.full(256, 2, np.float16)

    folder = model.write(tmp_path / "hf", model.FORMATS["modelopt-int4"], edit=edit).folder
    assert "self_attn.k_proj.weight does not have model.layers.0.self_attn.q_proj" in failure(folder)


@pytest.mark.parametrize(
    ("flag", "layers", "message"),
    [
        (
            None,
            [1],
            "model.layers.0.mlp.down_proj.weight: has no pre_quant_scale, and the same layer elsewhere",
        ),
        (False, [0, 1], "pre_quant_scale: is false, and there are such tensors"),
        (True, [], "pre_quant_scale: is true, and no layer has such a tensor"),
    ],
)
def test_scales_of_activations_that_are_absent_or_denied_are_named(tmp_path, flag, layers, message):
    def edit(tensors):
        for layer in layers:
            tensors[f"model.layers.{layer}.mlp.down_proj.pre_quant_scale"] = np.full(512, 2, np.float16)

    form = model.FORMATS["modelopt-int4"]
    form = dataclasses.replace(form, block=form.block | {"pre_quant_scale": flag})
    assert message in failure(model.write(tmp_path / "hf", form, edit=edit).folder)


def test_a_kv_cache_in_the_models_type_leaves_the_scales_of_another_out(tmp_path):
    folder = model.write(tmp_path / "hf", model.FORMATS["ct-fp8"]).folder
    attempt(folder, kv_cache="auto")
    out = folder.with_name("out")
    assert verify(out) == []
    assert json.loads((out / "config.json").read_text())["quantization"]["kv_cache_quant_algo"] is None
    assert not any("kv_cache" in name for name in model.load(out / "rank0.safetensors"))


def test_columns_grouped_by_activation_are_found_in_the_tensors_too(tmp_path):
    def edit(tensors):
        groups = tensors["model.layers.1.mlp.down_proj.g_idx"]
        groups[[0, -1]] = groups[[-1, 0]]

    message = failure(model.write(tmp_path / "hf", model.FORMATS["gptq-sym"], edit=edit).folder)
    assert "model.layers.1.mlp.down_proj.g_idx orders columns by activation" in message


def test_weights_that_are_called_symmetric_have_to_be(tmp_path):
    form = model.Format(model.GPTQ, model.FORMATS["gptq-asym"].layer)
    folder = model.write(tmp_path / "hf", form).folder
    for target_sm in (None, 80):
        assert "symmetric, and model.layers.0" in failure(folder, target_sm=target_sm)


def test_a_zero_point_that_tools_read_differently_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.0.mlp.up_proj.qzeros"][0, 0] = -1

    message = failure(model.write(tmp_path / "hf", model.FORMATS["gptq-asym"], edit=edit).folder)
    assert "model.layers.0.mlp.up_proj.qzeros holds 15" in message


def test_a_shape_that_contradicts_the_packed_weights_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.mlp.up_proj.weight_shape"][1] = 255

    message = failure(model.write(tmp_path / "hf", model.FORMATS["ct-int4"], edit=edit).folder)
    assert "model.layers.1.mlp.up_proj.weight_shape says [512, 255]" in message


def test_biases_that_nothing_uses_may_only_be_zero(tmp_path):
    def zero(tensors):
        for name in [name for name in tensors if name.endswith(".qweight")]:
            module = name.removesuffix(".qweight")
            tensors[f"{module}.bias"] = np.zeros(tensors[name].shape[1], np.float16)

    folder = model.write(tmp_path / "zero" / "hf", model.FORMATS["gptq-sym"], edit=zero).folder
    attempt(folder)
    assert verify(folder.with_name("out")) == []

    def other(tensors):
        zero(tensors)
        tensors["model.layers.1.mlp.up_proj.bias"][3] = 0.5

    message = failure(model.write(tmp_path / "other" / "hf", model.FORMATS["gptq-sym"], edit=other).folder)
    assert "model.layers.1.mlp.up_proj.bias: holds other values than zero" in message


@pytest.mark.parametrize("value", [0, np.inf, np.nan, -1])
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ct-fp8", "model.layers.1.self_attn.k_proj.weight_scale"),
        ("ct-fp8", "model.layers.1.mlp.up_proj.input_scale"),
        ("ct-fp8", "model.layers.1.self_attn.k_scale"),
        ("fbgemm", "model.layers.0.mlp.up_proj.weight_scale"),
        ("ct-int8", "model.layers.0.mlp.up_proj.weight_scale"),
        ("ct-int4", "model.layers.0.mlp.up_proj.weight_scale"),
        ("gptq-sym", "model.layers.0.mlp.up_proj.scales"),
        ("awq", "model.layers.0.mlp.up_proj.scales"),
    ],
)
def test_a_scale_that_is_none_is_never_written(tmp_path, form, name, value):
    def edit(tensors):
        tensors[name].reshape(-1)[-1] = value

    folder = model.write(tmp_path / "hf", model.FORMATS[form], edit=edit).folder
    if value == -1 and "fp8" not in form and form not in ("fbgemm", "ct-int8"):
        # A negative scale per group is how some tools use all 16 codes; the kernel only multiplies.
        attempt(folder)
    else:
        assert f"{name} holds {value:g}" in failure(folder)


@pytest.mark.parametrize("value", [1e-9, 1e9])
@pytest.mark.parametrize(
    ("part", "target_sm"), [("weight_scale", None), ("weight_scale", 80), ("pre_quant_scale", None)]
)
def test_a_scale_that_the_data_type_cannot_hold_is_never_written(tmp_path, part, target_sm, value):
    def edit(tensors):
        for layer in range(2):
            name = f"model.layers.{layer}.mlp.down_proj.{part}"
            tensors.setdefault(name, np.ones(512, np.float32)).reshape(-1)[3] = value

    folder = model.write(tmp_path / "hf", model.FORMATS["modelopt-int4"], edit=edit).folder
    message = failure(folder, target_sm=target_sm)
    assert f"a scale of model.layers.0.mlp.down_proj.weight holds {value:g}" in message
    attempt(folder, target_sm=target_sm, dtype="bfloat16")


def test_fp8_layers_that_share_a_scale_keep_their_numbers(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.self_attn.k_proj.weight_scale"][...] = 1e6

    message = failure(model.write(tmp_path / "hf", model.FORMATS["ct-fp8"], edit=edit).folder)
    assert "model.layers.1.self_attn.q_proj.weight_scale is" in message
    assert "one scale of 1e+06" in message or "one scale of 999424" in message


def test_a_nan_among_fp8_weights_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"].view(np.uint8)[5, 5] = 0xFF

    for form in ("ct-fp8", "fbgemm"):
        folder = model.write(tmp_path / form / "hf", model.FORMATS[form], edit=edit).folder
        assert "model.layers.1.mlp.up_proj.weight holds NaN" in failure(folder)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ct-fp8", "model.layers.1.mlp.up_proj.input_scale"),
        ("ct-fp8", "model.layers.1.self_attn.k_proj.k_scale"),
        ("ct-int8", "model.layers.1.mlp.up_proj.weight_scale"),
        ("ct-int4", "model.layers.1.mlp.up_proj.weight_scale"),
        ("gptq-sym", "model.layers.1.mlp.up_proj.qzeros"),
        ("awq", "model.layers.1.mlp.up_proj.scales"),
    ],
)
def test_an_absent_scale_is_named(tmp_path, form, name):
    def edit(tensors):
        tensors.pop(name.replace("k_proj.k_scale", "k_scale"))

    message = failure(model.write(tmp_path / "hf", model.FORMATS[form], edit=edit).folder)
    assert f"{name}: the tensor is missing" in message


def test_a_scale_under_two_names_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = np.float32([1])

    message = failure(model.write(tmp_path / "hf", model.FORMATS["ct-fp8"], edit=edit).folder)
    assert "model.layers.0.self_attn.k_proj.k_scale: is there under another name too" in message


def test_scales_of_the_kv_cache_that_config_json_does_not_know_are_refused(tmp_path):
    block = CT_FP8 | {"kv_cache_scheme": None}
    form = model.Format(block, model.FORMATS["ct-fp8"].layer, kv_names=model.FORMATS["ct-fp8"].kv_names)
    message = failure(model.write(tmp_path / "hf", form).folder)
    assert "model.layers.0.self_attn.k_scale: nothing in the architecture uses this tensor" in message


@pytest.mark.parametrize(
    ("form", "name", "dtype"),
    [
        ("ct-fp8", "mlp.up_proj.weight_scale", np.int32),
        ("ct-fp8", "mlp.up_proj.weight", ml_dtypes.float8_e5m2),
        ("ct-int8", "mlp.up_proj.weight", np.uint8),
        ("gptq-sym", "mlp.up_proj.qzeros", np.float32),
    ],
)
def test_a_part_of_another_data_type_is_named(tmp_path, form, name, dtype):
    def edit(tensors):
        key = f"model.layers.1.{name}"
        tensors[key] = tensors[key].astype(np.float32).astype(dtype)

    message = failure(model.write(tmp_path / "hf", model.FORMATS[form], edit=edit).folder)
    assert f"model.layers.1.{name}: is {np.dtype(dtype).name}" in message


@pytest.mark.parametrize("form", ["gptq-sym", "ct-int4", "modelopt-int4", "awq"])
def test_sides_that_the_ranks_cannot_share_are_refused(tmp_path, form):
    folder = model.write(tmp_path / "hf", model.FORMATS[form]).folder
    message = failure(folder, ranks=Parallelism(tp=8))
    assert "multiples of 512, the layer is 256 x 256" in message
    assert "numbers of ranks that fit: 1, 2, 4\n" in message


def test_larger_groups_need_larger_sides(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "GROUP", 128)
    form = model.Format(model.GPTQ | {"group_size": 128}, model.FORMATS["gptq-sym"].layer)
    folder = model.write(tmp_path / "hf", form).folder
    assert "groups of 128 needs both sides to be multiples of 512" in failure(folder, ranks=Parallelism(tp=4))
    attempt(folder)
    assert verify(folder.with_name("out")) == []


@pytest.mark.parametrize("form", ["gptq-sym", "modelopt-int4"])
def test_int4_engines_are_not_of_float32(tmp_path, form):
    folder = model.write(tmp_path / "hf", model.FORMATS[form]).folder
    assert "16 bits, not in float32" in failure(folder, dtype="float32")


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
        take_over(stored(model.GPTQ), **wishes)
    assert message in str(caught.value)


def test_a_gpu_is_named_for_int4_only_and_has_to_be_for_asymmetric_weights():
    with pytest.raises(ContractError, match="no layout that depends on the GPU"):
        take_over(stored(CT_INT8), target_sm=80)
    with pytest.raises(ContractError, match="one GPU family only"):
        take_over(
            stored(compressed_int4(symmetric=False)),
        )


def test_quantized_weights_are_never_taken_for_plain_ones(tmp_path):
    source = HfCheckpoint.open(model.write(tmp_path / "hf", model.FORMATS["fbgemm"]).folder)
    with pytest.raises(ContractError, match="is quantized already"):
        convert(
            source, tmp_path / "out", dtype="float16", recipe=Plain(QuantPlan("none", "auto", None, None))
        )


def test_the_source_chooses_the_recipe(tmp_path):
    source = HfCheckpoint.open(model.write(tmp_path / "hf", model.FORMATS["ct-fp8"]).folder)
    assert choose_recipe(source, ConvertOptions()).quantization == {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
    }
    with pytest.raises(InputError, match="nothing would use alpha"):
        choose_recipe(source, ConvertOptions(alpha=0.7))


def test_what_was_not_run_on_a_gpu_is_said():
    recipe = take_over(
        stored(model.AWQ),
    )
    assert "has not been run on a GPU" in recipe.warnings([], "float16")[0].message
    assert not take_over(
        stored(model.GPTQ),
    ).warnings([], "float16")


# One tensor of each kind: what loaders would miss, or take for something else.
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("ct-fp8", "attention.kv_cache_scaling_factor"),
        ("ct-fp8", "mlp.fc.activation_scaling_factor"),
        ("fbgemm", "mlp.fc.per_channel_scale"),
        ("fbgemm", "input_layernorm.clamp_val"),
        ("ct-int8", "mlp.proj.smoother"),
        ("ct-int8", "post_layernorm.scale_to_int"),
        ("ct-int4", "mlp.fc.prequant_scaling_factor"),
        ("gptq-asym", "mlp.fc.zero"),
    ],
)
def test_verify_names_what_a_checkpoint_lacks(tmp_path, form, name):
    folder = model.write(tmp_path / "hf", model.FORMATS[form]).folder
    attempt(folder)
    path, key = folder.with_name("out") / "rank0.safetensors", f"transformer.layers.1.{name}"
    tensors = model.load(path)
    changes = {
        "missing": {other: value for other, value in tensors.items() if other != key},
        "none of this": {other.replace(key, f"{key}s"): value for other, value in tensors.items()},
        "data type is uint16": {**tensors, key: tensors[key].astype(np.uint16)},
        "shape is": {**tensors, key: np.concatenate([tensors[key], tensors[key]])},
    }
    for message, changed in changes.items():
        model.save(path, changed)
        found = [str(problem) for problem in verify(path.parent)]
        assert any(key in problem and message in problem for problem in found), (message, found)
        assert len(found) == (2 if message == "none of this" else 1)
