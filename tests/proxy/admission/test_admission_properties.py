"""What holds under any schedule of arrivals, tokens, ends, cancels and clock steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.admission.host import Host
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Abort, Admission, Reason, Refuse, Request, State, TimeLimits

STARVATION_S = 5.0
ZONES = Zones(prefill_tokens=300, kv_tokens=1024, decode_slots=3)
CLASSES = {"gold": (1, False), "silver": (2, True), "bronze": (3, True)}

limit = st.one_of(st.just(float("inf")), st.floats(0.01, 8))
arrival = st.tuples(
    st.just("offer"),
    st.sampled_from(sorted(CLASSES)),
    st.integers(1, 1200),
    st.integers(1, 200),
    st.builds(TimeLimits, limit, limit, limit, limit),
    st.booleans(),
)
event = st.tuples(st.sampled_from(["first", "token", "finish", "cancel"]), st.integers(0, 1_000))
schedule = st.lists(st.tuples(st.floats(0, 3), st.one_of(arrival, arrival, event, event)), max_size=60)


class OneEngine(Host):
    """One engine, without tenants or promises."""

    def __init__(self) -> None:
        rules = AdmissionRules(max_queue=4, starvation_ms=STARVATION_S * 1000)
        super().__init__(Admission(rules, ZONES, tokens_per_block=32))

    def check_order(self, decision) -> None:
        chosen = self.arrived[decision.id]
        if self.now_s - chosen.arrival_s >= STARVATION_S:
            return
        for other in (self.arrived[key] for key in self.waiting - {chosen.id}):
            assert chosen.priority <= other.priority

    def check_state(self) -> None:
        ledger = self.gate.backends[0].ledger
        assert ledger.decode_slots == len(self.running) <= ZONES.decode_slots
        assert 0 <= ledger.kv_tokens <= ZONES.kv_tokens
        assert 0 <= ledger.spared_tokens <= ledger.prefill_tokens
        assert ledger.prefill_tokens - ledger.spared_tokens <= ZONES.prefill_tokens
        assert len(self.gate.pools[0].queue) == len(self.waiting) <= 4
        assert sum(self.gate.count(name, State.QUEUED) for name in CLASSES) == len(self.waiting)

    def offer(self, class_name, prompt, output, limits, streams) -> None:
        priority, sheddable = CLASSES[class_name]
        key = f"r{len(self.arrived)}"
        request = Request(key, class_name, priority, prompt, output, self.now_s, limits, sheddable, streams)
        full = self.gate.would_refuse(priority)
        decisions = self.arrive(request)
        if full:
            assert key in {decision.id for decision in decisions if isinstance(decision, Refuse)}
        self.apply(decisions)

    def run_dry(self) -> None:
        while self.running:
            self.finish(min(self.running))


@settings(max_examples=300, deadline=None)
@given(schedule)
def test_nothing_is_lost_nothing_is_answered_twice_and_budgets_return_to_zero(steps):
    host = OneEngine()
    for delay_s, (what, *arguments) in steps:
        host.now_s += delay_s
        host.apply(host.gate.expire(host.now_s))
        host.offer(*arguments) if what == "offer" else host.act(what, *arguments)
    host.run_dry()
    assert not host.waiting
    assert host.ends == dict.fromkeys(host.arrived, 1)
    ledger = host.gate.backends[0].ledger
    assert (ledger.prefill_tokens, ledger.kv_tokens, ledger.decode_slots) == (0, 0, 0)
    for name in CLASSES:
        assert host.gate.count(name, State.QUEUED, State.PREFILLING, State.DECODING, State.CANCELLING) == 0


@settings(max_examples=100, deadline=None)
@given(schedule)
def test_every_limit_is_enforced_at_its_time(steps):
    host = OneEngine()
    for delay_s, (what, *arguments) in steps:
        host.now_s += delay_s
        host.apply(host.gate.expire(host.now_s))
        for key in host.waiting:
            waiting = host.arrived[key]
            ends = (waiting.limits.queue_s, waiting.limits.first_token_s, waiting.limits.total_s)
            assert host.now_s < waiting.arrival_s + min(ends)
        for key in host.running - host.aborted:
            assert host.now_s < host.arrived[key].arrival_s + host.arrived[key].limits.total_s
        host.offer(*arguments) if what == "offer" else host.act(what, *arguments)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["queue_s", "first_token_s", "inter_token_s", "total_s"]),
    st.floats(0.01, 8),
    st.lists(st.floats(0.001, 1), max_size=5),
)
def test_each_limit_ends_a_request_alone_at_its_time_and_not_before(which, limit_s, token_gaps_s):
    """One request waits behind another, or runs; tokens come before the limit where it is about tokens."""
    waits = which == "queue_s"
    gate = Admission(AdmissionRules(), ZONES, tokens_per_block=32)
    if waits:
        for n in range(ZONES.decode_slots):
            gate.offer(Request(f"running{n}", "gold", 1, 1, 1, 0.0), 0.0)
    gate.offer(Request("a", "gold", 1, 1, 1, 0.0, TimeLimits(**{which: limit_s})), 0.0)
    start_s = 0.0
    if which == "inter_token_s":
        gate.first_token("a", start_s)
        for gap_s in token_gaps_s:
            start_s += min(gap_s, limit_s / 2)
            assert gate.expire(start_s) == []
            gate.token("a", start_s)
    assert gate.expire(start_s + limit_s * 0.999) == []
    (end,) = gate.expire(start_s + limit_s * 1.001)
    assert (end.id, isinstance(end, Refuse if waits else Abort)) == ("a", True)
    assert (
        end.reason
        is {
            "queue_s": Reason.QUEUE_TIMEOUT,
            "first_token_s": Reason.FIRST_TOKEN_TIMEOUT,
            "inter_token_s": Reason.INTER_TOKEN_TIMEOUT,
            "total_s": Reason.DEADLINE,
        }[which]
    )
