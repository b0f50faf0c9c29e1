"""Rates at which promises hold: against an engine that is played through, and against what others print."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.published import published
from trtkit.plan import Machine, make_plan
from trtkit.plan.types import Workload
from trtkit.plan.waiting import Waiting

PROMPT_MS, STEP_MS, TOKENS = 40.0, 10.0, 60


def share_late(slots, per_ms, may_take_ms, requests=6000):
    """Play an engine that takes one prompt between two steps of all that decode; return the share that is late."""
    random.seed(7)
    arrival, arrivals = 0.0, deque()
    for _ in range(requests):
        arrival += random.expovariate(per_ms)
        arrivals.append(arrival)
    now, left, late = 0.0, [], 0
    while arrivals:
        came = None
        if arrivals[0] <= now and len(left) < slots:
            came, now = arrivals.popleft(), now + PROMPT_MS
            left.append(TOKENS)
        elif not left:
            now = arrivals[0]
            continue
        now += STEP_MS
        late += came is not None and now - came > may_take_ms
        left = [each - 1 for each in left if each > 1]
    return late / requests


@pytest.mark.parametrize("slots", [4, 16, 64])
@pytest.mark.parametrize("patience_ms", [100.0, 500.0, 2000.0])
@pytest.mark.parametrize("allowed", [0.01, 0.1])
def test_at_the_rate_that_is_told_the_promise_holds(slots, patience_ms, allowed):
    alone = PROMPT_MS + STEP_MS
    # While all slots are taken a request sees the prompts of the others once.
    held = alone + TOKENS * STEP_MS + (slots - 1) * PROMPT_MS
    rate = Waiting(alone, slots, held).most_per_ms(patience_ms, allowed)
    assert share_late(slots, rate, alone + patience_ms) <= allowed * 1.2
    most = min(1 / alone, slots / held)
    assert share_late(slots, 1.1 * most, alone + patience_ms) > allowed


@given(
    prompt=st.floats(1, 1000),
    slots=st.integers(1, 512),
    held=st.floats(1000, 10**5),
    patience=st.floats(0, 10**5),
    allowed=st.floats(0.001, 0.5),
)
def test_who_waits_longer_lets_more_come(prompt, slots, held, patience, allowed):
    queue = Waiting(prompt, slots, held)
    rate = queue.most_per_ms(patience, allowed)
    assert 0 < rate <= queue.most_per_ms(2 * patience + 1, allowed) <= min(1 / prompt, slots / held)
    assert queue.most_per_ms(-1, allowed) == 0


def test_a_promise_costs_rate(contract_with):
    def pace(**promises):
        classes = {"a": {"priority": 1, **promises}}
        engine = {"backend": "tensorrt", "gpu": "h100-sxm"}
        contract = contract_with(engine=engine, classes=classes)
        return make_plan(
            contract, published("llama-3.1-8b"), Machine(2, None), workload=Workload(2000, 300)
        ).pace

    loose, tight, broken = pace(ttft_ms=10_000), pace(ttft_ms=200), pace(ttft_ms=1)
    assert 0 == broken.kept_requests_per_s < tight.kept_requests_per_s < loose.kept_requests_per_s
    assert loose.kept_requests_per_s <= loose.requests_per_s
    assert pace(tpot_ms=40).kept_requests_per_s > 0.9 * pace(tpot_ms=40).requests_per_s
    assert pace().kept_requests_per_s is None


@pytest.mark.parametrize(
    ("gpu", "weights", "kv_cache", "batch", "tpot_ms", "tokens_per_s"),
    [
        ("h200", "none", "auto", 32, 11.50, 2689),
        ("h200", "fp8", "fp8", 32, 8.41, 3685),
        ("a100-80", "int8-sq", "auto", 32, 18.76, 1642),
        ("a100-80", "int8-wo", "auto", 32, 24.93, 1225),
        ("l40s", "fp8", "fp8", 16, 23.36, 658),
    ],
)
def test_the_silicon_table_is_near_what_its_source_says_of_serving(
    contract_with, gpu, weights, kv_cache, batch, tpot_ms, tokens_per_s
):
    """`aiconfigurator cli estimate` 0.12.0, Llama-3.1-8B, 2000 tokens in and 300 out."""
    contract = contract_with(
        engine={"backend": "tensorrt", "gpu": gpu, "limits": {"max_batch_size": batch}},
        quantization={"weights": weights, "kv_cache": kv_cache},
    )
    plan = make_plan(contract, published("llama-3.1-8b"), Machine(2, None), workload=Workload(2000, 300))
    assert plan.pace.basis.value == "silicon"
    assert plan.pace.classes[0].tpot_ms == pytest.approx(tpot_ms, rel=0.15)
    assert 300 * plan.pace.requests_per_s == pytest.approx(tokens_per_s, rel=0.2)
