"""Who is refused, or relegated, because a promise cannot be kept."""

from __future__ import annotations

import pytest

from tests.proxy.admission.scene import PROMISE, RATE, admission, order_of, request, sent, taught
from trtkit.contract.scheduling import OnInfeasible
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import (
    Admission,
    Constraint,
    Reason,
    Refuse,
    State,
    Terms,
    TimeLimits,
)


def test_nothing_is_refused_for_a_promise_before_a_rate_was_measured():
    assert sent(admission().offer(request("a", prompt=50_000, terms=PROMISE), 0)) == ["a"]


def test_what_cannot_be_in_time_is_refused_on_arrival_with_what_it_would_take_and_what_was_left():
    gate = taught(admission())
    gate.offer(request("running", prompt=10, at=100), 100)
    (refusal,) = gate.offer(request("a", prompt=4500, at=100, terms=PROMISE), 100)
    assert (refusal.reason, refusal.record.constraint) == (Reason.HOPELESS, Constraint.PROMISE)
    assert refusal.record.measured == pytest.approx(1.2 * 4500 / RATE, rel=0.1)
    assert refusal.record.threshold == pytest.approx(0.5)
    assert refusal.pushback_ms >= 50


def test_what_no_idle_engine_could_do_in_time_is_told_not_to_come_back():
    gate = taught(admission())
    gate.offer(request("running", prompt=10, at=100), 100)
    (refusal,) = gate.offer(request("a", prompt=5500, at=100, terms=PROMISE), 100)
    assert (refusal.reason, refusal.pushback_ms) == (Reason.IMPOSSIBLE, -1)
    (refusal,) = gate.offer(request("late", prompt=100, at=99.5, terms=PROMISE), 100.01)
    assert refusal.reason is Reason.HOPELESS


def test_what_comes_too_late_behind_those_before_it_is_refused_on_arrival():
    gate = taught(admission(slots=1))
    gate.offer(request("running", at=100), 100)
    for n in range(4):
        assert gate.offer(request(f"a{n}", prompt=1000, at=100, terms=PROMISE), 100) == []
    (refusal,) = gate.offer(request("late", prompt=1000, at=100, terms=PROMISE), 100)
    assert (refusal.reason, refusal.record.constraint) == (Reason.HOPELESS, Constraint.BACKLOG)
    assert refusal.record.measured == pytest.approx(0.52, rel=0.1)
    assert refusal.record.threshold == pytest.approx(0.5)


@pytest.mark.parametrize(
    "newcomer",
    [
        {"prompt": 100},  # shorter than all who wait
        {"prompt": 1000, "tenant": "quiet"},  # takes turns with the other tenant
        {"prompt": 1000, "priority": 1},
        {"prompt": 1000, "terms": Terms(ttft_s=0.5, on_infeasible=OnInfeasible.QUEUE)},
    ],
)
def test_nobody_is_refused_for_those_who_do_not_go_before_it(newcomer):
    gate = taught(admission(slots=1))
    gate.offer(request("running", 1, at=100), 100)
    for n in range(4):
        gate.offer(request(f"a{n}", 2, prompt=1000, at=100, terms=PROMISE), 100)
    newcomer = {"priority": 2, "terms": PROMISE, **newcomer}
    assert gate.offer(request("new", at=100, **newcomer), 100) == []


def answered(gate: Admission, now_s: float, *, pace_s: float, tokens: int) -> Admission:
    """Let an engine show its time per token, and a class how long its answers are."""
    for n in range(10):
        gate.offer(request(f"answer{n}", prompt=10, output=tokens, at=now_s), now_s)
        gate.first_token(f"answer{n}", now_s)
        gate.finish(f"answer{n}", now_s + pace_s * (tokens - 1), tokens=tokens)
    return gate


def test_a_deadline_leaves_time_for_the_answer():
    gate = answered(admission(slots=1), 100.0, pace_s=0.02, tokens=51)
    gate.offer(request("running", at=101), 101)
    deadline = {"limits": TimeLimits(total_s=1.5), "output": 100}
    assert gate.offer(request("a", at=101, **deadline), 101) == []
    assert gate.expire(101.49) == []
    (refusal,) = gate.expire(101.52)
    assert (refusal.reason, refusal.record.constraint) == (Reason.HOPELESS, Constraint.WAIT)
    assert refusal.record.threshold == pytest.approx(0.5)


def test_a_short_answer_takes_less_of_its_deadline():
    gate = answered(admission(slots=1), 100.0, pace_s=0.02, tokens=51)
    gate.offer(request("running", at=101), 101)
    gate.offer(request("a", at=101, limits=TimeLimits(total_s=1.5), output=2), 101)
    assert gate.expire(102.47) == []
    assert [each.reason for each in gate.expire(102.49)] == [Reason.HOPELESS]


