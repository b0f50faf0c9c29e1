"""Rates, step times, and the feedback that shrinks a zone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.admission.scene import admission, request, sent, taught
from trtkit.proxy.admission import (
    Admission,
    Terms,
)
from trtkit.proxy.admission.fit import LineFit


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
