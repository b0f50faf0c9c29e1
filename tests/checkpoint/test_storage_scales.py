"""Scales that are absent, doubled, of another type or no numbers are named, in sources and in checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.checkpoint import quantized_model as model
from tests.checkpoint.takeover import attempt, failure, write
from trtkit.checkpoint.trtllm import verify


def test_a_kv_cache_in_the_models_type_leaves_the_scales_of_another_out(tmp_path):
    out = attempt(write(tmp_path, "ct-fp8"), kv_cache="auto")
    assert verify(out) == []
    assert json.loads((out / "config.json").read_text())["quantization"]["kv_cache_quant_algo"] is None
    assert not any("kv_cache" in name for name in model.load(out / "rank0.safetensors"))


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

    folder = write(tmp_path, form, edit)
    if value == -1 and "fp8" not in form and form not in ("fbgemm", "ct-int8"):
        # A negative scale per group is how some tools use all 16 codes; the kernel only multiplies.
        attempt(folder)
    else:
        assert f"{name} holds {value:g}" in failure(folder)


def test_fp8_layers_that_share_a_scale_keep_their_numbers(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.self_attn.k_proj.weight_scale"][...] = 1e6

    message = failure(write(tmp_path, "ct-fp8", edit))
    assert "model.layers.1.self_attn.q_proj.weight_scale is" in message
    assert "one scale of 1e+06" in message or "one scale of 999424" in message


def test_a_nan_among_fp8_weights_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"].view(np.uint8)[5, 5] = 0xFF

    for form in ("ct-fp8", "fbgemm"):
        folder = write(tmp_path / form, form, edit)
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

    message = failure(write(tmp_path, form, edit))
    assert f"{name}: the tensor is missing" in message


def test_a_scale_under_two_names_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.0.self_attn.k_proj.k_scale"] = np.float32([1])

    message = failure(write(tmp_path, "ct-fp8", edit))
    assert "model.layers.0.self_attn.k_proj.k_scale: is there under another name too" in message


def test_scales_of_the_kv_cache_that_config_json_does_not_know_are_refused(tmp_path):
    form = model.FORMATS["ct-fp8"]
    form = replace(form, block=form.block | {"kv_cache_scheme": None})
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

    message = failure(write(tmp_path, form, edit))
    assert f"model.layers.1.{name}: is {np.dtype(dtype).name}" in message


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
    path = attempt(write(tmp_path, form)) / "rank0.safetensors"
    key = f"transformer.layers.1.{name}"
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
