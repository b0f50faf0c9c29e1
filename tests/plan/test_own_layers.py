"""What a conversion would refuse to write for trtkit's own back ends is refused in their plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.plan.published import published
from trtkit.contract import Contract
from trtkit.plan import Machine
from trtkit.plan.preflight.layers import narrow_scales_have_16_bits, norms_quantize, sides_fill_tiles
from trtkit.plan.resolve import outline

MACHINE = Machine(cores=2, memory_bytes=64 * 10**9)
SMALL = replace(published("smollm2-135m"), intermediate_size=1504)


def found(check, model, backend="onnx", dtype="float16", **quantization):
    raw = {
        "name": "t",
        "model": {"source": "x", "dtype": dtype},
        "classes": {"only": {"priority": 1, "ttft_ms": 500}},
        "quantization": quantization,
        "engine": {"backend": backend} | ({"gpu": "rtx-pro-6000"} if backend == "rtx" else {}),
    }
    contract = Contract.model_validate(raw)
    return [problem.hint for problem in check(contract, model, outline(contract, model, MACHINE))]


@pytest.mark.parametrize("backend", ["onnx", "rtx"])
@pytest.mark.parametrize(
    ("model", "weights", "smoothquant", "way_out"),
    [
        ("qwen3-8b", "int8-sq", None, ["set quantization.smoothquant to qdq"]),
        ("gemma-3-1b", "int8-sq", "per-channel", ["set quantization.smoothquant to qdq"]),
        ("gemma-3-1b", "fp8-rowwise", None, ["use fp8"]),
        ("qwen3-8b", "int8-sq", "qdq", []),
        ("qwen2.5-7b", "int8-sq", None, []),
        ("phi-3-mini", "fp8-rowwise", None, []),
        ("phi-3-mini", "int8-sq", None, ["set quantization.smoothquant to qdq"]),
        ("gemma-2-9b", "fp8-rowwise", None, ["use fp8"]),
    ],
)
def test_forms_that_quantize_inside_of_norms_take_layers_with_just_these(
    backend, model, weights, smoothquant, way_out
):
    form = {"smoothquant": smoothquant} if smoothquant else {}
    assert found(norms_quantize, published(model), backend, weights=weights, **form) == way_out


@pytest.mark.parametrize(
    ("model", "quantization", "refused"),
    [
        (SMALL, {"weights": "int8-wo"}, True),
        (SMALL, {"weights": "fp8"}, False),
        (published("smollm2-135m"), {"weights": "int8-wo"}, False),
        (published("smollm2-135m"), {"weights": "int4-awq", "group_size": 128}, True),
        (published("smollm2-135m"), {"weights": "int4-awq", "group_size": 64}, False),
    ],
)
def test_narrow_weights_want_whole_tiles(model, quantization, refused):
    assert bool(found(sides_fill_tiles, model, **quantization)) == refused


@pytest.mark.parametrize(("weights", "refused"), [("int4-awq", True), ("int8-wo", False)])
def test_scales_of_groups_are_refused_in_float32_with_what_computes_in_it_anyway(weights, refused):
    hints = found(narrow_scales_have_16_bits, published("smollm2-135m"), dtype="float32", weights=weights)
    assert ["computes in float32 from either" in hint for hint in hints] == [True] * refused
