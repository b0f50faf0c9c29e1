"""The policy, event by event. Time is a number that the test chooses."""

from __future__ import annotations

import dataclasses

import pytest

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.service import ServiceClass, Timeouts
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Abort, Admission, Dispatch, Reason, Refuse, Request, State, TimeLimits

HIGH, LOW = 1, 3


def admission(*, slots=1, prefill=10_000, kv=100_000, **rules) -> Admission:
    return Admission(AdmissionRules(**rules), Zones(prefill, kv, slots), tokens_per_block=32)


def request(
    name, priority=HIGH, *, prompt=100, output=28, at=0.0, sheddable=False, streams=True, **limits
) -> Request:
    return Request(
        id=name,
        class_name=f"p{priority}{'s' if sheddable else ''}",
        priority=priority,
        prompt_tokens=prompt,
        max_tokens=output,
        arrival_s=at,
        limits=TimeLimits(**limits),
        sheddable=sheddable,
        streams=streams,
    )


def ids(decisions, kind=Dispatch) -> list[str]:
    return [decision.id for decision in decisions if isinstance(decision, kind)]


@pytest.mark.parametrize("zones", [{"slots": 1}, {"prefill": 150, "slots": 9}, {"kv": 200, "slots": 9}])
def test_each_zone_alone_holds_the_second_request_back(zones):
    gate = admission(**zones)
    assert ids(gate.offer(request("a"), 0)) == ["a"]
    assert gate.offer(request("b"), 0) == []
    assert ids(gate.finish("a", 1)) == ["b"]


def test_a_prompt_larger_than_the_prefill_zone_starts_when_the_zone_is_empty():
    gate = admission(prefill=50, slots=9)
    assert ids(gate.offer(request("a", prompt=400), 0)) == ["a"]
    assert gate.offer(request("b", prompt=1), 0) == []
    assert ids(gate.first_token("a", 1)) == ["b"]


def test_each_beam_has_blocks_of_its_own_for_its_answer():
    gate = admission(kv=1000, slots=8)
    (dispatch,) = gate.offer(request("wide", prompt=32, output=64)._replace(beams=4), 0)
    assert gate.backends[0].ledger.kv_tokens == 32 + 4 * 64
    gate.first_token(dispatch.id, 0)
    gate.finish(dispatch.id, 0)
    assert gate.backends[0].ledger.kv_tokens == 0


def test_kv_is_reserved_in_whole_blocks():
    gate = admission(kv=128, slots=9)
    gate.offer(request("a", prompt=30, output=3), 0)
    assert gate.backends[0].ledger.kv_tokens == 64


def test_what_can_never_fit_is_refused_for_good():
    gate = admission(kv=64)
    assert gate.offer(request("a", prompt=60, output=5), 0) == [Refuse("a", Reason.TOO_LONG, -1)]


def test_urgent_bands_go_first_and_a_band_is_first_come_first_served():
    gate = admission()
    gate.offer(request("running"), 0)
    for n in range(20):
        gate.offer(request(f"low{n}", LOW, at=n), n)
    for n in range(5):
        gate.offer(request(f"high{n}", HIGH, at=20 + n), 20 + n)
    order, running = [], "running"
    for now in range(25):
        (running,) = ids(gate.finish(running, now + 0.5))
        order.append(running)
    assert order == [f"high{n}" for n in range(5)] + [f"low{n}" for n in range(20)]


def test_a_starved_request_goes_before_every_band():
    gate = admission(starvation_ms=1000.0)
    gate.offer(request("running"), 0)
    gate.offer(request("low", LOW, at=0), 0)
    gate.offer(request("high", HIGH, at=0.9), 0.9)
    assert ids(gate.finish("running", 1.0)) == ["low"]


