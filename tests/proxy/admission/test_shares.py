"""How much of each zone a band may fill, and what the record says of it."""

from __future__ import annotations

import pytest

from tests.proxy.admission.scene import LOW, admission, request, sent, taught
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import (
    Constraint,
    Reason,
    Refuse,
    Terms,
    terms_of,
)
from trtkit.proxy.admission.record import bucket_of


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


def test_a_record_has_the_numbers_of_the_last_time_that_it_was_held_back():
    gate = admission(prefill=1000, slots=9)
    gate.offer(request("x", prompt=600), 0)
    gate.offer(request("y", prompt=400), 0)
    gate.offer(request("z", prompt=700), 0)
    gate.first_token("y", 1)
    (dispatch,) = gate.first_token("x", 2)
    assert dispatch.record.bound == (Constraint.PREFILL, 1300, 1000)


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
