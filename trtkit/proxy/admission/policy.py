"""The policy: every event goes in with its time, the decisions it causes come out."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from dataclasses import dataclass

from trtkit.contract.models import Admission as AdmissionRules
from trtkit.plan.types import Zones
from trtkit.proxy.admission.drain import DrainMeter
from trtkit.proxy.admission.ledger import Ledger
from trtkit.proxy.admission.outcome import FIXED_PUSHBACK_MS, Reason, Retry
from trtkit.proxy.admission.queue import BandQueue
from trtkit.proxy.admission.request import Request, State, Ticket

_IN_FLIGHT = (State.PREFILLING, State.DECODING)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to the engine now."""

    id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a request that never reached the engine; Admission has forgotten it."""

    id: str
    reason: Reason
    pushback_ms: int | None
    """Wait before a retry; -1 says never, None says nothing."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Answer a request that runs, stop it at the engine, and call :meth:`Admission.finish` when it has ended."""

    id: str
    reason: Reason


Decision = Dispatch | Refuse | Abort


class Admission:
    """Decides order, refusals and ends. One owner per state: nobody else changes a ticket."""

    def __init__(self, rules: AdmissionRules, zones: Zones, tokens_per_block: int) -> None:
        self.ledger = Ledger(zones, tokens_per_block)
        self.queue = BandQueue(rules.starvation_ms / 1000)
        self._max_queue = rules.max_queue
        self._drain_meter = DrainMeter(zones)
        self._tickets: dict[str, Ticket] = {}
        self._timers: list[tuple[float, int, Ticket]] = []
        self._sequence = itertools.count()
        self._states: Counter[tuple[str, State]] = Counter()
        self.draining = False

    def count(self, class_name: str, *states: State) -> int:
        """Return how many requests of a class are in any of the states."""
        return sum(self._states[class_name, state] for state in states)

    def would_refuse(self, priority: int) -> bool:
        """Tell, before its size is known, whether a request of this band would find no place."""
        return self.queue.ahead(priority) >= self._max_queue and not self.queue.newest_sheddable(priority)

    def pushback_ms(self, reason: Reason, priority: int, prompt_tokens: int, now_s: float) -> int | None:
        """Return when a refused request may come back: -1 is never, None is nothing to say."""
        if reason.retry is Retry.BACKLOG:
            requests, tokens = (
                self.queue.ahead(priority) + 1,
                self.queue.tokens_ahead(priority) + prompt_tokens,
            )
            return self._drain_meter.pushback_ms(requests, tokens, now_s)
        return FIXED_PUSHBACK_MS.get(reason.retry)

    def offer(self, request: Request, now_s: float) -> list[Decision]:
        """Take a new request: it is dispatched, queued, or somebody is refused."""
        if self.draining:
            return [self._refusal(request, Reason.DRAINING, now_s)]
        if not self.ledger.could_fit(request):
            return [self._refusal(request, Reason.TOO_LONG, now_s)]
        ticket = Ticket(request)
        self._tickets[request.id] = ticket
        self._states[request.class_name, State.QUEUED] += 1
        self.queue.push(ticket)
        self._arm(ticket)
        decisions = self._settle(now_s) + self._make_room(ticket, now_s)
        if len(self.queue):
            self._drain_meter.begin(now_s)
        return decisions

    def first_token(self, request_id: str, now_s: float) -> list[Decision]:
        """Note the end of a prefill, which makes room for the next."""
        ticket = self._tickets[request_id]
        if ticket.state is State.PREFILLING:
            ticket.last_token_s = now_s
            self._end_prefill(ticket)
            self._arm(ticket)
        return self._settle(now_s)

    def token(self, request_id: str, now_s: float) -> None:
        """Note a token; the inter-token limit starts again, at no cost to the timers."""
        self._tickets[request_id].last_token_s = now_s

    def finish(self, request_id: str, now_s: float) -> list[Decision]:
        """Note that the engine has let go of a dispatched request, whatever the reason."""
        ticket = self._tickets.pop(request_id)
        self._move(ticket, State.DONE)
        self.ledger.release(request_id)
        return self._settle(now_s)

    def cancel(
        self, request_id: str, now_s: float, reason: Reason = Reason.CLIENT_CANCELLED
    ) -> list[Decision]:
        """End a request early; one that already ended or is being cancelled stays as it is."""
        ticket = self._tickets.get(request_id)
        decisions = (
            [self._end(ticket, reason, now_s)] if ticket and ticket.state is not State.CANCELLING else []
        )
        return decisions + self._settle(now_s)

    def expire(self, now_s: float) -> list[Decision]:
        """End every request whose time is over."""
        return self._settle(now_s)

    def next_expiry_s(self) -> float | None:
        """Return when :meth:`expire` is to be called next, if ever; it may then find nothing to do."""
        return self._timers[0][0] if self._timers else None

    def drain(self, now_s: float) -> list[Decision]:
        """Refuse all that wait and all that will come; what runs goes on."""
        self.draining = True
        return [self._end(ticket, Reason.DRAINING, now_s) for ticket in self.queue.tickets()]

    def _settle(self, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        while self._timers and self._timers[0][0] <= now_s:
            decisions += self._fire(*heapq.heappop(self._timers)[::2], now_s)
        while (ticket := self.queue.head(now_s)) and self.ledger.fits(ticket.request):
            decisions.append(self._dispatch(ticket, now_s))
        return decisions

    def _fire(self, entry_s: float, ticket: Ticket, now_s: float) -> list[Decision]:
        if entry_s != ticket.armed_s:
            return []
        ticket.armed_s = math.inf
        due_s, reason = ticket.due()
        if due_s > now_s:
            self._arm(ticket)
            return []
        if reason is not None:
            return [self._end(ticket, reason, now_s)]
        self._end_prefill(ticket)
        self._arm(ticket)
        return []

    def _arm(self, ticket: Ticket) -> None:
        due_s, _ = ticket.due()
        if due_s < ticket.armed_s:
            ticket.armed_s = due_s
            heapq.heappush(self._timers, (due_s, next(self._sequence), ticket))

    def _dispatch(self, ticket: Ticket, now_s: float) -> Dispatch:
        request = ticket.request
        self._drain_meter.record(request.prompt_tokens, now_s)
        self._dequeue(ticket)
        self.ledger.admit(request)
        self._move(ticket, State.PREFILLING)
        if not request.streams:
            ticket.prefilled_s = now_s + self.ledger.prefill_tokens / self._drain_meter.assumed_rate
            self._arm(ticket)
        return Dispatch(request.id)

    def _make_room(self, newcomer: Ticket, now_s: float) -> list[Decision]:
        if len(self.queue) <= self._max_queue:
            return []
        victim = self.queue.newest_sheddable(newcomer.request.priority)
        if victim is not None:
            return [self._end(victim, Reason.SHED, now_s)]
        # Less urgent classes that may not be shed take no place from this one.
        full = self.queue.ahead(newcomer.request.priority) > self._max_queue
        return [self._end(newcomer, Reason.QUEUE_FULL, now_s)] if full else []

    def _end(self, ticket: Ticket, reason: Reason, now_s: float) -> Decision:
        request = ticket.request
        if ticket.state in _IN_FLIGHT:
            self._move(ticket, State.CANCELLING)
            return Abort(request.id, reason)
        self._dequeue(ticket)
        del self._tickets[request.id]
        self._move(ticket, State.DONE)
        return self._refusal(request, reason, now_s)

    def _dequeue(self, ticket: Ticket) -> None:
        self.queue.remove(ticket)
        if not len(self.queue):
            self._drain_meter.pause()

    def _refusal(self, request: Request, reason: Reason, now_s: float) -> Refuse:
        pushback_ms = self.pushback_ms(reason, request.priority, request.prompt_tokens, now_s)
        return Refuse(request.id, reason, pushback_ms)

    def _end_prefill(self, ticket: Ticket) -> None:
        self.ledger.end_prefill(ticket.request.id)
        self._move(ticket, State.DECODING)

    def _move(self, ticket: Ticket, state: State) -> None:
        class_name = ticket.request.class_name
        self._states[class_name, ticket.state] -= 1
        self._states[class_name, state] += 1
        ticket.state = state
