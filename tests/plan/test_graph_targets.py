"""What a contract for a graph is told of targets without a compiler, and of types that nothing here can judge."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.plan.published import published
from trtkit.contract.load import parse_contract
from trtkit.errors import ContractError
from trtkit.plan import Machine
from trtkit.plan.preflight.formats import formats_are_proven
from trtkit.plan.quantization import settings_have_a_user
from trtkit.plan.resolve import outline

MACHINE = Machine(cores=2, memory_bytes=8 * 10**9)
RTX = {"backend": "rtx", "gpu": "rtx-5090"}


def found(check, contract):
    model = published("llama-3.1-8b")
    return list(check(contract, model, outline(contract, model, MACHINE)))


def test_a_target_without_a_compiler_is_told_of_once_with_what_to_run_there(contract_with):
    contract = contract_with(engine={"backend": "rtx", "gpu": "h100-sxm", "targets": [90, 100, 120]})
    first, second = found(formats_are_proven, contract)
    assert {first.key, second.key} == {"engine.targets"}
    assert "no engine" in first.message
    assert "build_engine.py" in first.hint


@pytest.mark.parametrize(
    ("dtype", "on", "refused"),
    [("bfloat16", None, True), ("bfloat16", ["checkpoint"], False), ("float16", None, False)],
)
def test_a_graph_that_cannot_be_judged_is_refused_before_it_is_built(contract_with, dtype, on, refused):
    gate = {"max_kl": 0.1} | ({"on": on} if on else {})
    contract = contract_with(
        engine=RTX,
        model={"source": "x", "dtype": dtype},
        quantization={"weights": "int8-wo", "gate": gate},
    )
    problems = found(settings_have_a_user, contract)
    assert [problem.key for problem in problems] == ["quantization.gate.on"] * refused


@pytest.mark.parametrize("targets", [[], [8.9], 89, [-89], [89, 89]])
def test_targets_that_are_none_are_refused_with_how_they_are_written(targets):
    raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1, "ttft_ms": 500}}}
    text = yaml.safe_dump(raw | {"engine": RTX | {"targets": targets}})
    with pytest.raises(ContractError) as caught:
        parse_contract(text, Path("contract.yaml"))
    (problem,) = caught.value.problems
    assert "89" in f"{problem.hint} {problem.message}"
