"""Sheddable prompts that are stopped before their first token."""

from __future__ import annotations

import asyncio

import pytest

from tests.proxy.admission.scene import LOW, PROMISE, admission, request, sent, taught
from trtkit.proxy.admission import (
    Admission,
    Reason,
    Terms,
)
from trtkit.proxy.gate import Gate


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
