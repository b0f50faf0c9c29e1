"""An admission with a played engine, for its tests."""

from __future__ import annotations

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.plan.types import Zones
from trtkit.proxy.admission import (
    Admission,
    Dispatch,
    PoolSpec,
    Request,
    Terms,
)

RATE = 10_000.0
"""Prompt tokens per second of the engine that the tests play."""

TOP, LOW = Terms(1.0), Terms(0.5)
PROMISE = Terms(ttft_s=0.5)


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


def order_of(gate: Admission, running: str, now_s: float = 1.0) -> list[str]:
    found = []
    while dispatched := sent(gate.finish(running, now_s)):
        running = dispatched[0]
        found.append(running)
    return found
