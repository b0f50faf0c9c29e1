"""Long prompts of a low band beside short ones of a high band: neither is kept out by the other."""

from __future__ import annotations

import asyncio
import heapq
import itertools

import pytest

from tests.proxy.conftest import ask
from tests.proxy.fake_triton import final_chunk, text_chunk
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Admission, Dispatch, Refuse, Request, TimeLimits, terms_of

CLASSES = {
    "short": ServiceClass(priority=1, ttft_ms=2000.0),
    "long": ServiceClass(priority=2, ttft_ms=120_000.0),
}
ZONES = Zones(prefill_tokens=3072, kv_tokens=100_000, decode_slots=4)
LONG, SHORT = 5000, 20


class Slots:
    """An engine of four slots side by side, whose first token takes 2 ms a prompt token; in simulated time."""

    def __init__(self, holdback) -> None:
        rules = AdmissionRules(holdback=holdback)
        self.gate = Admission(rules, ZONES, 32)
        self.terms = terms_of(CLASSES, rules.holdback)
        self.events: list[tuple[float, int, str, str]] = []
        self.serials = itertools.count()
        self.requests: dict[str, Request] = {}
        self.first_s: dict[str, float] = {}
        self.refused: set[str] = set()
        self.most = 0

    def at(self, time_s: float, what: str, key: str) -> None:
        heapq.heappush(self.events, (time_s, next(self.serials), what, key))

    def arrive(self, name: str, prompt: int, now_s: float) -> None:
        key, promise = f"{name}{next(self.serials)}", CLASSES[name]
        self.requests[key] = Request(
            *(key, name, promise.priority, prompt, 2, now_s, TimeLimits.of(promise)), terms=self.terms[name]
        )
        self.at(now_s, "offer", key)

    def run(self) -> None:
        while self.events:
            now_s, _, what, key = heapq.heappop(self.events)
            decisions = self.gate.expire(now_s)
            if what == "offer":
                decisions += self.gate.offer(self.requests[key], now_s)
            elif what == "first":
                self.first_s[key] = now_s - self.requests[key].arrival_s
                decisions += self.gate.first_token(key, now_s)
                self.at(now_s + 0.005, "finish", key)
            else:
                decisions += self.gate.finish(key, now_s, tokens=2)
            for each in decisions:
                if isinstance(each, Dispatch):
                    self.at(now_s + 0.002 * self.requests[each.id].prompt_tokens, "first", each.id)
                elif isinstance(each, Refuse):
                    self.refused.add(each.id)
            self.most = max(self.most, self.gate.backends[0].ledger.decode_slots)

    def p99_s(self, name: str) -> float:
        """Return the first-token time of a class; whoever was refused has waited for ever."""
        times_s = sorted(self.first_s.get(key, 1e9) for key in self.requests if key.startswith(name))
        return times_s[int(0.99 * len(times_s))]


def case_60(holdback, *, long: bool = True) -> Slots:
    """Two long prompts of ten seconds each a second, for six seconds; twenty short ones a second, for twelve."""
    slots = Slots(holdback)
    for n in range(240):
        slots.arrive("short", SHORT, n / 20)
        if long and n % 20 == 0 and n < 120:
            slots.arrive("long", LONG, n / 20)
            slots.arrive("long", LONG, n / 20)
    slots.run()
    return slots


def test_short_prompts_take_no_longer_beside_long_ones_which_all_come_to_their_end():
    unloaded, loaded = case_60((1.0, 0.6), long=False), case_60((1.0, 0.6))
    assert loaded.p99_s("short") <= 1.5 * unloaded.p99_s("short")
    assert not loaded.refused
    assert sum(key.startswith("long") for key in loaded.first_s) == 12
    assert loaded.most <= 4


def test_without_hold_back_a_long_prompt_has_the_engine_to_itself():
    assert case_60((1.0,)).p99_s("short") > 10 * case_60((1.0,), long=False).p99_s("short")


def gate(**rules) -> Admission:
    return Admission(AdmissionRules(**rules), ZONES, 32)


def offer(admission, key, name, prompt, now_s=0.0):
    promise, terms = CLASSES[name], terms_of(CLASSES, admission.rules.holdback)
    request = Request(
        key, name, promise.priority, prompt, 2, now_s, TimeLimits.of(promise), terms=terms[name]
    )
    return [each.id for each in admission.offer(request, now_s) if isinstance(each, Dispatch)]


def test_a_long_prompt_counts_as_its_bands_share_until_its_first_token():
    admission = gate()
    ledger = admission.backends[0].ledger
    assert offer(admission, "long", "long", LONG) == ["long"]
    assert ledger.prefill_tokens - ledger.spared_tokens == int(0.6 * 3072)
    assert offer(admission, "more", "long", 10) == []  # its own band has had its share
    assert offer(admission, "big", "short", 1300) == []
    assert offer(admission, "fits", "short", 1200) == ["fits"]  # passes the big one of its band
    admission.first_token("long", 1.0)
    assert ledger.spared_tokens == 0


def test_a_short_prompt_behind_a_long_one_teaches_no_rate():
    admission = gate()
    for n in range(40):
        start_s = 100.0 * n
        offer(admission, f"long{n}", "long", LONG, start_s)
        offer(admission, f"short{n}", "short", 600, start_s)
        admission.first_token(f"short{n}", start_s + 0.1)
        admission.first_token(f"long{n}", start_s + 10)
        for key in (f"short{n}", f"long{n}"):
            admission.finish(key, start_s + 10, tokens=1)
    assert admission.backends[0].rates.tokens_per_s == pytest.approx(500, rel=0.01)


async def test_a_short_prompt_is_answered_while_a_long_one_is_at_the_engine(fake, serve, spawn):
    go = asyncio.Event()

    async def script(request, context):
        if len(request.raw_input_contents[0]) > 100:
            await go.wait()
        yield text_chunk(request)
        yield final_chunk(request)

    fake.script = script
    front = await serve(fake.address, classes=CLASSES, prefill=100)
    long = spawn(ask(front.address, "a" * 190, headers={"x-trtkit-class": "long"}))
    await front.until(1, "inflight_requests")
    for _ in range(5):
        assert await ask(front.address, "hello", headers={"x-trtkit-class": "short"}) == ["tok"]
    assert not long.done()
    go.set()
    assert await long == ["tok"]
