"""Measurements from files: of which engine they are, and what is no measurement."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.plan.published import published
from trtkit.errors import InputError
from trtkit.plan import Machine, make_plan
from trtkit.plan.measured import engine_id, parse_measured

MACHINE = Machine(cores=2, memory_bytes=None)
MODEL = published("llama-3.1-8b")


@pytest.fixture(scope="module")
def plan(contract_with):
    return make_plan(contract_with(engine={"backend": "tensorrt", "gpu": "h200"}), MODEL, MACHINE)


@pytest.fixture(scope="module")
def document(plan):
    return {
        "source": "a run",
        "engine": asdict(engine_id(plan)),
        "prefill_ms": [5, 0.05, 0],
        "step_ms": [8, 0.05, 1e-5],
    }


def test_a_measurement_holds_for_its_engine(plan, document):
    fit = parse_measured(document).of(plan)
    assert fit.prefill_ms(1000) == pytest.approx(55)
    assert fit.step_ms(10, 1000) == pytest.approx(8.6)
    assert fit.source == "measured on this engine: a run"


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("model", "1x2"),
        ("backend", "vllm"),
        ("gpu", None),
        ("weights", "fp8"),
        ("kv_cache", "fp8"),
        ("tensor_parallel", 2),
        ("pipeline_parallel", 2),
    ],
)
def test_a_measurement_of_another_engine_is_refused_by_what_differs(plan, document, key, other):
    changed = document | {"engine": document["engine"] | {key: other}}
    with pytest.raises(InputError, match=key) as caught:
        parse_measured(changed).of(plan)
    assert "h200" in caught.value.hint


@pytest.mark.parametrize(
    "changes",
    [
        {"step_ms": [1, 2]},
        {"step_ms": [0, 0, 0]},
        {"step_ms": [-1, 1, 1]},
        {"step_ms": [float("nan"), 1, 1]},
        {"step_ms": [True, 0, 0]},
        {"step_ms": None},
        {"prefill_ms": [1e-300, 0, 0]},
        {"more": 1},
        {"source": 3},
        {"source": " "},
        {"engine": {}},
        {"engine": None},
    ],
)
def test_a_measurement_of_another_form_is_refused(document, changes):
    with pytest.raises(InputError):
        parse_measured(document | changes)


@pytest.mark.parametrize("tp", [True, "1", 1.0])
def test_kinds_of_the_engine_s_fields_are_checked(document, tp):
    with pytest.raises(InputError, match="engine"):
        parse_measured(document | {"engine": document["engine"] | {"tensor_parallel": tp}})
