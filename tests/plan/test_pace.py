"""Slots, first tokens and rates from the speed of a step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import InputError
from trtkit.plan import Machine, make_plan
from trtkit.plan.pace import busy_tpot_ms, decode_slots
from trtkit.plan.resolve import quant_plan
from trtkit.plan.silicon import PEAK, measured_fit
from trtkit.plan.speed import Roofline
from trtkit.plan.types import Workload

MACHINE = Machine(cores=2, memory_bytes=None)
ENGINE = {"backend": "tensorrt", "gpu": "h100-sxm"}
MEASURED = {"source": "a run", "prefill_ms": [5, 0.05, 0], "step_ms": [8, 0.05, 1e-5]}


@dataclass(frozen=True)
class Constant:
    """100 ms a prompt, 10 ms a step."""

    source: str = "constant"
    stages: int = 1

    def prefill_ms(self, tokens: int) -> float:
        return 100.0

    def step_ms(self, batch: int, context_tokens: float) -> float:
        return 10.0


def roofline(name="llama-3.1-8b", gpu="h100-sxm", weights="none", kv_cache="auto", tp=1, pp=1):
    formats = quant_plan(weights, kv_cache)
    return Roofline(published(name), GPUS[gpu], Parallelism(tp, pp), formats, "bfloat16", PEAK)


def test_tokens_wait_for_the_prompts_of_the_others():
    work = Workload(2000, 300)
    assert busy_tpot_ms(Constant(), work, 32) == pytest.approx(10 + 31 * 100 / 300)
    # 10 + 30 x 100 / 300 = 20 ms.
    assert decode_slots(Constant(), work, 512, 20.0) == 31


@given(st.integers(1, 4000), st.integers(1, 1000), st.integers(1, 512), st.floats(1, 500))
def test_slots_are_the_largest_batch_that_keeps_the_promise(prompt, answer, most, tpot):
    speed, work = roofline(), Workload(prompt, answer)
    slots = decode_slots(speed, work, most, tpot)
    assert slots == 1 or busy_tpot_ms(speed, work, slots) <= tpot
    assert slots == most or busy_tpot_ms(speed, work, slots + 1) > tpot


def test_a_step_reads_all_weights_and_the_whole_context():
    # 32 x 218.1 M weights and a head of 525 M at two bytes, the cache of 4 x 1000 tokens, at 3.35 TB/s.
    weights = 2 * (32 * (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 2 * 4096) + 128256 * 4096 + 4096)
    seconds = (weights + 4 * 1000 * 131_072) / 3.35e12
    assert roofline().step_ms(4, 1000) == pytest.approx(1000 * seconds, rel=1e-6)


def test_a_long_prompt_is_bound_by_products():
    linear = 32 * (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096)
    attention = 4 * 32 * 128 * 32 * 4096 * 4096 / 2
    expected = (2 * linear * 4096 + attention) / 989e12
    assert roofline().prefill_ms(4096) == pytest.approx(1000 * expected, rel=1e-6)


def test_a_batch_reaches_more_experts_the_larger_it_is():
    speed = roofline("mixtral-8x7b", gpu="b300")
    one, two, many = (speed.step_ms(batch, 1) for batch in (1, 2, 64))
    # 2 of 8 experts, then 8 (1 - 0.75^2) = 3.5, then all.
    assert one < two < many
    assert (two - one) / (many - one) == pytest.approx(1.5 / 6, rel=0.02)


@given(st.sampled_from(["none", "fp8", "int4-awq"]), st.integers(1, 256), st.integers(1, 8000))
def test_more_work_never_takes_less_time(weights, batch, tokens):
    speed = roofline(weights=weights)
    assert speed.step_ms(batch + 1, tokens) >= speed.step_ms(batch, tokens)
    assert speed.step_ms(batch, tokens + 1) >= speed.step_ms(batch, tokens)
    assert speed.prefill_ms(tokens + 1) >= speed.prefill_ms(tokens)


def test_ranks_divide_the_work_and_pay_for_it():
    one, two = roofline("llama-3.3-70b", "h200"), roofline("llama-3.3-70b", "h200", tp=2)
    assert one.step_ms(16, 1000) / 2 < two.step_ms(16, 1000) < one.step_ms(16, 1000)
    staged = roofline("llama-3.3-70b", "h200", pp=2)
    assert staged.stages == 2
    assert staged.prefill_ms(2048) == pytest.approx(one.prefill_ms(2048), rel=0.02)


def test_the_zone_of_decoding_is_what_the_tightest_promise_leaves(contract_with):
    classes = {
        "a": {"priority": 1, "tpot_ms": 40, "max_prompt_tokens": 2000},
        "b": {"priority": 2, "tpot_ms": 15},
    }
    plan = make_plan(contract_with(engine=ENGINE, classes=classes), published("llama-3.1-8b"), MACHINE)
    loose = make_plan(
        contract_with(engine=ENGINE, classes={"a": classes["a"]}), published("llama-3.1-8b"), MACHINE
    )
    assert 1 < plan.zones.decode_slots < loose.zones.decode_slots
    assert max(each.tpot_ms for each in plan.pace.classes) <= 15


def test_beams_take_places_in_steps_and_blocks_in_the_pool(contract_with):
    one, four = (
        make_plan(
            contract_with(engine=ENGINE | {"limits": {"max_batch_size": 64, "max_beam_width": beams}}),
            published("llama-3.1-8b"),
            MACHINE,
            workload=Workload(1000, 100),
        )
        for beams in (1, 4)
    )
    assert four.zones.kv_tokens == pytest.approx(one.zones.kv_tokens / 4, rel=0.01)
    assert four.pace.step_ms > one.pace.step_ms
    assert four.pace.requests_per_s < one.pace.requests_per_s


def test_a_measurement_of_the_engine_goes_before_everything(contract_with):
    measured = measured_fit(MEASURED)
    contract = contract_with(engine=ENGINE)
    plan = make_plan(
        contract, published("llama-3.1-8b"), MACHINE, measured=measured, workload=Workload(1000, 100)
    )
    assert plan.pace.source == "measured on this engine: a run"
    assert plan.pace.prefill_tokens_per_s == pytest.approx(1000 / 0.055)
    assert plan.pace.step_ms == pytest.approx(8 + 0.05 * plan.pace.batch + 1e-5 * plan.pace.batch * 1050)


@pytest.mark.parametrize(
    "changes",
    [
        {"step_ms": [1, 2]},
        {"step_ms": [0, 0, 0]},
        {"step_ms": [-1, 1, 1]},
        {"step_ms": [float("nan"), 1, 1]},
        {"step_ms": None},
        {"more": 1},
        {"source": 3},
    ],
)
def test_a_measurement_of_another_form_is_refused(changes):
    with pytest.raises(InputError):
        measured_fit(MEASURED | changes)
