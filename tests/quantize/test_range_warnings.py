"""Ranges that can be honoured and should not be believed, and caches whose one scale wastes a side."""

from __future__ import annotations

import numpy as np
import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.quantize.conftest import SIZES, record
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.range_warnings import range_warnings

FIRST = "model.layers.0.mlp.down_proj|x"


@pytest.fixture
def told(tiny_llama, tmp_path):  # noqa: F811
    """Return what is said of ranges that follow from the weights, once something was done to them."""
    model = tiny_llama(dtype=np.float32, num_hidden_layers=4, **SIZES)

    def run(edit, weights="fp8", kv_cache="auto", exclude=None) -> str:
        def as_run(ranges):
            for name in [name for name in ranges if name.endswith("|y")]:
                stem = name[:-1]
                ranges[name] = (ranges[stem + "w"] * np.linalg.norm(ranges[stem + "x"])).astype(np.float32)
            edit(ranges)

        path = record(model, tmp_path / "ranges.safetensors", as_run)
        source = HfCheckpoint.open(model)
        plan = quant_plan(weights, kv_cache, exclude=exclude)
        return " ".join(map(str, range_warnings(source, plan, path, "bfloat16")))

    return run


def scaled(part: str, factor: float):
    def edit(ranges):
        for name in ranges:
            if part in name:
                ranges[name] = np.asarray(ranges[name] * factor, np.float32)

    return edit


def test_nothing_is_said_of_ranges_that_follow_from_the_weights(told):
    assert told(lambda _: None) == ""
    assert told(lambda _: None, kv_cache="int8") == ""


@pytest.mark.parametrize(
    ("part", "factor", "said"),
    [
        (FIRST, 1e30, "no model is known to have such inputs: transformer.layers.0.mlp.proj"),
        (FIRST, 40, "layers.0.mlp.proj 40 times"),
        ("|x", 1e-3, "larger than inputs and weights can make them"),
    ],
)
def test_inputs_that_cannot_be_are_told_by_layer(told, part, factor, said):
    assert said in told(scaled(part, factor))
    assert said not in told(scaled(part, factor), weights="int8-wo", kv_cache="int8")


@pytest.mark.parametrize("factor", [0, 1e30, np.nan, None])
def test_of_layers_that_stay_plain_nothing_is_said(told, factor):
    parts = [f"layers.{layer}.mlp" for layer in range(3)]
    plain = ("lm_head", *(f"transformer.{each}*" for each in parts))

    def edit(ranges):
        for name in [name for name in ranges if any(part in name for part in parts)]:
            if factor is None:
                del ranges[name]
            else:
                ranges[name] = np.asarray(ranges[name] * np.float32(factor))

    assert told(edit, exclude=plain) == ""


def test_a_head_that_is_quantized_is_looked_at_too(told):
    def edit(ranges):
        ranges["lm_head|x"] = np.full(128, 1e30, np.float32)

    assert "no model is known to have such inputs: lm_head" in told(edit, exclude=())


def test_ranges_without_weights_cannot_be_compared(told):
    def forget(ranges):
        for name in [name for name in ranges if name.endswith("|w")]:
            del ranges[name]

    assert "nobody can tell whether the ranges are of this model" in told(forget)


def test_a_side_of_the_cache_with_few_steps_is_told_by_layer(told):
    uneven = scaled("layers.2.self_attn.v_proj|y", 0.01)
    said = told(uneven, "none", "int8")
    assert "leaves V few of 127 steps: layer 2 " in said
    assert "leaves K" not in said


def test_a_cache_that_is_near_the_end_of_fp8_is_told_by_layer(told):
    small, large = scaled("|y", 0.01), scaled("layers.3.self_attn.k_proj|y", 60)
    assert told(small, "none", "fp8") == ""
    said = told(lambda ranges: (small(ranges), large(ranges)), "none", "fp8")
    assert "more than half of what FP8 holds: layer 3 " in said
