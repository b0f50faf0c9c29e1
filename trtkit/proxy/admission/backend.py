"""One engine: what is in flight at it, how fast it is, and how much it is trusted with."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.plan.types import Zones
from trtkit.proxy.admission.drain import ASSUMED_S
from trtkit.proxy.admission.feedback import Feedback
from trtkit.proxy.admission.fit import LineFit, Window
from trtkit.proxy.admission.ledger import Ledger
from trtkit.proxy.admission.request import INFINITE, Ticket
from trtkit.proxy.admission.signal import EngineReport, Signal

if TYPE_CHECKING:
    from trtkit.proxy.admission.pool import Pool

_INFORMATIVE_TOKENS = 500
"""Fewer prompt tokens than that, or half a step, tell nothing of the rate: their time is the step's own."""
_REFIT = 4
"""Requests after which the rates are read off the fits again."""
_INFORMATIVE_STEPS = 8
_PACES = 64
"""Answers whose median time per token is the engine's."""
_STALE_S = 10.0
"""Without a first token for so long, and with none to come, a measured rate refuses nobody."""
_JUST_AFTER_S = 1e-3
_LOOK_AGAIN_S = 0.02
_TPOT_MARGIN = 0.9
_BARE = 0.1
"""Quantile of the time per prompt token that is the prompt's alone, without the decodes of the same step."""
_CAREFUL = 0.7
"""Quantile of the time per prompt token by which sheddable requests are judged; the median for others."""


@dataclass(slots=True)
class _Rates:
    """What was measured, at hand for every decision."""

    tokens_per_s: float
    careful_tokens_per_s: float
    level_s: float = 0.0
    known: bool = False