def test_a_pace_from_long_ago_refuses_nobody():
    gate = answered(admission(slots=1), 100.0, pace_s=1.0, tokens=51)
    slow = request("a", at=500, limits=TimeLimits(total_s=1.5), output=100)
    assert sent(gate.offer(slow, 500)) == ["a"]


def test_a_refusal_without_a_rate_tells_how_long_it_waited():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    gate.offer(request("a", terms=PROMISE), 0)
    (refusal,) = gate.expire(0.6)
    assert refusal.record.bound == (Constraint.WAIT, pytest.approx(0.6), pytest.approx(0.5))


def test_what_waits_is_refused_as_soon_as_it_cannot_be_in_time_any_more():
    gate = taught(admission(slots=1))
    gate.offer(request("running", at=100), 100)
    assert gate.offer(request("a", prompt=2000, at=100, terms=PROMISE), 100) == []
    latest_s = 100 + 0.5 - 1.2 * 2000 / RATE
    assert gate.next_expiry_s() == pytest.approx(latest_s, abs=0.02)
    assert gate.expire(latest_s - 0.05) == []
    assert [each.reason for each in gate.expire(latest_s + 0.05)] == [Reason.HOPELESS]


def test_an_idle_engine_is_tried_again_although_its_last_rate_was_bad():
    gate = taught(admission())
    impossible = request("a", prompt=50_000, at=200, terms=PROMISE)
    assert sent(gate.offer(impossible, 200)) == ["a"]


def test_a_class_that_relegates_waits_behind_all_others_without_a_promise():
    gate = taught(admission(slots=1))
    gate.offer(request("running", at=100), 100)
    terms = Terms(ttft_s=0.5, on_infeasible=OnInfeasible.RELEGATE)
    assert gate.offer(request("late", prompt=5000, at=100, terms=terms), 100) == []
    gate.offer(request("low", 9, at=100), 100)
    assert sent(gate.finish("running", 101)) == ["low"]
    (dispatch,) = gate.finish("low", 102)
    assert (dispatch.id, dispatch.record.relegated) == ("late", True)


def test_a_relegated_request_does_not_wait_for_ever():
    gate = taught(admission(slots=1))
    gate.offer(request("running", at=100), 100)
    terms = Terms(ttft_s=0.5, on_infeasible=OnInfeasible.RELEGATE)
    gate.offer(request("late", prompt=5000, at=100, terms=terms), 100)
    assert [each.reason for each in gate.expire(160)] == [Reason.QUEUE_TIMEOUT]


def test_a_class_that_queues_keeps_its_place():
    gate = taught(admission(slots=1))
    gate.offer(request("running", at=100), 100)
    terms = Terms(ttft_s=0.5, on_infeasible=OnInfeasible.QUEUE)
    gate.offer(request("late", prompt=5000, at=100, terms=terms), 100)
    assert gate.expire(150) == []
    assert sent(gate.finish("running", 150)) == ["late"]


def test_a_class_that_is_served_late_as_well_is_not_timed_out_by_its_promise():
    promises = {each: ServiceClass(priority=1, ttft_ms=500.0, on_infeasible=each) for each in OnInfeasible}
    assert [promises[each].queue_limit_ms for each in OnInfeasible] == [500.0, None, None]


def test_what_relegates_does_so_at_its_promise_even_if_no_rate_is_known():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    gate.offer(request("late", terms=Terms(ttft_s=0.5, on_infeasible=OnInfeasible.RELEGATE)), 0)
    gate.offer(request("low", 9), 0)
    assert gate.expire(0.6) == []
    assert order_of(gate, "running", 0.7) == ["low", "late"]


def test_the_relegated_do_not_fill_the_queue_without_end():
    gate = admission(slots=1, max_queue=5)
    gate.offer(request("running"), 0)
    terms = Terms(ttft_s=0.5, on_infeasible=OnInfeasible.RELEGATE)
    refused = []
    for n in range(20):
        at_s = 2.0 * n
        decisions = gate.expire(at_s) + gate.offer(request(f"r{n}", at=at_s, terms=terms), at_s)
        refused += [each.id for each in decisions if isinstance(each, Refuse)]
    assert gate.count("p1", State.QUEUED) <= 7
    assert refused


def test_a_rate_that_nothing_will_refresh_refuses_nobody():
    """Long answers go on, but no prompt is in flight: the last rate may be out of date."""
    gate = taught(admission())
    gate.offer(request("talker", at=100), 100)
    gate.first_token("talker", 100.1)
    assert [each.reason for each in gate.offer(request("a", prompt=9000, at=101, terms=PROMISE), 101)] == [
        Reason.IMPOSSIBLE
    ]
    assert sent(gate.offer(request("b", prompt=9000, at=150, terms=PROMISE), 150)) == ["b"]
