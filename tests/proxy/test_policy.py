"""The policy's elements one by one: shares, promises, tenants, feedback, several engines."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.contract.models import Admission as AdmissionRules
from trtkit.contract.models import ServiceClass
from trtkit.contract.scheduling import OnInfeasible, Order
from trtkit.plan.types import Zones
from trtkit.proxy.admission import (
    Admission,
    Constraint,
    Dispatch,
    EngineReport,
    PoolSpec,
    Reason,
    Refuse,
    Request,
    State,
    Suspicion,
    Terms,
    TimeLimits,
    terms_of,
)
from trtkit.proxy.admission.fit import LineFit
from trtkit.proxy.admission.record import bucket_of
from trtkit.proxy.gate import Gate

RATE = 10_000.0
"""Prompt tokens per second of the engine that the tests play."""
TOP, LOW = Terms(1.0), Terms(0.5)


def admission(*, slots=64, prefill=1000, kv=1_000_000, backends=1, long_backends=0, **rules) -> Admission:
    """Engines of one pool, and some more for prompts above 5000 tokens."""
    zones = Zones(prefill, kv, slots)
    longer = [PoolSpec(zones, 32, long_backends, 5001)] if long_backends else []
    return Admission(AdmissionRules(**rules), zones, 32, backends=backends, longer=longer)


def request(name, priority=1, *, prompt=100, output=28, at=0.0, terms=TOP, **more) -> Request:
    return Request(name, f"p{priority}", priority, prompt, output, at, terms=terms, **more)


def sent(decisions) -> list[str]:
    return [each.id for each in decisions if isinstance(each, Dispatch)]


def taught(gate: Admission, until_s: float = 100.0) -> Admission:
    """Let every engine show its rate: first tokens come after prompt / rate, one request at a time."""
    for n in range(40 * len(gate.backends)):
        start_s, prompt = until_s - 1, 1000 + 100 * (n % 7)
        (dispatch,) = gate.offer(request(f"teach{n}", prompt=prompt, at=start_s), start_s)
        gate.first_token(dispatch.id, start_s + prompt / RATE)
        gate.finish(dispatch.id, start_s + prompt / RATE)
    return gate


@pytest.mark.parametrize(
    ("zones", "constraint"),
    [
        ({"prefill": 350}, Constraint.PREFILL),
        ({"kv": 128 * 7}, Constraint.KV),
        ({"slots": 7}, Constraint.DECODE),
    ],
)
def test_a_lower_band_fills_only_its_share_of_each_zone_and_the_record_says_which(zones, constraint):
    gate = admission(**zones)
    first = [f"low{n}" for n in range(8) if sent(gate.offer(request(f"low{n}", 2, terms=LOW), 0))]
    assert 1 <= len(first) <= 3
    assert sent(gate.offer(request("top"), 0)) == ["top"]
    for name in [*first, "top"]:
        for decision in gate.finish(name, 1):
            assert decision.record.constraint is constraint
            assert decision.record.measured > decision.record.threshold


def test_an_empty_zone_takes_anybody_however_small_the_share():
    gate = admission(slots=1, prefill=10, kv=256)
    assert sent(gate.offer(request("low", 2, prompt=200, terms=Terms(0.01)), 0)) == ["low"]


def test_shares_follow_the_rank_of_the_band():
    def classes(*priorities):
        return {f"c{n}": ServiceClass(priority=priority) for n, priority in enumerate(priorities)}

    def shares(*priorities):
        return [each.share for each in terms_of(classes(*priorities), (1.0, 0.9, 0.6)).values()]

    assert shares(5) == [1.0]
    assert shares(1, 2) == [1.0, 0.6]
    assert shares(3, 1, 2, 2, 9) == [0.9, 1.0, 0.9, 0.9, 0.6]
    assert [t.share for t in terms_of(classes(1, 2, 3), (1.0,)).values()] == [1.0, 1.0, 1.0]


PROMISE = Terms(ttft_s=0.5)


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


def test_a_record_has_the_numbers_of_the_last_time_that_it_was_held_back():
    gate = admission(prefill=1000, slots=9)
    gate.offer(request("x", prompt=600), 0)
    gate.offer(request("y", prompt=400), 0)
    gate.offer(request("z", prompt=700), 0)
    gate.first_token("y", 1)
    (dispatch,) = gate.first_token("x", 2)
    assert dispatch.record.bound == (Constraint.PREFILL, 1300, 1000)


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


def order_of(gate: Admission, running: str, now_s: float = 1.0) -> list[str]:
    found = []
    while dispatched := sent(gate.finish(running, now_s)):
        running = dispatched[0]
        found.append(running)
    return found


@pytest.mark.parametrize(("order", "expected"), [(Order.DEADLINE, ["b", "a"]), (Order.SHORTEST, ["a", "b"])])
def test_order_inside_a_band_is_by_deadline_or_by_size(order, expected):
    gate = admission(slots=1, order=order)
    gate.offer(request("running"), 0)
    gate.offer(request("a", prompt=10, terms=Terms(ttft_s=900)), 0)
    gate.offer(request("b", prompt=900, terms=Terms(ttft_s=100)), 0)
    assert order_of(gate, "running") == expected


def test_the_shortest_goes_first_once_the_band_cannot_keep_every_promise():
    def play(ttft_s):
        gate = admission(slots=1, prefill=4000)  # 10 000 tokens/s assumed
        gate.offer(request("running"), 0)
        for name, prompt in (("long", 3000), ("short", 100), ("middle", 1000)):
            gate.offer(request(name, prompt=prompt, terms=Terms(ttft_s=ttft_s)), 0)
        return order_of(gate, "running", now_s=0.01)

    assert play(ttft_s=10) == ["long", "short", "middle"]
    assert play(ttft_s=0.3) == ["short", "middle", "long"]


def test_smaller_requests_pass_one_that_does_not_fit_but_not_for_ever():
    gate = admission(skip_ahead=3)
    gate.offer(request("running", prompt=500), 0)
    assert gate.offer(request("large", prompt=980), 0) == []
    passed = [
        name for n in range(9) if (name := f"small{n}") in sent(gate.offer(request(name, prompt=10), 0))
    ]
    assert len(passed) == 3
    assert sent(gate.first_token("running", 1)) == []
    assert "large" in [name for small in passed for name in sent(gate.first_token(small, 1))]


def test_the_least_urgent_band_gets_its_minimum_share_under_any_load_above():
    gate = admission(slots=1, minimum_share=0.1, max_queue=1000)
    gate.offer(request("running"), 0)
    for n in range(300):
        gate.offer(request(f"top{n}"), 0)
        gate.offer(request(f"low{n}", 2), 0)
    first_110 = order_of(gate, "running")[:110]
    assert sum(name.startswith("low") for name in first_110) == 10


def test_who_has_starved_goes_first_only_within_the_minimum_share():
    gate = admission(slots=1, minimum_share=0.1, max_queue=1000, starvation_ms=1000.0)
    gate.offer(request("running"), 0)
    for n in range(100):
        gate.offer(request(f"low{n}", 2, sheddable=True), 0)
    for n in range(100):
        gate.offer(request(f"top{n}", at=10), 10)
    order = order_of(gate, "running", now_s=10.5)
    assert order[0] == "low0"
    assert sum(name.startswith("low") for name in order[:110]) in (10, 11)


def test_a_tenant_that_floods_does_not_hold_up_another():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(50):
        gate.offer(request(f"flood{n}", tenant="flood"), 0)
    gate.offer(request("quiet", tenant="quiet"), 0)
    assert "quiet" in order_of(gate, "running")[:2]


def test_a_tenant_pays_for_the_answers_that_it_got():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(6):
        gate.offer(request(f"talker{n}", tenant="talker"), 0)
        gate.offer(request(f"terse{n}", tenant="terse"), 0)
    running, order = "running", []
    for _ in range(6):
        tokens = 28 if running.startswith("talker") else 1
        (running,) = sent(gate.finish(running, 1, tokens=tokens))
        order.append(running)
    assert sum(name.startswith("terse") for name in order) > 3


def test_idle_tenants_are_forgotten():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(500):
        gate.offer(request(f"r{n}", tenant=f"t{n}"), 0)
    for n in range(500):
        gate.cancel(f"r{n}", 1)
    (band,) = gate.pools[0].queue.bands
    assert len(band._lanes) <= 40


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(500, 20_000), min_size=60, max_size=120, unique=True),
    st.floats(1e3, 1e5),
    st.floats(0, 0.1),
    st.integers(6, 20),
)
def test_the_line_is_found_although_some_pairs_are_wild(sizes, rate, level, every):
    fit = LineFit(500)
    for n, size in enumerate(sizes):
        wild = 30.0 if n % every == every - 1 else 0.0
        fit.add(size, level + size / rate + wild)
    assert fit.known
    predicted = fit.level() + fit.slope() * 10_000
    assert predicted == pytest.approx(level + 10_000 / rate, rel=0.25, abs=0.05)


def test_equal_prompts_give_a_rate_too():
    fit = LineFit(500)
    for _ in range(20):
        fit.add(1000, 0.1)
    assert (fit.known, fit.slope(), fit.level()) == (True, pytest.approx(1e-4), 0.0)


SLO = Terms(ttft_s=1.0, tpot_s=0.05)


def flight(gate: Admission, now_s: float, delay_s: float, tokens=2, tpot_s=0.01, count=6) -> None:
    """Send a flight of small requests together; their first tokens come late, or not."""
    names = [f"f{now_s}-{n}" for n in range(count)]
    for name in names:
        gate.offer(request(name, prompt=100, at=now_s, terms=SLO), now_s)
    for name in names:
        gate.first_token(name, now_s + delay_s)
    for name in names:
        gate.finish(name, now_s + delay_s + tpot_s * (tokens - 1), tokens=tokens)


def limit(gate: Admission) -> float:
    return gate.backends[0].ledger.prefill_limit


def test_misses_at_the_engine_shrink_the_prefill_zone_once_a_flight():
    gate = taught(admission())
    flight(gate, 100, 0.9)
    assert limit(gate) == pytest.approx(850)
    flight(gate, 102, 0.9)
    assert limit(gate) == pytest.approx(850 * 0.85)


def test_slow_tokens_shrink_it_too_and_switched_off_nothing_does():
    slow, off = taught(admission()), taught(admission(feedback=False))
    for gate in (slow, off):
        flight(gate, 100, 0.1, tokens=11, tpot_s=0.09)
        flight(gate, 105, 0.1)
    assert limit(slow) < 1000
    assert limit(off) == pytest.approx(1000)


def test_it_grows_back_only_while_it_is_what_holds_requests_back():
    gate = taught(admission())
    for n in range(4):
        flight(gate, 100 + 2 * n, 0.9)
    shrunk = limit(gate)
    for n in range(20):
        flight(gate, 200 + 2 * n, 0.05, count=2)
    assert limit(gate) == shrunk
    for n in range(40):
        flight(gate, 300 + 2 * n, 0.05, count=12)
    assert limit(gate) == pytest.approx(1000)


def test_it_never_shrinks_below_what_lets_one_request_through():
    gate = taught(admission())
    for n in range(60):
        flight(gate, 100 + 2 * n, 0.9, count=8)
    assert 0 < limit(gate) <= 1000 * 2 / 3
    assert sent(gate.offer(request("large", prompt=5000, at=500), 500)) == ["large"]


def test_running_requests_are_bounded_by_what_a_step_costs():
    """A step takes 5 ms and 2 ms for each running request: 0.9 x 50 ms allow for about 20."""
    gate, now_s = taught(admission(prefill=100_000)), 100.0
    for n in range(60):
        names = [f"s{n}-{k}" for k in range(4 + n % 30)]
        running = [name for name in names if sent(gate.offer(request(name, at=now_s, terms=SLO), now_s))]
        for name in set(names) - set(running):
            gate.cancel(name, now_s)
        for name in running:
            gate.first_token(name, now_s + 0.01)
        now_s += 0.01 + 19 * (0.005 + 0.002 * len(running))
        for name in running:
            gate.finish(name, now_s, tokens=20)
    assert 15 <= gate.backends[0].ledger.slots_limit <= 25


def test_an_answer_in_one_piece_teaches_nothing_about_prompts():
    gate = admission()
    for n in range(40):
        gate.offer(request(f"r{n}", prompt=1000 + n, at=n, streams=False), n)
        gate.first_token(f"r{n}", n + 0.05)
        gate.finish(f"r{n}", n + 0.05)
    assert not gate.backends[0].rates.known


def test_requests_go_to_the_least_loaded_engine():
    gate = admission(backends=3)
    decisions = [gate.offer(request(f"r{n}", prompt=100 * (n + 1)), 0)[0] for n in range(6)]
    assert sorted(each.backend for each in decisions[:3]) == [0, 1, 2]
    assert decisions[3].backend == decisions[0].backend


def test_long_prompts_have_engines_of_their_own_which_serve_others_while_idle():
    gate = admission(backends=2, long_backends=1, slots=1)
    short = [gate.offer(request(f"s{n}"), 0)[0].backend for n in range(3)]
    assert sorted(short) == [0, 1, 2]
    assert gate.offer(request("s3"), 0) == []
    assert gate.offer(request("long", prompt=6000), 0) == []
    lent = short.index(2)
    assert sent(gate.finish(f"s{lent}", 1)) == ["long"]
    assert gate.count("p1", State.QUEUED) == 1


def test_a_long_prompt_never_goes_to_the_engines_of_the_others():
    gate = admission(backends=1, long_backends=1, slots=1)
    assert gate.offer(request("l0", prompt=6000), 0)[0].backend == 1
    assert gate.offer(request("l1", prompt=6000), 0) == []
    assert gate.offer(request("s"), 0)[0].backend == 0


def test_prompts_are_told_apart_by_the_upper_end_of_their_bucket():
    edges = (2048, 8192)
    assert [bucket_of(n, edges) for n in (1, 2048, 2049, 8192, 8193)] == [
        "2048",
        "2048",
        "8192",
        "8192",
        "inf",
    ]


def test_the_record_predicts_with_all_that_waits_ahead():
    gate = taught(admission(slots=1))
    gate.offer(request("running", prompt=1000, at=100), 100)
    gate.offer(request("first", prompt=3000, at=100), 100)
    gate.offer(request("second", prompt=2000, at=100), 100)
    refusals = gate.drain(101)
    assert [isinstance(each, Refuse) for each in refusals] == [True, True]
    record = refusals[1].record
    assert (record.ahead, record.predicted_ttft_s) == (1, pytest.approx(0.6, rel=0.1))


def stopping_scene(**low) -> Admission:
    """An engine that has just begun to prefill two seconds of a less urgent prompt."""
    gate = taught(admission())
    low = {"sheddable": True, **low}
    gate.offer(request("batch", 3, prompt=20_000, at=100, **low), 100)
    return gate


def test_a_sheddable_prompt_is_stopped_for_a_more_urgent_one_that_is_late_only_because_of_it():
    gate = stopping_scene()
    (abort,) = gate.offer(request("top", prompt=1000, at=100.1, terms=PROMISE), 100.1)
    assert (abort.id, abort.reason) == ("batch", Reason.EVICTED)
    assert abort.pushback_ms >= 50
    assert gate.expire(100.11) == []
    assert sent(gate.finish("batch", 100.15)) == ["top"]


def test_a_small_prompt_does_not_go_behind_one_that_is_to_be_stopped_for_it():
    gate = stopping_scene(terms=LOW)
    (abort,) = gate.offer(request("top", prompt=300, at=100.1, terms=PROMISE), 100.1)
    assert (abort.id, abort.reason) == ("batch", Reason.EVICTED)
    assert sent(gate.finish("batch", 100.15)) == ["top"]


async def test_who_is_stopped_is_told_when_to_come_back():
    gate, told = Gate(stopping_scene(), lambda: 100.1), []
    gate.admission.finish("batch", 100)
    await gate.enter(
        request("low", 3, prompt=20_000, at=100, sheddable=True), lambda *said: told.append(said)
    )
    waiting = asyncio.ensure_future(gate.enter(request("top", prompt=1000, at=100.1, terms=PROMISE), print))
    await asyncio.sleep(0)
    ((reason, pushback_ms),) = told
    assert reason is Reason.EVICTED
    assert pushback_ms >= 40
    gate.leave("low")
    assert (await waiting).id == "top"


@pytest.mark.parametrize(
    ("low", "top"),
    [
        ({"sheddable": False}, {}),
        ({}, {"priority": 3}),
        ({}, {"terms": Terms(ttft_s=5)}),
        ({}, {"terms": Terms()}),
        ({}, {"sheddable": True}),
    ],
)
def test_otherwise_nothing_is_stopped(low, top):
    gate = stopping_scene(**low)
    top = {"priority": 1, "terms": PROMISE, **top}
    assert gate.offer(request("top", prompt=1000, at=100.1, **top), 100.1) == []


def test_nothing_is_stopped_after_its_first_token():
    gate = stopping_scene()
    gate.first_token("batch", 102)
    gate.offer(request("more", prompt=5000, at=102), 102)
    assert gate.offer(request("top", prompt=1000, at=102, terms=PROMISE), 102) == []


def report(used=10, free=90, total=100, per=32, active=None) -> EngineReport:
    return EngineReport(used, free, total, per, active)


def test_requests_of_others_take_slots_slowly_and_never_give_any():
    gate = admission(slots=8)
    for n in range(2):
        gate.offer(request(f"own{n}"), 0)
    gate.observe(0, report(active=6), 0.0)
    ledger = gate.backends[0].ledger
    assert ledger.foreign_slots == 0
    for n in range(1, 40):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=6), 0.2 * n)
    assert ledger.foreign_slots == 4
    for n in range(40, 100):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=0), 0.2 * n)
    assert ledger.foreign_slots == 0
    assert len(sent([each for n in range(9) for each in gate.offer(request(f"new{n}", at=20), 20)])) == 6


def test_others_take_at_most_half_of_the_slots():
    gate = admission(slots=8)
    for n in range(99):
        gate.observe(0, report(used=10 + n % 2, free=90 - n % 2, active=500), 0.2 * n)
    assert gate.backends[0].ledger.foreign_slots == 4


def test_more_waiting_than_active_requests_are_absurd():
    assert not EngineReport(1, 9, 10, 32, active=2, waiting=3).plausible


def foreign(gate: Admission) -> int:
    return gate.backends[0].ledger.foreign_kv_tokens


def test_kv_that_others_hold_tightens_the_zone_slowly_and_is_given_back():
    gate = admission(kv=3200)
    gate.observe(0, report(used=50, free=50), 0.0)
    assert foreign(gate) == 160
    for n in range(60):
        gate.observe(0, report(used=50, free=50), 0.2 * n)
    assert foreign(gate) == pytest.approx(1600, rel=0.02)
    gate.offer(request("a"), 20)
    assert gate.offer(request("b", prompt=1450), 20) == []
    for n in range(60):
        gate.observe(0, report(used=4, free=96), 30 + 0.2 * n)
    assert foreign(gate) < 20


@pytest.mark.parametrize(
    ("bad", "suspicion"),
    [
        (None, Suspicion.MISSING),
        (report(used=1, free=1, total=6239), Suspicion.ABSURD),
        (report(used=-5, free=105), Suspicion.ABSURD),
        (report(used=float("nan")), Suspicion.ABSURD),
        (report(total=0, used=0, free=0), Suspicion.ABSURD),
        (report(per=0), Suspicion.ABSURD),
    ],
)
def test_what_cannot_be_believed_gives_no_room_and_shows(bad, suspicion):
    gate = admission(kv=3200)
    for n in range(60):
        gate.observe(0, report(used=50, free=50), 0.2 * n)
    before = foreign(gate)
    for n in range(60):
        gate.observe(0, bad, 20 + 0.2 * n)
    assert (foreign(gate), gate.backends[0].signal.suspicion) == (before, suspicion)


@pytest.mark.parametrize(
    ("same", "suspicion"), [(report(), Suspicion.FROZEN), (report(0, 100), Suspicion.ZERO)]
)
def test_reports_that_stand_still_while_tokens_flow_are_suspect_but_not_while_idle(same, suspicion):
    gate = admission()
    for n in range(30):
        gate.observe(0, same, 0.2 * n)
    assert gate.backends[0].signal.suspicion is Suspicion.NONE
    gate.offer(request("a", at=6), 6)
    gate.first_token("a", 6.1)
    gate.observe(0, same, 6.2)
    assert gate.backends[0].signal.suspicion is suspicion
    gate.observe(0, report(used=11, free=89), 6.4)
    assert gate.backends[0].signal.suspicion is Suspicion.NONE


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


def test_the_record_says_when_order_or_the_queue_bound_a_request():
    gate = admission(slots=1, max_queue=2)
    gate.offer(request("running"), 0)
    gate.offer(request("first"), 0)
    gate.offer(request("second"), 0)
    (refusal,) = gate.offer(request("third"), 0)
    assert (refusal.reason, refusal.record.constraint) == (Reason.QUEUE_FULL, Constraint.QUEUE)
    assert (refusal.record.measured, refusal.record.threshold) == (3, 2)
    (cancelled,) = gate.cancel("second", 1)
    assert (cancelled.record.constraint, cancelled.record.measured) == (Constraint.ORDER, 1)
    (dispatch,) = gate.finish("running", 1)
    assert dispatch.record.constraint is Constraint.DECODE


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


def test_a_tenant_that_was_away_has_no_claim_from_then():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(40):
        gate.offer(request(f"busy{n}", tenant="busy"), 0)
    running = "running"
    for _ in range(20):
        (running,) = sent(gate.finish(running, 1))
    for n in range(20):
        gate.offer(request(f"back{n}", tenant="back"), 1)
    order = order_of(gate, running)
    assert sum(name.startswith("back") for name in order[:20]) in (9, 10, 11)


def test_what_starved_ones_owe_is_forgotten_when_nobody_waits():
    gate = admission(slots=1, starvation_ms=1000.0)
    running = "running"
    gate.offer(request(running), 0)
    for round_s in (10, 20):
        gate.offer(request(f"low{round_s}", 2, prompt=5000, at=round_s - 5), round_s)
        gate.offer(request(f"top{round_s}", at=round_s), round_s)
        order = order_of(gate, running, round_s)
        assert order == [f"low{round_s}", f"top{round_s}"]
        running = f"next{round_s}"
        gate.offer(request(running, at=round_s), round_s)


def test_one_is_stopped_at_a_time_and_the_next_when_the_engine_has_let_go():
    gate = taught(admission(prefill=40_000))
    for n in range(3):
        gate.offer(request(f"batch{n}", 3, prompt=13_000, at=100, sheddable=True), 100)
    decisions = gate.offer(request("top", prompt=2000, at=100, terms=Terms(ttft_s=3.2)), 100)
    assert [each.id for each in decisions] == ["batch2"]
    assert gate.expire(100.01) == []
    assert sent(gate.finish("batch2", 100.02)) == ["top"]
    (abort,) = gate.offer(request("other", prompt=15_000, at=100.1, terms=Terms(ttft_s=3.4)), 100.1)
    assert (abort.id, abort.reason) == ("batch1", Reason.EVICTED)


def test_a_rate_that_nothing_will_refresh_refuses_nobody():
    """Long answers go on, but no prompt is in flight: the last rate may be out of date."""
    gate = taught(admission())
    gate.offer(request("talker", at=100), 100)
    gate.first_token("talker", 100.1)
    assert [each.reason for each in gate.offer(request("a", prompt=9000, at=101, terms=PROMISE), 101)] == [
        Reason.IMPOSSIBLE
    ]
    assert sent(gate.offer(request("b", prompt=9000, at=150, terms=PROMISE), 150)) == ["b"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 900), st.booleans()), min_size=30, max_size=120), st.integers(0, 25))
def test_nobody_who_waits_is_passed_for_ever(others, at):
    """Under a stream of urgent requests a single other one is dispatched once it has starved."""
    gate = admission(slots=1, starvation_ms=5000.0, max_queue=1000)
    gate.offer(request("running"), 0)
    running, dispatched_s = "running", None
    for n, (prompt, sheddable) in enumerate(others):
        gate.offer(request(f"top{n}", prompt=prompt, at=n), n)
        if n == at:
            gate.offer(request("low", 2, prompt=500, at=n, sheddable=sheddable), n)
        (running,) = sent(gate.finish(running, n + 0.5))
        if running == "low":
            dispatched_s = n + 0.5
    if len(others) > at + 7:
        assert dispatched_s is not None
        assert dispatched_s - at <= 6.5


def test_a_tenant_that_sends_one_at_a_time_among_many_is_charged_for_each():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(60):
        gate.offer(request(f"t{n}", prompt=10, tenant=f"t{n}"), 0)
    running, served = "running", []
    for n in range(70):
        if n >= 55:
            gate.offer(request(f"ann{n}", prompt=500, tenant="ann"), 0)
            gate.offer(request(f"bob{n}", prompt=500, tenant="bob"), 0)
        (running,) = sent(gate.finish(running, 1.0, tokens=20))
        served.append(running[:3])
    assert abs(served.count("ann") - served.count("bob")) <= 1


def test_tenants_that_come_once_are_forgotten():
    gate = admission(slots=1, max_queue=10)
    gate.offer(request("r0", tenant="t0"), 0)
    for n in range(1, 6000):
        gate.offer(request(f"r{n}", prompt=10, tenant=f"t{n}"), n)
        gate.finish(f"r{n - 1}", n, tokens=5)
    gate.offer(request("last"), 6000)
    assert len(gate.pools[0].queue.bands[0]._lanes) < 4000
