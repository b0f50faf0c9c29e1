"""Measurements from files: of which engine they are, and what is no measurement."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.engine.test_keys import declared_paths
from tests.plan.published import published
from trtkit.errors import InputError
from trtkit.plan import Machine, Plan, make_plan
from trtkit.plan.measured import FREE, SETTINGS, engine_id, parse_measured

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
    "engine",
    [
        {"trtllm": "0.17"},
        {"build_flags": {"use_fused_mlp": "disable"}},
        {"limits": {"max_num_tokens": 512}},
        {"speculation": {"mode": "lookahead", "lookahead": {"window": 4, "ngram": 3, "verification": 4}}},
    ],
)
def test_a_measurement_holds_for_no_other_settings(contract_with, document, engine):
    other = make_plan(contract_with(engine={"backend": "tensorrt", "gpu": "h200", **engine}), MODEL, MACHINE)
    with pytest.raises(InputError, match=r"another engine: (target|limits\.max_num_tokens)"):
        parse_measured(document).of(other)


def test_threads_are_a_part_of_what_was_measured(contract_with, smollm2):
    one, two = (make_plan(contract_with(engine={"threads": n}), smollm2, MACHINE) for n in (1, 2))
    fits = {"source": "a run", "prefill_ms": [5, 0.05, 0], "step_ms": [8, 0.05, 1e-5]}
    with pytest.raises(InputError, match="threads 1, the plan has 2"):
        parse_measured({**fits, "engine": asdict(engine_id(one))}).of(two)


def test_every_field_of_a_plan_says_whether_a_measurement_hangs_on_it():
    for path in declared_paths(Plan):
        named = [each for each in (*SETTINGS, *FREE) if path == each or path.startswith(f"{each}.")]
        assert len(named) == 1, f"{path}: say in trtkit/plan/measured.py whether it changes a step's time"


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
