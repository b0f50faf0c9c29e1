"""Several engines, and pools of them for prompts of different lengths."""

from __future__ import annotations

from tests.proxy.admission.scene import admission, request, sent
from trtkit.proxy.admission import (
    Reason,
    State,
)


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


def test_a_backlog_of_long_prompts_refuses_no_short_one():
    gate = admission(slots=1, prefill=20_000, long_backends=1, max_queue=2)
    for n in range(5):
        gate.offer(request(f"long{n}", prompt=6000, output=1), 0)
    (refusal,) = gate.offer(request("longer", prompt=7000), 0)
    assert refusal.reason is Reason.QUEUE_FULL
    assert not gate.would_refuse(1)
    assert sent(gate.offer(request("short"), 0)) == ["short"]
    short_ms, long_ms = (gate.pushback_ms(Reason.QUEUE_FULL, 1, 100, 1.0, pool) for pool in gate.pools)
    assert short_ms < long_ms


def test_who_waits_elsewhere_comes_back_with_its_pools_server():
    gate = admission(slots=1, long_backends=1)
    gate.offer(request("long", prompt=6000, output=1), 0)
    gate.eject(0, 0)
    assert gate.offer(request("short"), 0) == []
    assert sent(gate.readmit(0, 1)) == ["short"]
