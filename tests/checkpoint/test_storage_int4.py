"""Tensors of INT4 sources that contradict their description, or that no engine can have, are refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.checkpoint import quantized_model as model
from tests.checkpoint.takeover import attempt, failure, write
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.trtllm import verify


def test_scales_of_activations_are_not_lost_in_a_layout_without_them(tmp_path):
    def edit(tensors):
        for layer in range(2):
            tensors[f"model.layers.{layer}.mlp.down_proj.pre_quant_scale"] = np.full(512, 2, np.float16)

    folder = write(tmp_path, "modelopt-int4", edit)
    assert "down_proj.pre_quant_scale: W4A16_GPTQ layers do not" in failure(folder, target_sm=80)
    attempt(folder)


def test_q_k_and_v_have_to_want_the_same_scale_of_activations(tmp_path):
    def edit(tensors):
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.q_proj.pre_quant_scale"] = np.full(256, 2, np.float16)

    folder = write(tmp_path, "modelopt-int4", edit)
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
    form = replace(form, block=form.block | {"pre_quant_scale": flag})
    assert message in failure(model.write(tmp_path / "hf", form, edit=edit).folder)


def test_columns_grouped_by_activation_are_found_in_the_tensors_too(tmp_path):
    def edit(tensors):
        groups = tensors["model.layers.1.mlp.down_proj.g_idx"]
        groups[[0, -1]] = groups[[-1, 0]]

    message = failure(write(tmp_path, "gptq-sym", edit))
    assert "model.layers.1.mlp.down_proj.g_idx orders columns by activation" in message


def test_weights_that_are_called_symmetric_have_to_be(tmp_path):
    form = model.Format(model.GPTQ, model.FORMATS["gptq-asym"].layer)
    folder = model.write(tmp_path / "hf", form).folder
    for target_sm in (None, 80):
        assert "symmetric, and model.layers.0" in failure(folder, target_sm=target_sm)


def test_a_zero_point_that_tools_read_differently_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.0.mlp.up_proj.qzeros"][0, 0] = -1

    message = failure(write(tmp_path, "gptq-asym", edit))
    assert "model.layers.0.mlp.up_proj.qzeros holds 15" in message


def test_a_shape_that_contradicts_the_packed_weights_is_refused(tmp_path):
    def edit(tensors):
        tensors["model.layers.1.mlp.up_proj.weight_shape"][1] = 255

    message = failure(write(tmp_path, "ct-int4", edit))
    assert "model.layers.1.mlp.up_proj.weight_shape says [512, 255]" in message


def test_biases_that_nothing_uses_may_only_be_zero(tmp_path):
    def zero(tensors):
        for name in [name for name in tensors if name.endswith(".qweight")]:
            module = name.removesuffix(".qweight")
            tensors[f"{module}.bias"] = np.zeros(tensors[name].shape[1], np.float16)

    assert verify(attempt(write(tmp_path / "zero", "gptq-sym", zero))) == []

    def other(tensors):
        zero(tensors)
        tensors["model.layers.1.mlp.up_proj.bias"][3] = 0.5

    message = failure(write(tmp_path / "other", "gptq-sym", other))
    assert "model.layers.1.mlp.up_proj.bias: holds other values than zero" in message


@pytest.mark.parametrize("value", [1e-9, 1e9])
@pytest.mark.parametrize(
    ("part", "target_sm"), [("weight_scale", None), ("weight_scale", 80), ("pre_quant_scale", None)]
)
def test_a_scale_that_the_data_type_cannot_hold_is_never_written(tmp_path, part, target_sm, value):
    def edit(tensors):
        for layer in range(2):
            name = f"model.layers.{layer}.mlp.down_proj.{part}"
            tensors.setdefault(name, np.ones(512, np.float32)).reshape(-1)[3] = value

    folder = write(tmp_path, "modelopt-int4", edit)
    message = failure(folder, target_sm=target_sm)
    assert f"a scale of model.layers.0.mlp.down_proj.weight holds {value:g}" in message
    attempt(folder, target_sm=target_sm, dtype="bfloat16")


@pytest.mark.parametrize("form", ["gptq-sym", "ct-int4", "modelopt-int4", "awq"])
def test_sides_that_the_ranks_cannot_share_are_refused(tmp_path, form):
    message = failure(write(tmp_path, form), ranks=Parallelism(tp=8))
    assert "multiples of 512, the layer is 256 x 256" in message
    assert "numbers of ranks that fit: 1, 2, 4\n" in message


def test_larger_groups_need_larger_sides(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "GROUP", 128)
    form = model.Format(model.GPTQ | {"group_size": 128}, model.FORMATS["gptq-sym"].layer)
    folder = model.write(tmp_path / "hf", form).folder
    assert "groups of 128 needs both sides to be multiples of 512" in failure(folder, ranks=Parallelism(tp=4))
    assert verify(attempt(folder)) == []


@pytest.mark.parametrize("form", ["gptq-sym", "modelopt-int4"])
def test_int4_engines_are_not_of_float32(tmp_path, form):
    assert "16 bits, not in float32" in failure(write(tmp_path, form), dtype="float32")
