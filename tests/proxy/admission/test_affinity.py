"""Prompts that begin alike go where their beginning was read, while that is worth it."""

from __future__ import annotations

from tests.proxy.admission.scene import admission, request
from trtkit.proxy.admission import Dispatch


def engine_of(gate, name, prompt=600, **more) -> int:
    (dispatch,) = gate.offer(request(name, prompt=prompt, **more), 0)
    assert isinstance(dispatch, Dispatch)
    return dispatch.backend


def done(gate, *names):
    for name in names:
        gate.first_token(name, 0)
        gate.finish(name, 0)


def test_a_conversation_goes_on_at_the_engine_that_read_its_beginning():
    gate = admission(backends=3)
    assert [engine_of(gate, f"t{n}", affinity=n + 1) for n in range(3)] == [0, 1, 2]
    done(gate, "t0", "t1", "t2")
    assert engine_of(gate, "again", affinity=3) == 2
    done(gate, "again")
    assert engine_of(gate, "plain") == 0


def test_an_engine_with_more_before_it_than_the_prompt_would_take_elsewhere_is_left():
    gate = admission(backends=2, prefill=10_000)
    assert engine_of(gate, "first", affinity=1) == 0
    assert engine_of(gate, "short", prompt=100, affinity=1) == 1
    assert engine_of(gate, "long", prompt=4000, affinity=1) == 1
    done(gate, "short", "long")
    assert engine_of(gate, "next", prompt=4000, affinity=1) == 1


def test_an_engine_without_room_or_that_is_away_is_left():
    gate = admission(backends=2, slots=1)
    assert engine_of(gate, "first", affinity=1) == 0
    assert engine_of(gate, "second", affinity=1) == 1
    done(gate, "first", "second")
    gate.eject(1, 0)
    assert engine_of(gate, "third", affinity=1) == 0
