"""Rows are slots: what one gives does not depend on how its tokens came, nor on who else is served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")

from tests.engine.graph.conftest import FORMS
from tests.engine.graph.session import Session

RNG = np.random.default_rng(5)
PROMPTS = RNG.integers(0, 400, (4, 40))


@pytest.fixture(params=FORMS)
def session(write: Any, request: pytest.FixtureRequest) -> Session:
    return write(spec=request.param).session()


def fresh(session: Session) -> Session:
    """Return the session with empty rows whose caches still hold what others wrote."""
    session.lengths[:] = 0
    return session


def alone(session: Session, row: int, tokens: Any) -> Any:
    return fresh(session).step([row], np.asarray(tokens)[None])[0]


def test_the_logits_of_each_position_are_those_of_a_prompt_that_ends_there(session: Session) -> None:
    whole = [alone(session, 0, PROMPTS[0][: size + 1]) for size in range(20)]
    fresh(session)
    steps = [session.step([0], [[token]])[0] for token in PROMPTS[0][:20]]
    np.testing.assert_allclose(steps, whole, atol=1e-4)


@pytest.mark.parametrize("chunks", [[31, 1, 8], [16, 16, 8], [1, 32, 7], [5] * 8])
def test_a_prompt_in_chunks_is_the_prompt(session: Session, chunks: list[int]) -> None:
    whole = alone(session, 1, PROMPTS[1])
    fresh(session)
    for start, size in zip(np.cumsum([0, *chunks]), chunks, strict=False):
        logits = session.step([1], PROMPTS[1][None, start : start + size])
    np.testing.assert_allclose(logits[0], whole, atol=1e-4)


def test_the_position_that_is_asked_for_is_the_one_that_is_given(session: Session) -> None:
    expected = alone(session, 2, PROMPTS[2][:9])
    fresh(session)
    np.testing.assert_allclose(session.step([2], PROMPTS[2][None, :30], last=[8])[0], expected, atol=1e-4)


def test_rows_do_not_depend_on_each_other(session: Session) -> None:
    """Bit for bit: the same kernels, whatever the neighbours hold."""
    lengths = [3, 17, 25, 1]
    outcomes = []
    for seed in (1, 2):
        fresh(session)
        others = np.random.default_rng(seed).integers(0, 400, (4, 40))
        others[1] = PROMPTS[1]
        for row, length in enumerate(lengths):
            session.step([row], others[row][None, :length])
        logits = [session.step([0, 1, 2, 3], others[:, 30 + i : 31 + i]) for i in range(5)]
        outcomes.append(np.array(logits)[:, 1])
    np.testing.assert_array_equal(*outcomes)


def test_an_idle_row_that_writes_at_its_length_changes_nothing(session: Session) -> None:
    """The other rows go on for three steps; then the row's request does, from where it was."""
    expected = alone(session, 0, PROMPTS[0][:21])
    fresh(session)
    session.step([0], PROMPTS[0][None, :20])
    for step in range(3):
        session.step([0, 1], [[7], [PROMPTS[1][step]]])
        session.lengths[0] = 20
    np.testing.assert_allclose(session.step([0], PROMPTS[0][None, 20:21])[0], expected, atol=1e-4)


def test_the_last_place_of_a_slot_can_be_filled(session: Session) -> None:
    tokens = np.tile(PROMPTS[3], 2)[: session.spec.capacity_tokens]
    alone(session, 3, tokens[:-1])
    last = session.step([3], tokens[None, -1:])
    assert session.lengths[3] == session.spec.capacity_tokens
    np.testing.assert_allclose(last[0], alone(session, 3, tokens), atol=1e-4)


def test_any_order_of_joining_and_leaving_gives_the_same(write: Any) -> None:
    """Requests take a slot when one is free, and all are fed by whatever chunks a schedule has."""
    sessions = [write().session()]
    expected = [alone(sessions[0], 0, prompt[:12]) for prompt in PROMPTS]

    @settings(max_examples=25)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        session = fresh(sessions[0])
        row_of = data.draw(st.permutations(range(4)))
        fed, given_logits = [0] * 4, [None] * 4
        while min(fed) < 12:
            request = data.draw(st.sampled_from([i for i in range(4) if fed[i] < 12]))
            size = data.draw(st.integers(1, 12 - fed[request]))
            part = PROMPTS[request][None, fed[request] : fed[request] + size]
            given_logits[request] = session.step([row_of[request]], part)[0]
            fed[request] += size
        np.testing.assert_allclose(given_logits, expected, atol=1e-4)

    check()
