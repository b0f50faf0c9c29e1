"""Slots, first tokens and rates from the speed of a step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.parallel import Parallelism
from trtkit.errors import ContractError
from trtkit.plan import Machine, make_plan
from trtkit.plan.memory import weights_bytes
from trtkit.plan.pace import Served, decode_slots
from trtkit.plan.ranks import group_of
from trtkit.plan.resolve import quant_plan
from trtkit.plan.silicon import PEAK, Fit, floor_of
from trtkit.plan.speed import Roofline, speed_of
from trtkit.plan.types import Basis, EngineLimits, Workload, Zones

MACHINE = Machine(cores=2, memory_bytes=None)
ENGINE = {"backend": "tensorrt", "gpu": "h100-sxm"}
MEASURED = Fit("a run", (5, 0.05, 0), (8, 0.05, 1e-5), basis=Basis.MEASURED)
LIMITS = EngineLimits(512, 8191, 8192, 8192, 32)


@dataclass(frozen=True)
class Constant:
    """100 ms a prompt, 10 ms a step."""

    source: str = "constant"
    basis: Basis = Basis.MEASURED
    stages: int = 1

    def prefill_ms(self, tokens: int) -> float:
        return 100.0

    def step_ms(self, batch: int, context_tokens: float) -> float:
        return 10.0


def roofline(name="llama-3.1-8b", gpu="h100-sxm", weights="none", kv_cache="auto", tp=1, pp=1):
    formats = quant_plan(weights, kv_cache)
    return Roofline(published(name), GPUS[gpu], Parallelism(tp, pp), formats, "bfloat16", PEAK)


def served(speed):
    return Served(speed, 1, LIMITS, Zones(8192, 10**6, 512))


def test_tokens_wait_for_the_prompts_of_the_others():
    work = Workload(2000, 300)
    assert served(Constant()).busy_tpot_ms(32, work) == pytest.approx(10 + 31 * 100 / 300)
    # 10 + 30 x 100 / 300 = 20 ms.
    assert decode_slots(served(Constant()), work, 512, 20.0) == 31


@given(st.integers(1, 4000), st.integers(1, 1000), st.integers(1, 512), st.floats(1, 500))
def test_slots_are_the_largest_batch_that_keeps_the_promise(prompt, answer, most, tpot):
    speed, work = served(roofline()), Workload(prompt, answer)
    slots = decode_slots(speed, work, most, tpot)
    assert slots == 1 or speed.busy_tpot_ms(slots, work) <= tpot
    assert slots == most or speed.busy_tpot_ms(slots + 1, work) > tpot


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


MODELS = (
    "gemma-2-9b",
    "gemma-3-1b",
    "llama-3.2-1b",
    "llama-3.3-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "smollm2-135m",
)


@given(
    name=st.sampled_from(MODELS),
    weights=st.sampled_from(["none", "int8-wo", "fp8", "int4-awq"]),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    shared=st.booleans(),
)
def test_a_step_reads_something_and_no_more_than_there_is(name, weights, tp, pp, shared):
    model, formats = published(name), quant_plan(weights)
    ranks = Parallelism(tp, pp, parallel_embedding=shared)
    speed = Roofline(model, GPUS["h200"], ranks, formats, "bfloat16", PEAK)
    always, experts = speed._weight_bytes
    held = weights_bytes(model, WEIGHTS[weights], "bfloat16", ranks, group_of(model, weights, None))
    head = 2 * model.vocab_size * model.hidden_size // tp
    assert head < always
    # A stage with the head holds no embedding, but the first one may be larger.
    assert 0 < always + experts <= held


def test_a_tied_head_is_read_once_however_it_is_divided():
    model = published("gemma-2-9b")
    whole = weights_bytes(model, WEIGHTS["none"], "bfloat16")
    for tp in (2, 4, 8):
        ranks = Parallelism(tp, parallel_embedding=True)
        read, _ = Roofline(model, GPUS["h100-sxm"], ranks, quant_plan("none"), "bfloat16", PEAK)._weight_bytes
        assert read == pytest.approx(whole / tp, rel=0.01)


def test_no_layer_is_quicker_than_any_that_is_known():
    small = published("smollm2-135m")
    speed = speed_of(small, GPUS["gb200"], Parallelism(), quant_plan("none"), "bfloat16", backend="tensorrt")
    floor = floor_of("gb200")
    assert 0.02 < floor.step_ms < 0.2
    assert speed.step_ms(1, 100) == pytest.approx(small.num_layers * floor.step_ms)
    assert speed.prefill_ms(10) == pytest.approx(small.num_layers * floor.prefill_ms)
    assert "no quicker" in speed.source


@pytest.mark.parametrize("backend", ["vllm", "edgellm", "rtx"])
def test_the_speed_of_another_back_end_is_a_guess_that_says_so(backend):
    model = published("llama-3.1-8b")
    speed = speed_of(model, GPUS["h200"], Parallelism(), quant_plan("none"), "bfloat16", backend=backend)
    assert speed.basis is Basis.GUESS
    assert f"nothing is known of {backend}" in speed.source


def test_a_window_bounds_what_is_read_and_what_is_kept(contract_with):
    model = published("gemma-3-1b")
    engine = ENGINE | {"gpu": "l4", "limits": {"max_seq_len": 32768}}
    plan = make_plan(contract_with(engine=engine), model, MACHINE)
    need = plan.zones.kv_need(32768, 32)
    # 4 layers keep all 32,768 tokens, 22 keep 512: 134 and 12 MB of 872.
    assert need * plan.memory.kv_bytes_per_token / 1e6 == pytest.approx(134 + 12, abs=1)
    assert plan.zones.seen_tokens(30_000) == pytest.approx((4 * 30_000 + 22 * 512) / 26)
    assert plan.pace.batch == min(256, plan.zones.kv_tokens // need)
    mistral = make_plan(contract_with(engine=engine), published("mistral-7b-v0.1"), MACHINE)
    assert (mistral.zones.kv_need(32768, 32), mistral.pace.batch) == (4096, 9)


@given(tokens=st.integers(1, 40_000), window=st.integers(1, 9000), share=st.floats(0, 1))
def test_a_sequence_keeps_no_less_than_its_window_and_no_more_than_itself(tokens, window, share):
    zones = Zones(1, 1, 1, window, share)
    whole = -(-tokens // 32) * 32
    assert min(whole, window) <= zones.kv_need(tokens, 32) <= whole
    assert zones.kv_need(tokens, 32) <= zones.kv_need(tokens + 1, 32)
    assert zones.seen_tokens(tokens) <= zones.kv_need(tokens, 32)


def test_slots_hold_whichever_class_the_prompts_beside_are_of(contract_with):
    classes = {
        "chat": {"priority": 1, "tpot_ms": 40, "max_prompt_tokens": 500},
        "long": {"priority": 2, "max_prompt_tokens": 30_000},
    }
    engine = ENGINE | {"limits": {"max_seq_len": 32768}}
    first, second = (
        make_plan(
            contract_with(engine=engine, classes=classes, default_class=name),
            published("llama-3.1-8b"),
            MACHINE,
        )
        for name in classes
    )
    assert first.zones == second.zones
    assert 1 < first.zones.decode_slots < 64
    assert first.pace.bound_by == "long"
    assert all(each.kept for each in first.pace.classes)


def test_a_deadline_is_a_promise_like_the_others(contract_with):
    spec = {"priority": 1, "max_prompt_tokens": 4000, "default_output_tokens": 1000}
    late, fine = (
        make_plan(
            contract_with(
                engine=ENGINE | {"gpu": "l4"},
                quantization={"weights": "fp8"},
                classes={"a": spec | {"deadline_ms": ms}},
            ),
            published("llama-3.1-8b"),
            MACHINE,
        )
        for ms in (100, 1e6)
    )
    (pace,) = late.pace.classes
    assert pace.total_ms == pytest.approx(pace.ttft_ms + 999 * pace.tpot_ms, rel=1e-3)
    assert not pace.kept
    assert "classes.a.deadline_ms" in [each.key for each in late.warnings]
    assert fine.pace.classes[0].kept
    assert "classes.a.deadline_ms" not in [each.key for each in fine.warnings]


def test_times_are_of_the_request_that_was_asked_for(contract_with):
    contract, model = contract_with(engine=ENGINE), published("llama-3.1-8b")
    short = make_plan(contract, model, MACHINE, workload=Workload(10, 10)).pace.classes[0]
    longest = make_plan(contract, model, MACHINE).pace.classes[0]
    assert (short.prompt_tokens, longest.prompt_tokens) == (10, 8191)
    assert short.ttft_ms < longest.ttft_ms


@pytest.mark.parametrize(
    ("prompt", "answer", "key"), [(9000, 1, "max_input_len"), (8000, 1000, "max_seq_len")]
)
def test_rates_of_a_request_that_the_engine_refuses_are_refused(contract_with, prompt, answer, key):
    with pytest.raises(ContractError) as caught:
        make_plan(
            contract_with(engine=ENGINE),
            published("llama-3.1-8b"),
            MACHINE,
            workload=Workload(prompt, answer),
        )
    assert f"engine.limits.{key}" in [each.key for each in caught.value.problems]


def test_a_cpu_has_a_pace_once_it_was_measured(contract_with, smollm2, machine):
    contract = contract_with(classes={"a": {"priority": 1, "ttft_ms": 1, "tpot_ms": 9}})
    assert make_plan(contract, smollm2, machine).pace is None
    plan = make_plan(contract, smollm2, machine, measured=MEASURED)
    assert plan.pace.basis is Basis.MEASURED
    assert 1 <= plan.zones.decode_slots < plan.limits.max_batch_size
    assert {each.key for each in plan.warnings} >= {"classes.a.ttft_ms"}


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
    contract = contract_with(engine=ENGINE)
    plan = make_plan(
        contract, published("llama-3.1-8b"), MACHINE, measured=MEASURED, workload=Workload(1000, 100)
    )
    assert plan.pace.source == "a run"
    assert plan.pace.prefill_tokens_per_s == pytest.approx(1000 / 0.055)
    assert plan.pace.step_ms == pytest.approx(8 + 0.05 * plan.pace.batch + 1e-5 * plan.pace.batch * 1050)
