"""Formats of single layers: what they weigh, and what of them is refused before anything is made."""

from __future__ import annotations

import math

import pytest

from tests.plan.published import published
from trtkit.catalog.formats import WEIGHTS
from trtkit.contract.formats import WeightFormat
from trtkit.plan.checks import CHECKS
from trtkit.plan.layers import layer_formats
from trtkit.plan.memory import weights_bytes
from trtkit.plan.resolve import outline, quant_plan

BY_NAME = {check.name: check for check in CHECKS}
MODEL = published("llama-3.1-8b")
MLP = 3 * MODEL.hidden_size * MODEL.intermediate_size
HEAD = MODEL.hidden_size * MODEL.vocab_size
FIRST = "transformer.layers.0.mlp*"


def weigh(weights, **patterns) -> int:
    layers = layer_formats(MODEL, quant_plan(weights, **patterns))
    return weights_bytes(MODEL, WEIGHTS[weights], "bfloat16", layers=layers)


def test_each_layer_is_counted_in_its_own_format():
    fp8 = weights_bytes(MODEL, WEIGHTS["fp8"], "bfloat16")
    assert weigh("fp8", exclude=("lm_head", FIRST)) == fp8 + MLP
    assert weigh("fp8", exclude=()) == fp8 - HEAD
    int4 = weigh("fp8", overrides=(("*.mlp*", "int4-awq"),))
    assert math.isclose(int4, fp8 - MODEL.num_layers * MLP / 2, rel_tol=0.02)
    assert int4 > fp8 - MODEL.num_layers * MLP / 2  # scales


@pytest.mark.parametrize(
    ("quantization", "backend", "message"),
    [
        ({"weights": "fp8", "exclude": ["lm_head", "*.mlpp"]}, "cpu", "matches no layer"),
        ({"weights": "fp8", "exclude": ["lm_head", FIRST]}, "onnx", "one format for all layers"),
        ({"weights": "int8-sq", "overrides": {FIRST: "fp8"}}, "cpu", "engines replace whole blocks"),
        ({"weights": "int8-wo", "overrides": {FIRST: "int4-awq"}}, "cpu", "the kernel of INT4 groups"),
        (
            {"weights": "fp8", "exclude": ["lm_head", FIRST], "gate": {}, "fallback": ["int8-sq"]},
            "cpu",
            "quantize every layer or none",
        ),
    ],
)
def test_what_no_engine_has_is_refused(contract_with, machine, quantization, backend, message):
    contract = contract_with(engine={"backend": backend}, quantization=quantization)
    plan = outline(contract, MODEL, machine)
    found = BY_NAME["layers_have_their_formats"](contract, MODEL, plan)
    assert [message in each.message for each in found] == [True]


@pytest.mark.parametrize(
    ("quantization", "is_told"),
    [
        ({"exclude": [FIRST]}, True),
        ({"exclude": ["*router"]}, True),
        ({"exclude": ["lm_head", FIRST]}, False),
        ({"exclude": []}, False),
        ({"exclude": [FIRST], "overrides": {"lm_head": "fp8"}}, False),
        ({}, False),
    ],
)
def test_a_head_that_is_quantized_by_a_list_of_others_is_told(contract_with, machine, quantization, is_told):
    contract = contract_with(quantization={"weights": "fp8", **quantization})
    plan = outline(contract, MODEL, machine)
    assert len(BY_NAME["heads_are_quantized_on_purpose"](contract, MODEL, plan)) == is_told


def test_formats_of_single_layers_go_with_the_first_format(contract_with):
    quantization = contract_with(
        quantization={
            "weights": "fp8",
            "overrides": {FIRST: "int4-awq"},
            "group_size": 64,
            "gate": {},
            "fallback": ["fp8-rowwise", "none"],
            "exclude": ["lm_head"],
        }
    ).quantization
    assert quantization.only(WeightFormat.FP8).overrides == {FIRST: WeightFormat.INT4_AWQ}
    assert quantization.only(WeightFormat.FP8).group_size == 64
    later = quantization.only(WeightFormat.FP8_ROWWISE)
    assert (later.overrides, later.group_size, later.exclude) == ({}, None, ["lm_head"])
    assert quantization.only(WeightFormat.NONE).exclude is None
    assert quantization.searched is WeightFormat.INT4_AWQ