def test_a_full_queue_refuses_the_newcomer_with_a_time_to_return():
    gate = admission(max_queue=1)
    gate.offer(request("running"), 0)
    gate.offer(request("waiting"), 0)
    assert gate.would_refuse(HIGH)
    (refusal,) = gate.offer(request("late"), 0)
    assert (refusal.id, refusal.reason) == ("late", Reason.QUEUE_FULL)
    assert refusal.pushback_ms >= 50


def test_an_urgent_newcomer_sheds_the_newest_of_the_least_urgent_sheddable_class():
    gate = admission(max_queue=3)
    gate.offer(request("running"), 0)
    for name, priority, sheddable in [("mid", 2, True), ("old", LOW, True), ("new", LOW, True)]:
        gate.offer(request(name, priority, sheddable=sheddable), 0)
    assert not gate.would_refuse(HIGH)
    (refusal,) = gate.offer(request("urgent"), 0)
    assert (refusal.id, refusal.reason) == ("new", Reason.SHED)
    assert gate.would_refuse(LOW)


def test_what_is_not_sheddable_is_kept_and_takes_no_place_from_an_urgent_newcomer():
    gate = admission(max_queue=1)
    gate.offer(request("running"), 0)
    gate.offer(request("low", LOW), 0)
    assert not gate.would_refuse(HIGH)
    assert gate.offer(request("urgent"), 0) == []
    assert ids(gate.offer(request("second"), 0), Refuse) == ["second"]
    assert ids(gate.offer(request("another low", LOW), 0), Refuse) == ["another low"]


def test_an_urgent_newcomer_that_fits_passes_a_full_queue_that_does_not():
    gate = admission(max_queue=1, slots=9, kv=512)
    gate.offer(request("running"), 0)
    gate.offer(request("large", LOW, prompt=450), 0)
    assert not gate.would_refuse(HIGH)
    assert ids(gate.offer(request("small"), 0)) == ["small"]


@pytest.mark.parametrize(
    ("limits", "when", "reason"),
    [
        ({"queue_s": 0.5}, 0.5, Reason.QUEUE_TIMEOUT),
        ({"queue_s": 0.5, "first_token_s": 0.4}, 0.4, Reason.FIRST_TOKEN_TIMEOUT),
        ({"queue_s": 0.5, "total_s": 0.3}, 0.3, Reason.DEADLINE),
    ],
)
def test_the_smallest_limit_ends_a_waiting_request_on_time(limits, when, reason):
    gate = admission()
    gate.offer(request("running"), 0)
    gate.offer(request("waiting", **limits), 0)
    assert gate.next_expiry_s() == pytest.approx(when)
    assert gate.expire(when - 0.001) == []
    (refusal,) = gate.expire(when)
    assert (refusal.id, refusal.reason) == ("waiting", reason)


def test_a_request_whose_time_is_over_when_a_slot_frees_is_not_dispatched():
    gate = admission()
    gate.offer(request("running"), 0)
    gate.offer(request("late", queue_s=1.0), 0)
    decisions = gate.finish("running", 1.0)
    assert ids(decisions) == []
    assert ids(decisions, Refuse) == ["late"]


def test_the_inter_token_limit_restarts_at_each_token_without_new_timers():
    gate = admission()
    gate.offer(request("a", inter_token_s=2.0), 0)
    gate.first_token("a", 0)
    for n in range(1, 600):
        gate.token("a", n * 0.125)
        assert gate.expire(n * 0.125) == []
        assert len(gate._timers._entries) <= 2
    assert gate.expire(76.8) == []
    assert gate.expire(76.875) == [Abort("a", Reason.INTER_TOKEN_TIMEOUT)]


def test_an_aborted_request_keeps_its_share_until_the_engine_ends_it():
    gate = admission()
    gate.offer(request("a", total_s=1.0), 0)
    gate.offer(request("b"), 0)
    assert gate.expire(1.0) == [Abort("a", Reason.DEADLINE)]
    assert gate.count("p1", State.CANCELLING) == 1
    assert gate.backends[0].ledger.decode_slots == 1
    assert gate.cancel("a", 1.5) == []
    assert ids(gate.finish("a", 2.0)) == ["b"]
    assert gate.count("p1", State.CANCELLING) == 0


