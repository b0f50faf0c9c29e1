"""Calibrations of engines whose true constants are known, and rows that cannot tell."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.bench.calibration import as_text, calibration_of, fit_rows
from trtkit.bench.probe import Row
from trtkit.contract import Contract
from trtkit.errors import StageError
from trtkit.plan import Machine, make_plan
from trtkit.plan.measured import parse_measured

LENGTHS = (16, 42, 111, 291, 763, 2000)


def rows_of(prefill, step, noise=lambda: 1.0, lengths=LENGTHS, batches=(1, 2, 4, 8)):
    """Return what a probe sees of an engine; constants in milliseconds."""
    found = []
    for running in batches:
        for tokens in lengths * 3:
            context = tokens + 6 + (running - 1) * 60
            ttft_s = (prefill[0] + prefill[1] * tokens + prefill[2] * tokens**2) / 1000 * noise()
            tpot_s = (step[0] + step[1] * running + step[2] * context) / 1000 * noise()
            # What waits behind others tells nothing of prompts.
            found.append(Row(tokens, ttft_s * running, tpot_s, running, context))
    return found


@given(
    prefill=st.tuples(st.floats(1, 50), st.floats(0.02, 5), st.floats(0, 1e-4)),
    step=st.tuples(st.floats(1, 50), st.floats(0, 5), st.floats(0, 1e-2)),
    random=st.randoms(use_true_random=False),
)
def test_the_constants_of_an_engine_are_found_again(prefill, step, random):
    fit = fit_rows(rows_of(prefill, step, lambda: random.uniform(0.97, 1.03)))
    for tokens in (16, 500, 2000):
        true = prefill[0] + prefill[1] * tokens + prefill[2] * tokens**2
        assert fit.prefill_ms[0] + fit.prefill_ms[1] * tokens + fit.prefill_ms[
            2
        ] * tokens**2 == pytest.approx(true, rel=0.08)
    for batch, context in ((1, 100), (4, 1000), (8, 2400)):
        true = step[0] + step[1] * batch + step[2] * context
        assert fit.step_ms[0] + fit.step_ms[1] * batch + fit.step_ms[2] * context == pytest.approx(
            true, rel=0.08
        )
    assert max(fit.prefill_error.median, fit.step_error.median) < 0.04


ROWS = rows_of((5, 0.1, 1e-5), (8, 0.5, 1e-3))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "lone prompts of 0 lengths"),
        ([row for row in ROWS if row.prompt_tokens < 200], "lone prompts of 3 lengths"),
        ([row for row in ROWS if row.running == 1], "one batch size only"),
        ([replace(row, ttft_s=1.0) for row in ROWS], "other things were waited for"),
        (
            [replace(row, tpot_s=0.001 * 4 ** (row.prompt_tokens % 5)) for row in ROWS],
            "steps differ by",
        ),
    ],
)
def test_rows_that_cannot_tell_are_refused(rows, message):
    with pytest.raises(StageError, match=message):
        fit_rows(rows)


def test_a_plan_reads_what_a_bench_writes():
    engine = {"backend": "tensorrt", "gpu": "h200"}
    raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1}}, "engine": engine}
    contract = Contract.model_validate(raw)
    plan = make_plan(contract, published("llama-3.1-8b"), Machine(cores=2, memory_bytes=None))
    document = calibration_of(ROWS, contract, plan, {"address": "h:1", "server": "triton 2.51.0"})
    read = json.loads(as_text(document))
    fit = parse_measured(read).of(plan)
    assert fit.prefill_ms(1000) == pytest.approx(115)
    assert fit.step_ms(4, 500) == pytest.approx(12)
    assert read["rows"] == [vars(row) for row in ROWS]
    assert read["conditions"]["server"] == "triton 2.51.0"
    assert read["residuals"]["prefill"]["worst"] == pytest.approx(0, abs=1e-6)
