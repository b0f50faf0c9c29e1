"""What the whole policy keeps to under any schedule: several engines, tenants, promises, a pool for long prompts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.admission.host import Host
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.scheduling import OnInfeasible
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import Zones
from trtkit.proxy.admission import (
    Admission,
    Dispatch,
    PoolSpec,
    Request,
    State,
    TimeLimits,
    terms_of,
)
from trtkit.proxy.admission.queue import RELEGATED

STARVATION_S = 20.0
MINIMUM_SHARE = 0.05
ZONES = Zones(prefill_tokens=600, kv_tokens=4096, decode_slots=4)
CLASSES = {
    "gold": ServiceClass(priority=1, ttft_ms=2000.0, tpot_ms=100.0),
    "silver": ServiceClass(priority=2, ttft_ms=6000.0, on_infeasible=OnInfeasible.RELEGATE),
    "bronze": ServiceClass(priority=3, sheddable=True),
}
LONG_TOKENS = 1000

arrival = st.tuples(
    st.just("offer"),
    st.sampled_from(sorted(CLASSES)),
    st.sampled_from(["ann", "bob", "cid"]),
    st.integers(1, 2000),
    st.integers(1, 200),
)
event = st.tuples(st.sampled_from(["first", "token", "finish", "cancel"]), st.integers(0, 1_000))
schedule = st.lists(st.tuples(st.floats(0, 2), st.one_of(arrival, arrival, event, event, event)), max_size=80)
fleets = st.sampled_from([(1, 0), (3, 0), (3, 1)])


class Fleet(Host):
    """Several engines, some of them for long prompts, with tenants and promises."""

    def __init__(self, backends: int, long_backends: int) -> None:
        rules = AdmissionRules(
            max_queue=8,
            starvation_ms=STARVATION_S * 1000,
            minimum_share=MINIMUM_SHARE,
        )
        longer = [PoolSpec(ZONES, 32, long_backends, LONG_TOKENS + 1)] if long_backends else []
        super().__init__(Admission(rules, ZONES, 32, backends=backends - long_backends, longer=longer))
        self.terms = terms_of(CLASSES, rules.holdback)
        self.long_backends = long_backends
        self.passing_tokens = self.other_tokens = 0
        """Prompt tokens of silver that went before gold by its minimum share, and of all others."""

    def check_state(self) -> None:
        self.check_zones()
        self.check_work_is_conserved()

    def is_long(self, request: Request) -> bool:
        return bool(self.long_backends) and request.prompt_tokens > LONG_TOKENS

    def check_order(self, decision: Dispatch) -> None:
        """Nobody goes before a more urgent one of its queue, except who starved, or is owed a share of the others'."""
        chosen = self.arrived[decision.id]
        if self.now_s - chosen.arrival_s >= STARVATION_S:
            return
        tickets = self.gate._tickets
        kept = [key for key in self.waiting - {chosen.id} if key in tickets and not tickets[key].relegated]
        others = [
            self.arrived[key] for key in kept if self.is_long(self.arrived[key]) == self.is_long(chosen)
        ]
        rank = RELEGATED if decision.record.relegated else chosen.priority
        passed = any(other.priority < rank for other in others)
        if chosen.class_name == "silver" and not decision.record.relegated:
            # Silver is the least urgent class that is kept: it has the minimum share.
            self.passing_tokens += chosen.prompt_tokens if passed else 0
            assert self.passing_tokens <= MINIMUM_SHARE * self.other_tokens
            return
        self.other_tokens += chosen.prompt_tokens
        assert not passed

    def check_zones(self) -> None:
        for backend in self.gate.backends:
            ledger = backend.ledger
            assert 0 <= ledger.decode_slots <= ZONES.decode_slots
            assert 0 <= ledger.kv_tokens <= ZONES.kv_tokens
            assert 0 <= ledger.spared_tokens <= ledger.prefill_tokens
            assert ledger.prefill_tokens - ledger.spared_tokens <= ZONES.prefill_tokens
        assert sum(each.ledger.decode_slots for each in self.gate.backends) == len(self.running)
        waiting = sum(len(pool.queue) for pool in self.gate.pools)
        assert waiting == len(self.waiting) == sum(self.gate.count(name, State.QUEUED) for name in CLASSES)
        for pool in self.gate.pools:
            assert pool.prefill_tokens == sum(each.ledger.prefill_tokens for each in pool.backends)

    def check_work_is_conserved(self) -> None:
        """An engine never idles while somebody waits for it; the pool for long prompts lends itself out when idle."""
        for pool in self.gate.pools:
            if any(not each.ledger.decode_slots for each in pool.backends):
                assert not len(pool.queue)
        if self.long_backends and self.gate.pools[1].idle:
            assert not len(self.gate.pools[0].queue)

    def offer(self, class_name, tenant, prompt, output) -> None:
        promise, key = CLASSES[class_name], f"r{len(self.arrived)}"
        request = Request(
            *(key, class_name, promise.priority, prompt, output, self.now_s, TimeLimits.of(promise)),
            sheddable=promise.sheddable,
            tenant=tenant,
            terms=self.terms[class_name],
        )
        self.apply(self.arrive(request))

    def play(self, steps) -> None:
        for delay_s, (what, *arguments) in steps:
            self.now_s += delay_s
            self.apply(self.gate.expire(self.now_s))
            self.offer(*arguments) if what == "offer" else self.act(what, *arguments)

    def run_dry(self) -> None:
        while self.running:
            self.now_s += 0.1
            self.apply(self.gate.first_token(min(self.running), self.now_s))
            self.now_s += 0.1
            self.finish(min(self.running))


@settings(max_examples=300, deadline=None)
@given(fleets, schedule)
def test_every_arrival_has_one_end_and_the_ledgers_return_to_zero(fleet, steps):
    host = Fleet(*fleet)
    host.play(steps)
    host.run_dry()
    assert not host.waiting
    assert host.ends == dict.fromkeys(host.arrived, 1)
    for backend in host.gate.backends:
        ledger = backend.ledger
        assert (ledger.prefill_tokens, ledger.kv_tokens, ledger.decode_slots) == (0, 0, 0)
        assert not backend._tpot_limits_s


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 500)), min_size=20, max_size=120))
def test_tenants_that_wait_are_served_alike_up_to_one_request(requests):
    gate = Admission(AdmissionRules(max_queue=1000), Zones(600, 100_000, 1), 32)
    sizes, served, waiting = {}, Counter(), Counter()
    gate.offer(Request("first", "c", 1, 1, 1, 0.0), 0.0)
    for n, (tenant, prompt) in enumerate(requests):
        sizes[f"r{n}"] = (tenant, prompt)
        waiting[tenant] += 1
        gate.offer(Request(f"r{n}", "c", 1, prompt, 10, 0.0, tenant=tenant), 0.0)
    running = "first"
    while dispatched := [each for each in gate.finish(running, 1.0, tokens=10) if isinstance(each, Dispatch)]:
        running = dispatched[0].id
        tenant, prompt = sizes[running]
        served[tenant] += prompt + 40
        waiting[tenant] -= 1
        if min(waiting["ann"], waiting["bob"]) > 0:
            assert abs(served["ann"] - served["bob"]) <= 540
