"""Who goes next: inside a band, between bands, between tenants."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.admission.scene import admission, order_of, request, sent
from trtkit.contract.scheduling import Order
from trtkit.proxy.admission import (
    Reason,
    Terms,
)


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


def test_only_so_many_pass_one_that_has_starved_and_does_not_fit():
    gate = admission(prefill=100_000, kv=10_000, skip_ahead=3, starvation_ms=1000.0)
    gate.offer(request("running", prompt=6000), 0)
    gate.offer(request("big", 3, prompt=5000), 0)
    passed = [name for n in range(6) for name in sent(gate.offer(request(f"top{n}", at=2), 2))]
    assert passed == ["top0", "top1", "top2"]
    assert sent(gate.finish("running", 3))[0] == "big"


def test_a_tenant_that_floods_does_not_hold_up_another():
    gate = admission(slots=1)
    gate.offer(request("running"), 0)
    for n in range(50):
        gate.offer(request(f"flood{n}", tenant="flood"), 0)
    gate.offer(request("quiet", tenant="quiet"), 0)
    assert "quiet" in order_of(gate, "running")[:2]


def flooded(tenants, max_queue=10):
    """One request runs, and so many of each tenant were sent after it."""
    gate = admission(slots=1, max_queue=max_queue)
    gate.offer(request("running"), 0)
    for tenant, count in tenants.items():
        for n in range(count):
            gate.offer(request(f"{tenant}{n}", tenant=tenant, at=0.01 * n), 0.01 * n)
    return gate


def test_a_flood_keeps_no_other_tenant_out_of_a_full_queue():
    gate = flooded({"flood": 30})
    assert gate.would_refuse(1, "flood")
    for n in range(5):
        assert not gate.would_refuse(1, "quiet")
        (refusal,) = gate.offer(request(f"quiet{n}", tenant="quiet", at=1), 1)
        assert (refusal.id, refusal.reason) == (f"flood{9 - n}", Reason.QUEUE_FULL)
    assert gate.would_refuse(1, "quiet")
    (refusal,) = gate.offer(request("quiet5", tenant="quiet", at=1), 1)
    assert refusal.id == "quiet5"


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60))
def test_nobody_with_less_than_a_fair_share_is_refused(arrivals):
    gate, waiting = flooded({}), Counter()
    for n, tenant in enumerate(arrivals):
        name = f"{tenant}/{n}"
        early = gate.would_refuse(1, tenant)
        waiting[tenant] += 1
        decisions = gate.offer(request(name, tenant=tenant, at=n), n)
        refused = [each.id.split("/")[0] for each in decisions]
        assert early == (refused == [tenant])
        assert all(waiting[each] == max(waiting.values()) for each in refused)
        waiting.subtract(refused)
        assert sum(waiting.values()) <= 10


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


def test_the_queue_is_bounded_in_prompt_tokens_too_and_one_may_wait_alone():
    gate = admission(slots=1, max_queue_tokens=1000)
    gate.offer(request("runs"), 0)
    assert gate.offer(request("long", 2, prompt=5000, sheddable=True), 0) == []
    (refused,) = gate.offer(request("next", 2, prompt=100), 0)
    assert (refused.id, refused.reason) == ("next", Reason.QUEUE_FULL)
    assert gate.would_refuse(2)
    assert not gate.would_refuse(1)
    (shed,) = gate.offer(request("urgent", 1, prompt=900), 0)
    assert (shed.id, shed.reason) == ("long", Reason.SHED)
    assert (shed.record.constraint, shed.record.measured, shed.record.threshold) == ("queue", 5900, 1000)


def test_one_long_newcomer_takes_the_place_of_several():
    gate = admission(slots=1, max_queue_tokens=1000)
    gate.offer(request("runs"), 0)
    for n in range(9):
        assert gate.offer(request(f"low{n}", 2, prompt=100, sheddable=True), 0) == []
    shed = gate.offer(request("urgent", 1, prompt=500), 0)
    assert [each.id for each in shed] == ["low8", "low7", "low6", "low5"]
