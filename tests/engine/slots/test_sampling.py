"""Tokens drawn from known logits follow the distribution that the request asks for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.engine.inflight.request import GenerationRequest
from trtkit.engine.inflight.sampling import choose, log_softmax, nucleus
from trtkit.errors import InputError, StageError

P = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
LOGITS = np.log(P).astype(np.float32) + 3


def draw(generated=(), masked=(), logits=LOGITS, **fields):
    return choose(logits, GenerationRequest("a", [0, 1], 99, **fields), list(generated), masked).id


def shares(draws=4000, **fields):
    tokens = [draw(seed=seed, **fields) for seed in range(draws)]
    return np.bincount(tokens, minlength=len(P)) / draws


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1.0}, P),
        ({"temperature": 0.5}, P**2 / (P**2).sum()),
        ({"top_k": 2}, np.array([4, 3, 0, 0, 0]) / 7),
        # 0.4 + 0.3 is less than 0.8, the third reaches it.
        ({"top_p": 0.8}, np.array([0.4, 0.3, 0.15, 0, 0]) / 0.85),
        ({"top_k": 3, "top_p": 0.5}, np.array([4, 3, 0, 0, 0]) / 7),
        ({"temperature": 1.0, "masked": [0]}, np.array([0, 0.3, 0.15, 0.1, 0.05]) / 0.6),
    ],
)
def test_shares_are_those_of_the_distribution(fields, expected):
    # A share of 4000 draws has a standard deviation of 0.008 at most.
    assert shares(**fields) == pytest.approx(expected, abs=0.03)


def test_every_position_has_a_draw_of_its_own():
    tokens = {draw(generated=[3] * n, temperature=1.0, seed=5) for n in range(40)}
    assert len(tokens) > 2
    assert len({draw(temperature=1.0, seed=5) for _ in range(9)}) == 1


@given(
    logits=st.lists(st.integers(-100, 100).map(lambda value: value / 8), min_size=2, max_size=40),
    top_k=st.integers(0, 50),
    top_p=st.floats(0.05, 1.0),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_draw_is_among_the_likeliest_that_are_asked_for(logits, top_k, top_p, seed):
    token = draw(
        logits=np.array(logits, np.float32), temperature=1.0, top_k=top_k or None, top_p=top_p, seed=seed
    )
    likelier = [value for value in logits if value > logits[token]]
    mass = np.exp(np.array(logits) - max(logits))
    assert len(likelier) < (top_k or len(logits))
    assert np.exp(np.array(likelier) - max(logits)).sum() <= top_p * mass.sum() + 1e-9


@given(top_p=st.floats(0.01, 0.999) | st.just(1.0), temperature=st.sampled_from([0.3, 1.0, 4.0]))
def test_a_nucleus_of_a_large_vocabulary_is_the_one_that_a_full_sort_finds(top_p, temperature):
    row = np.random.default_rng(5).standard_normal(5000) * 3 / temperature
    row[::7] = -np.inf
    row = log_softmax(row)
    order = np.argsort(-row, kind="stable")
    mass = np.cumsum(np.exp(row[order]))
    expected = order[: int((mass < top_p).sum()) + 1] if top_p < 1 else np.flatnonzero(np.isfinite(row))
    assert set(nucleus(row, 0, top_p)) == set(expected)


def test_penalties_count_what_they_say():
    flat = np.zeros(5, np.float32)
    flat[2] = 1.0
    assert draw(logits=flat, generated=[2], presence_penalty=1.5) != 2
    assert draw(logits=flat, generated=[2], frequency_penalty=0.6) == 2
    assert draw(logits=flat, generated=[2, 2], frequency_penalty=0.6) != 2
    # The prompt is [0, 1]: only repetition counts it.
    flat[1] = 1.2
    assert draw(logits=flat, presence_penalty=2.0) == 1
    assert draw(logits=flat, repetition_penalty=1.5) == 2


def test_log_probs_are_those_of_what_the_token_was_drawn_from():
    asked = GenerationRequest("a", [0], 9, return_log_probs=True)
    assert choose(LOGITS, asked, [], []).log_prob == pytest.approx(np.log(0.4))
    asked = GenerationRequest("a", [0], 9, return_log_probs=True, temperature=0.5)
    token = choose(LOGITS, asked, [], [])
    assert token.log_prob == pytest.approx(np.log((P**2 / (P**2).sum())[token.id]))


def test_the_end_is_not_chosen_too_early():
    assert draw(end_id=0, min_tokens=2) == 1
    assert draw(end_id=0, min_tokens=2, generated=[1, 1]) == 0


def test_nothing_to_choose_from_says_why():
    with pytest.raises(InputError, match="bad words leave no token"):
        draw(masked=range(5))
    for broken in (np.nan, np.inf):
        logits = LOGITS.copy()
        logits[1] = broken
        with pytest.raises(StageError, match="logits are not finite"):
            draw(logits=logits)
