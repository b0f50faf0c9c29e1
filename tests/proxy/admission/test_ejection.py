"""Engines that come and go under admission, in pools."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Admission, Dispatch, PoolSpec, Reason, Refuse, Request, State

ZONES = Zones(prefill_tokens=1000, kv_tokens=100_000, decode_slots=2)
LONG = 1000
BACKENDS = 4  # three for all prompts, one for long ones


def admission(backends=3, long_backends=1, **rules) -> Admission:
    longer = [PoolSpec(ZONES, 32, long_backends, LONG)] if long_backends else []
    return Admission(AdmissionRules(**rules), ZONES, 32, backends=backends, longer=longer)


def request(key, prompt=100, *, sheddable=False, priority=1) -> Request:
    return Request(key, "any", priority, prompt, 28, 0.0, sheddable=sheddable)


def sent(decisions) -> dict[str, int]:
    return {each.id: each.backend for each in decisions if isinstance(each, Dispatch)}


def refused(decisions) -> dict[str, Reason]:
    return {each.id: each.reason for each in decisions if isinstance(each, Refuse)}


def test_an_ejected_engine_gets_nothing_until_it_is_readmitted():
    gate = admission(2, 0)
    gate.eject(0, 0)
    gate.eject(0, 0)  # twice is once
    assert [sent(gate.offer(request(f"r{n}"), 0)) for n in range(3)] == [{"r0": 1}, {"r1": 1}, {}]
    assert sent(gate.readmit(0, 1)) == {"r2": 0}
    assert gate.readmit(0, 1) == []


def test_what_waits_is_refused_when_the_last_engine_goes():
    gate = admission(1, 0)
    for n in range(3):
        gate.offer(request(f"r{n}"), 0)
    assert refused(gate.eject(0, 1)) == {"r2": Reason.NO_BACKEND}
    assert refused(gate.offer(request("late"), 1)) == {"late": Reason.NO_BACKEND}
    assert gate.count("any", State.PREFILLING) == 2  # left to their own ends
    gate.finish("r0", 2)
    assert sent(gate.readmit(0, 2)) == {}
    assert sent(gate.offer(request("next"), 2)) == {"next": 0}


def test_what_waits_for_a_pool_without_engines_goes_to_that_of_longer_prompts_and_never_back():
    gate = admission(1, 1)
    for n in range(6):
        gate.offer(request(f"r{n}"), 0)  # two at their engine, one at that which idles, three wait
    assert sent(gate.eject(0, 1)) == {"r3": 1}
    assert sent(gate.finish("r2", 2)) == {"r4": 1}
    gate.readmit(0, 3)
    gate.eject(1, 4)
    assert refused(gate.offer(request("long", LONG), 5)) == {"long": Reason.NO_BACKEND}


def test_nobody_is_stopped_at_an_engine_that_is_out():
    gate = admission(2, 0)
    gate.offer(request("batch", 900, sheddable=True, priority=2), 0)
    pool, backend = gate.pools[0], gate.backends[0]
    assert list(pool.stoppable) == [0]
    gate.eject(0, 0)
    assert not pool.stoppable
    gate.readmit(0, 0)
    assert list(pool.stoppable) == [0]
    gate.finish("batch", 1)
    assert (pool.stoppable, backend.ledger.prefill_tokens, pool.idle) == ({}, 0, True)


events = st.lists(
    st.tuples(
        st.sampled_from(["offer", "offer", "first", "finish", "finish", "eject", "readmit"]),
        st.integers(1, 2000),
    ),
    max_size=60,
)


class Host:
    """Drives admission as the proxy does, and checks every decision."""

    def __init__(self) -> None:
        self.gate = admission()
        self.up = set(range(BACKENDS))
        self.waiting: dict[str, int] = {}
        """Prompt tokens of who waits."""
        self.running: list[str] = []
        self.now_s = 0.0

    def do(self, what: str, number: int) -> None:
        self.now_s += 0.01
        if what == "offer":
            self.offer(number)
        elif what in ("eject", "readmit"):
            getattr(self, what)(number % BACKENDS)
        elif self.running and what == "first":
            self.apply(self.gate.first_token(self.running[number % len(self.running)], self.now_s))
        elif self.running:
            self.apply(self.gate.finish(self.running.pop(number % len(self.running)), self.now_s))
        self.check()

    def offer(self, number: int) -> None:
        key = f"r{self.now_s:.2f}"
        self.waiting[key] = number
        self.apply(self.gate.offer(request(key, number)._replace(arrival_s=self.now_s), self.now_s))

    def eject(self, backend: int) -> None:
        self.up.discard(backend)
        self.apply(self.gate.eject(backend, self.now_s))

    def readmit(self, backend: int) -> None:
        self.up.add(backend)
        self.apply(self.gate.readmit(backend, self.now_s))

    def apply(self, decisions) -> None:
        for each in decisions:
            prompt = self.waiting.pop(each.id)
            if isinstance(each, Dispatch):
                assert each.backend in self.up
                assert each.backend == 3 or prompt < LONG
                self.running.append(each.id)
            else:
                assert each.reason is Reason.NO_BACKEND
                assert not self.up & ({3} if prompt >= LONG else {0, 1, 2, 3})

    def check(self) -> None:
        queued = sum(len(pool.queue) for pool in self.gate.pools)
        assert self.gate.count("any", State.QUEUED) == len(self.waiting) == queued
        idle = {each.index for each in self.gate.backends if not each.ledger.decode_slots} & self.up
        assert not (self.waiting and 3 in idle)
        assert not (self.gate.pools[0].queue.length and idle)


@settings(max_examples=150, deadline=None)
@given(events)
def test_under_any_schedule_engines_that_are_out_get_nothing_and_nobody_is_lost(schedule):
    host = Host()
    for what, number in schedule:
        host.do(what, number)
    for backend in range(BACKENDS):
        host.readmit(backend)
    while host.running:
        host.do("finish", 0)
    assert not host.waiting
    for pool in host.gate.pools:
        assert pool.idle
        assert pool.prefill_tokens == 0
        assert all(each.ledger.kv_tokens == each.ledger.decode_slots == 0 for each in pool.backends)