class Backend:
    """A ledger with the engine's measured speed; tightens its own zones by what it observes."""

    def __init__(
        self, index: int, rules: AdmissionRules, zones: Zones, tokens_per_block: int, pool: Pool
    ) -> None:
        self.index = index
        self.pool = pool
        self.up = True
        """Whether requests may be sent to it; its pool changes that."""
        self.ledger = Ledger(zones, tokens_per_block)
        self.feedback = Feedback(zones.prefill_tokens, zones.prefill_tokens * 2 // 3, active=rules.feedback)
        assumed_rate = zones.prefill_tokens / ASSUMED_S
        self.rates = _Rates(assumed_rate, assumed_rate)
        self.place = (0.0, index, self)
        """Its entry in its pool's order by load."""
        self.last_first_token_s = -1e9
        self.signal = Signal(rules.proxies)
        self.sheddable: OrderedDict[str, Ticket] = OrderedDict()
        """Requests before their first token that may be stopped for a more urgent one, oldest first."""
        self.stopping = 0
        """Requests before their first token that were told to stop: room to come."""
        self._prefill_since_s = 0.0
        self._kv_tokens = max(1, zones.kv_tokens)
        self._margin = rules.refusal_margin
        self._proxies = rules.proxies
        self._prefill_s = rules.prefill_ms / 1000 / rules.proxies
        self._prefill_fit = LineFit(min(_INFORMATIVE_TOKENS, zones.prefill_tokens / 3))
        self._step_fit = LineFit(1.0)
        self._first_tokens = self._finished = 0
        self._paces = Window(_PACES)
        self._last_pace_s = -1e9
        self._prefilled_tokens = 0
        self._slot_s = self._slot_at_s = 0.0
        self._tpot_limits_s: dict[float, int] = {}

    @property
    def load(self) -> float:
        """Seconds of prefill in flight, and the share of the KV pool that is taken."""
        ledger = self.ledger
        return ledger.prefill_tokens / self.rates.tokens_per_s + ledger.kv_tokens / self._kv_tokens

    def ttft_s(self, prompt_tokens: float, *, careful: bool) -> float:
        """Predict dispatch to first token of so many prompt tokens, those before it included."""
        rates = self.rates
        rate = rates.careful_tokens_per_s if careful else rates.tokens_per_s
        return rates.level_s + prompt_tokens / rate

    def alone_s(self, ticket: Ticket) -> float:
        """Predict the time to a first token if the engine had nothing else to do, with the margin."""
        request, rates = ticket.request, self.rates
        rate = rates.careful_tokens_per_s if request.sheddable else rates.tokens_per_s
        return rates.level_s + self._margin * request.prompt_tokens / rate

    def can_ever(self, ticket: Ticket) -> bool:
        """Tell whether the engine, with nothing else to do, gives a first token within the promise of its class."""
        request = ticket.request
        return self.ttft_s(request.prompt_tokens, careful=False) <= request.terms.ttft_s

    def answer_s(self, tokens: float, now_s: float) -> float:
        """Predict the time from first to last token; 0 while nothing is known, or only from long ago."""
        known = self._paces.count >= _INFORMATIVE_STEPS
        fresh = self.ledger.decode_slots > 0 or now_s - self._last_pace_s < _STALE_S
        return max(0.0, tokens - 1) * self._paces.quantile(0.5) if known and fresh else 0.0

    def is_hopeless(self, ticket: Ticket, now_s: float) -> bool:
        """Tell whether a first token would come too late even if nothing else was there to do."""
        left_s = ticket.due_s - now_s
        if left_s == INFINITE or ticket.patient:
            return False
        return left_s < 0 or (self.alone_s(ticket) > left_s and self.trusts_rate(now_s))

    def start_by_s(self, ticket: Ticket, looked_s: float) -> float:
        """Return when a request that waits may have become hopeless; a while after it was looked at last."""
        if ticket.patient:
            return INFINITE
        needs_s = self.alone_s(ticket) if self.rates.known else 0.0
        return max(ticket.due_s - needs_s + _JUST_AFTER_S, looked_s + _LOOK_AGAIN_S)

    def trusts_rate(self, now_s: float) -> bool:
        """Tell whether the rate may refuse somebody: a stale one would lock everybody out of an idle engine."""
        if not self.rates.known:
            return False
        return self.ledger.prefill_tokens > 0 or now_s - self.last_first_token_s < _STALE_S

    def admit(self, ticket: Ticket, now_s: float) -> None:
        """Take a request's shares."""
        ledger = self.ledger
        self._slot_seconds(now_s)
        if not ledger.prefill_tokens:
            self._prefill_since_s = now_s
        behind = ledger.spared_tokens > 0
        ledger.admit(ticket)
        ticket.backend = self
        ticket.dispatched_s = now_s
        # Behind a prompt that is not counted whole the delay says nothing: it may be half done, or run side by side.
        ticket.flight_tokens = 0 if behind else ledger.prefill_tokens
        if ticket.request.sheddable:
            self.sheddable[ticket.request.id] = ticket
        self.pool.note(self, ticket.held_prefill_tokens, 1)
        self.pool.remember(ticket, self)
        limit_s = ticket.request.terms.tpot_s
        self._tpot_limits_s[limit_s] = self._tpot_limits_s.get(limit_s, 0) + 1

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """Learn from a first token, and give its prefill share back.

        What does not stream shows its first token with its last, which tells nothing of the prefill.
        """
        self.end_prefill(ticket)
        if not ticket.request.streams:
            return
        ticket.first_s = self.last_first_token_s = self._prefill_since_s = now_s
        ticket.first_mark_tokens, ticket.first_slot_s = self._prefilled_tokens, self._slot_seconds(now_s)
        if ticket.flight_tokens:
            self._prefill_fit.add(ticket.flight_tokens, now_s - ticket.dispatched_s)
            self.feedback.first_token(ticket, now_s, self.rates.known)
        self._first_tokens += 1
        if self._first_tokens % _REFIT == 0:
            self._refit()
        wanted = max(self.ledger.zones.prefill_tokens, self._prefill_s * self.rates.tokens_per_s)
        self.ledger.prefill_limit = self.feedback.limit(wanted)

    def end_prefill(self, ticket: Ticket) -> None:
        """Give the prefill share back."""
        tokens = ticket.held_prefill_tokens
        self.sheddable.pop(ticket.request.id, None)
        self.ledger.end_prefill(ticket)
        self._prefilled_tokens += tokens
        self.pool.note(self, -tokens)

    def release(self, ticket: Ticket, now_s: float) -> None:
        """Give everything back, and learn the time per token."""
        self._slot_seconds(now_s)
        tokens = ticket.held_prefill_tokens
        self.sheddable.pop(ticket.request.id, None)
        self.stopping -= ticket.stopping
        self.ledger.release(ticket)
        self.pool.note(self, -tokens, -1)
        limit_s = ticket.request.terms.tpot_s
        self._tpot_limits_s[limit_s] -= 1
        if not self._tpot_limits_s[limit_s]:
            del self._tpot_limits_s[limit_s]
        if ticket.tokens > 1 and ticket.first_s <= ticket.last_token_s < INFINITE:
            self._learn_step(ticket, now_s)

    def victim_for(self, ticket: Ticket, now_s: float) -> Ticket | None:
        """Return whom to stop so that a more urgent request is in time, if that is what it takes.

        The newest sheddable request before its first token: with it the request would come too late, without it not.
        """
        if not self.sheddable or self.stopping or not self.trusts_rate(now_s):
            return None
        victim = next(reversed(self.sheddable.values()))
        if victim.request.priority <= ticket.request.priority:
            return None
        done = (now_s - self._prefill_since_s) * self.rates.tokens_per_s
        with_it = max(0.0, self.ledger.prefill_tokens - done) + ticket.request.prompt_tokens
        without = max(0.0, with_it - victim.request.prompt_tokens)
        left_s = ticket.due_s - now_s
        in_time, too_late = (self.ttft_s(tokens, careful=False) for tokens in (without, with_it))
        return victim if in_time <= left_s < too_late else None

    def is_to_stop_for(self, ticket: Ticket, now_s: float) -> bool:
        """Tell whether a request is not to go behind a prompt that is to be stopped for it."""
        if not self.sheddable or ticket.request.sheddable:
            return False
        return self.victim_for(ticket, now_s) is not None

    def stop(self, ticket: Ticket) -> None:
        """Note that a request before its first token was told to stop."""
        self.sheddable.pop(ticket.request.id, None)
        ticket.stopping = True
        self.stopping += 1
        self.pool.note(self)

    def observe(self, report: EngineReport | None, now_s: float) -> None:
        """Take in what the engine says of itself; nothing that it says gives room."""
        ledger, signal = self.ledger, self.signal
        if signal.believes(report, now_s, served=self._first_tokens) and report is not None:
            signal.compare(report, ledger)
            kv_tokens, requests = (
                report.max_blocks * report.tokens_per_block,
                report.most_requests or INFINITE,
            )
            ledger.narrow(kv_tokens / self._proxies, requests / self._proxies)
            self._limit_slots()
        ledger.foreign_kv_tokens, ledger.foreign_slots = signal.foreign_kv_tokens, signal.foreign_requests
        self.pool.note(self)

    def _slot_seconds(self, now_s: float) -> float:
        """Return the requests that ran so far, each times how long: the difference of two is the mean between."""
        self._slot_s += self.ledger.decode_slots * (now_s - self._slot_at_s)
        self._slot_at_s = now_s
        return self._slot_s

    def _learn_step(self, ticket: Ticket, now_s: float) -> None:
        """Learn what a step costs by how many run; the time that prompts took of the request's steps is left out."""
        steps, span_s = ticket.tokens - 1, ticket.last_token_s - ticket.first_s
        self.feedback.finished(ticket, span_s / steps, now_s)
        self._paces.add(span_s / steps)
        self._last_pace_s = now_s
        self._finished += 1
        if steps < _INFORMATIVE_STEPS or span_s <= 0 or not self.rates.known:
            return
        if self._finished % _REFIT == 0:
            prompts_s = (self._prefilled_tokens - ticket.first_mark_tokens) * self._prefill_fit.slope(_BARE)
            running = (self._slot_s - ticket.first_slot_s) / (now_s - ticket.first_s)
            self._step_fit.add(running, max(0.0, span_s - prompts_s) / steps)
            self._limit_slots()

    def _refit(self) -> None:
        fit, rates = self._prefill_fit, self.rates
        if fit.known and fit.slope() > 0:
            rates.tokens_per_s, rates.careful_tokens_per_s = 1 / fit.slope(), 1 / fit.slope(_CAREFUL)
            rates.level_s, rates.known = fit.level(), True

    def _limit_slots(self) -> None:
        """Allow as many decodes as keep a step within 0.9 of the tightest promise in flight."""
        fit, slots = self._step_fit, self.ledger.most_slots
        tightest_s = min(self._tpot_limits_s, default=INFINITE)
        slope_s = fit.slope() if fit.known else 0.0
        if slope_s > 0 and tightest_s < INFINITE:
            slots = min(slots, max(1.0, (_TPOT_MARGIN * tightest_s - fit.level()) / slope_s))
        self.ledger.slots_limit = slots


def backend_of(ticket: Ticket) -> Backend:
    """Return the engine of a request that was dispatched."""
    assert ticket.backend is not None  # noqa: S101 - for the type checker
    return ticket.backend