def test_cancel_of_a_waiting_request_never_reaches_the_engine():
    gate = admission()
    gate.offer(request("running"), 0)
    gate.offer(request("waiting"), 0)
    assert gate.cancel("waiting", 0.1) == [Refuse("waiting", Reason.CLIENT_CANCELLED, None)]
    assert gate.finish("running", 1) == []


def test_the_prefill_of_a_request_that_does_not_stream_ends_by_estimate():
    gate = admission(prefill=100, slots=9)  # 250 tokens/s assumed: 100 tokens take 0.4 s
    gate.offer(request("whole", streams=False), 0)
    assert gate.offer(request("next"), 0) == []
    assert gate.expire(0.39) == []
    assert ids(gate.expire(0.4)) == ["next"]


def test_pushback_grows_with_the_backlog_and_with_a_standstill_and_is_clamped():
    gate = admission(
        max_queue=2, prefill=2000
    )  # assumed: 0.4 s for 2000 tokens, and for a turn of the one slot
    gate.offer(request("running"), 0)
    gate.offer(request("a", prompt=4000), 0)
    gate.offer(request("b", prompt=500), 0)
    (first,) = gate.offer(request("c", prompt=500), 0)
    assert first.pushback_ms == 1200
    (later,) = gate.offer(request("d", prompt=500), 0.4)
    assert later.pushback_ms == 2400
    (last,) = gate.offer(request("e", prompt=500), 600)
    assert last.pushback_ms == 30_000


def test_pushback_is_by_tokens_where_prefill_binds():
    gate = admission(max_queue=1, prefill=2000, slots=100)
    gate.offer(request("running", prompt=2000), 0)
    gate.offer(request("waiting", prompt=4000), 0)
    (refusal,) = gate.offer(request("late", prompt=1000), 0)
    assert refusal.pushback_ms == 1000


def test_lower_bands_do_not_count_in_the_pushback_of_an_urgent_request():
    gate = admission(max_queue=1, prefill=2000)
    gate.offer(request("running"), 0)
    gate.offer(request("low", LOW, prompt=50_000), 0)
    gate.offer(request("first", prompt=0), 0)
    (refusal,) = gate.offer(request("urgent", prompt=500), 0)
    assert refusal.pushback_ms == 800


def test_drain_refuses_what_waits_and_what_comes_and_lets_the_rest_finish():
    gate = admission()
    gate.offer(request("running"), 0)
    gate.offer(request("waiting"), 0)
    (refusal,) = gate.drain(1)
    assert (refusal.id, refusal.reason) == ("waiting", Reason.DRAINING)
    assert ids(gate.offer(request("new"), 1), Refuse) == ["new"]
    assert gate.finish("running", 2) == []


def test_limits_are_the_minimum_of_class_and_client():
    promise = ServiceClass(
        priority=1,
        ttft_ms=500.0,
        deadline_ms=4000.0,
        timeouts=Timeouts(first_token_ms=2000.0, inter_token_ms=300.0),
    )
    assert TimeLimits.of(promise, client_s=60) == TimeLimits(0.5, 2.0, 0.3, 4.0)
    assert TimeLimits.of(promise, client_s=1.5).total_s == 1.5
    whole = TimeLimits.of(promise, streams=False)
    assert dataclasses.astuple(whole) == (0.5, float("inf"), float("inf"), 4.0)


def test_a_window_keeps_less_of_a_long_request():
    zones = Zones(10_000, 256, 4, window_tokens=64, window_share=0.5)
    gate = Admission(AdmissionRules(), zones, tokens_per_block=32)
    # Half of the layers keep all 320 tokens, the others 64: 192 of 256.
    assert ids(gate.offer(request("long", prompt=288, output=32), 0.0)) == ["long"]
    assert ids(gate.offer(request("second", prompt=64, output=32), 0.0)) == []
