"""Engines that share one queue: who goes next, and where to."""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.scheduling import Order
from trtkit.plan.types import Zones
from trtkit.proxy.admission.backend import Backend
from trtkit.proxy.admission.drain import DrainMeter
from trtkit.proxy.admission.lane import Band, take_out
from trtkit.proxy.admission.ledger import PREFILL
from trtkit.proxy.admission.queue import BandQueue
from trtkit.proxy.admission.request import INFINITE, Ticket

_CANDIDATES = 4
"""Engines that are asked for a place, least loaded first; with 8 no more promises were kept at 16 engines."""


_HOMES = 16_384
"""Beginnings of prompts that are remembered: of more than engines keep in their caches."""


class PoolSpec(NamedTuple):
    """Engines that are alike, for prompts from some length on."""

    zones: Zones
    tokens_per_block: int
    backends: int = 1
    min_prompt_tokens: int = 0


class Pool:
    """A queue and the engines behind it."""

    def __init__(self, rules: AdmissionRules, zones: Zones, tokens_per_block: int, indices: range) -> None:
        zones = zones.part(rules.proxies)
        self.queue = BandQueue(rules.starvation_ms / 1000, rules.minimum_share)
        self.backends = [Backend(index, rules, zones, tokens_per_block, self) for index in indices]
        self.nearest = self.backends[0]
        """The engine that a request would go to if it could."""
        self.prefill_tokens = 0
        """In flight at all its engines."""
        self._running = 0
        self.stoppable: dict[int, Backend] = {}
        """Engines with sheddable requests before their first token."""
        self._version = 0
        self._blocked_at = -1
        """Version of engines and queue at which nobody could go: nobody can until one of them changes."""
        self._prefill_blocks = self._rest_blocks = True
        """Whether it was the prefill zone, or KV and slots, that then kept somebody from going."""
        self.drain = DrainMeter(zones)
        self._max_queue = rules.max_queue
        self._max_queue_tokens = rules.max_queue_tokens or INFINITE
        self._homes: OrderedDict[int, Backend] = OrderedDict()
        """Engines by what the prompts that they read lately begin with, the latest last."""
        self._skip_ahead = rules.skip_ahead
        self._is_hybrid = rules.order is Order.HYBRID
        self._is_by_size, self._is_by_due = rules.order is Order.SHORTEST, rules.order is Order.DEADLINE
        self._count = max(1, len(self.backends))
        self._only = self.backends[0] if len(self.backends) == 1 else None
        self._least_loaded: Sequence[Backend] = ()
        """The engines that are asked, until the order changes."""
        self._by_load = [backend.place for backend in self.backends]
        """The engines that requests may be sent to, least loaded first."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.queue.length and not self._running

    @property
    def alive(self) -> bool:
        """Whether there is an engine that requests may be sent to."""
        return bool(self._by_load)

    def eject(self, backend: Backend) -> None:
        """Take an engine out of those that requests are sent to."""
        if backend.up:
            take_out(self._by_load, backend.place)
            backend.up = False
            self._recount(backend)

    def readmit(self, backend: Backend) -> None:
        """Put an engine back."""
        if not backend.up:
            backend.up, backend.place = True, (backend.load, backend.index, backend)
            insort(self._by_load, backend.place)
            self._recount(backend)

    def _recount(self, backend: Backend) -> None:
        self._count = max(1, len(self._by_load))
        self._least_loaded = ()
        self.nearest = self._by_load[0][2] if self._by_load else self.backends[0]
        self.note(backend)

    def note(self, backend: Backend, prefill_tokens: int = 0, requests: int = 0) -> None:
        """Put an engine in its place after its load has changed by so many prompt tokens and requests."""
        self.prefill_tokens += prefill_tokens
        self._running += requests
        if backend.sheddable and backend.up:
            self.stoppable[backend.index] = backend
        else:
            self.stoppable.pop(backend.index, None)
        if self._only is None or self._may_help(prefill_tokens, requests):
            self._version += 1
        if self._only is None and backend.up:
            take_out(self._by_load, backend.place)
            backend.place = (backend.load, backend.index, backend)
            insort(self._by_load, backend.place)
            self._least_loaded = ()
            self.nearest = self._by_load[0][2]

    def _may_help(self, prefill_tokens: int, requests: int) -> bool:
        """Tell whether a change at the only engine may let somebody go who could not before."""
        if prefill_tokens < 0 and not requests:
            return self._prefill_blocks
        if requests < 0 and not prefill_tokens:
            return self._rest_blocks
        return True

    def is_full(self, priority: int, tenant: str) -> bool:
        """Tell whether a newcomer would find no place in the queue, neither a free one nor another's."""
        requests, tokens = self.queue.ahead(priority)
        has_place = requests < self._max_queue and tokens < self._max_queue_tokens
        if has_place or self.queue.newest_sheddable(priority):
            return False
        return self.queue.crowder(priority, tenant, coming=1) is None

    @property
    def overfull(self) -> bool:
        """Whether more wait than may; one may wait alone, however long its prompt."""
        return self._is_over(self.queue.length, self.queue.prompt_tokens)

    def fill(self, priority: int) -> tuple[int, float]:
        """Return how many wait in a band and above and how many may: requests, or prompt tokens where they bind."""
        requests, tokens = self.queue.ahead(priority)
        if requests < self._max_queue and tokens >= self._max_queue_tokens:
            return tokens, self._max_queue_tokens
        return requests, self._max_queue

    def _is_over(self, requests: int, tokens: int) -> bool:
        return requests > self._max_queue or (tokens > self._max_queue_tokens and requests > 1)

    def displaced_by(self, newcomer: Ticket) -> Ticket | None:
        """Return who has to leave a queue that has become too long by a newcomer; it may be the newcomer.

        Sheddable requests of less urgent bands go first; then, in its own band, the last of the tenant with the most.
        """
        priority = newcomer.request.priority
        if victim := self.queue.newest_sheddable(priority):
            return victim
        # Less urgent classes that may not be shed take no place from this one.
        if newcomer.lane is None or not self._is_over(*self.queue.ahead(priority)):
            return None
        return self.queue.crowder(priority, newcomer.request.tenant) or newcomer

    def pushback_ms(self, priority: int, prompt_tokens: int, now_s: float) -> int:
        """Return when what waits in a band and above will have gone, and so many prompt tokens more."""
        requests, tokens = self.queue.ahead(priority)
        return self.drain.pushback_ms(requests + 1, tokens + prompt_tokens, now_s)

    def place_first(self, ticket: Ticket, now_s: float) -> Backend | None:
        """Return where a newcomer can go that is more urgent than all who wait, unless one of them is owed a turn."""
        if self.queue.length and (self.queue.starved(now_s) or self.queue.owed(self.queue.first())):
            return None
        return self.place(ticket, ticket.share, now_s)

    def predict(self, ticket: Ticket, now_s: float) -> None:
        """Predict a newcomer's first token, all that waits before it included."""
        request = ticket.request
        nearest = self.nearest
        ticket.ahead, tokens_ahead = self.queue.ahead(request.priority)
        if nearest.rates.known:
            before = (self.prefill_tokens + tokens_ahead) / self._count
            waited_s = now_s - request.arrival_s
            ticket.predicted_s = waited_s + nearest.ttft_s(before + request.prompt_tokens, careful=False)

    def needs_s(self, ticket: Ticket) -> float:
        """Predict a newcomer's first token behind those who go before it for sure, at the measured rate.

        Where they cannot all be in time, the shortest goes first: then these are the shorter ones. What is in flight is
        left out, because it may be done in a moment, or prefilled side by side.
        """
        rate = self.nearest.rates.tokens_per_s * self._count
        tokens = self.queue.tokens_before(ticket.request, shortest_first=not self._is_by_due)
        return tokens / rate + self.nearest.alone_s(ticket)

    def is_too_late(self, ticket: Ticket, now_s: float) -> bool:
        """Tell whether a newcomer's first token would come too late behind those who go before it."""
        if not self.queue.length or ticket.patient:
            return False
        # Most come in time even behind all of their band, which was predicted already.
        if ticket.due_s - ticket.request.arrival_s - ticket.predicted_s > self.nearest.alone_s(ticket):
            return False
        return self.nearest.trusts_rate(now_s) and now_s + self.needs_s(ticket) > ticket.due_s

    def victim(self, now_s: float) -> Ticket | None:
        """Return whom to stop, before its first token, so that the next of the most urgent band comes in time."""
        band = self.queue.first()
        head = band.head(shortest_first=self._shortest_first(band, now_s))
        if head.due_s == INFINITE or head.request.sheddable or head.blocked_by is not PREFILL:
            return None
        found = (backend.victim_for(head, now_s) for backend in list(self.stoppable.values())[:_CANDIDATES])
        return next((victim for victim in found if victim), None)

    def next(self, now_s: float, queue: BandQueue) -> tuple[Ticket, Backend] | None:
        """Return who of a queue is to go now and where to, or nobody.

        Who has starved goes before everybody, at the full share, and only ``skip_ahead`` pass it while it does not fit;
        then the band whose minimum share is due; then strict bands. Below a band whose next request does not fit nobody
        goes, but smaller ones of that band may pass it.
        """
        if not queue.length:
            return None
        starved = queue.starved(now_s)
        if starved is not None:
            if backend := self.place(starved, 1.0, now_s):
                return starved, backend
            return self._next_past(starved, queue, now_s)
        if queue is not self.queue:
            return self._next_in_order(queue, now_s)
        version = self._version + queue.version
        if version == self._blocked_at:
            return None
        self._prefill_blocks = self._rest_blocks = False
        chosen = self._next_in_order(queue, now_s)
        if chosen is None:
            self._blocked_at = version
        return chosen

    def _next_past(self, starved: Ticket, queue: BandQueue, now_s: float) -> tuple[Ticket, Backend] | None:
        """Return who may go although one that has starved does not fit yet: so many, as may pass a head."""
        passed_by = starved.passed_by
        if passed_by >= self._skip_ahead:
            return None
        chosen = self._next_in_order(queue, now_s)
        if chosen is not None:
            starved.passed_by = passed_by + 1
        return chosen

    def _next_in_order(self, queue: BandQueue, now_s: float) -> tuple[Ticket, Backend] | None:
        band = queue.first()
        owed = queue.owed(band)
        if owed is not None and (backend := self.place(owed, owed.share, now_s)):
            return owed, backend
        head = band.head(shortest_first=self._shortest_first(band, now_s))
        if backend := self.place(head, head.share, now_s):
            return head, backend
        smaller = band.smallest()
        if smaller is head or head.passed_by >= self._skip_ahead:
            return None
        if backend := self.place(smaller, smaller.share, now_s):
            head.passed_by += 1
            return smaller, backend
        return None

    def _shortest_first(self, band: Band, now_s: float) -> bool:
        """Tell whether what is due last would come too late behind all the others of its band."""
        if not self._is_hybrid:
            return self._is_by_size
        if len(band.tickets) == 1:
            return False
        rate = self.nearest.rates.tokens_per_s * self._count
        return now_s + (self.prefill_tokens + band.prompt_tokens) / rate > band.newest().due_s

    def place(self, ticket: Ticket, share: float, now_s: float) -> Backend | None:
        """Return the least loaded engine that has room for a request of a band with this share, if any has."""
        before, blocker = ticket.blocked_by, None
        candidates = self._least_loaded or self._candidates()
        if self._only is None and ticket.request.affinity:
            candidates = self._home_first(ticket, candidates)
        for backend in candidates:
            ledger = backend.ledger
            blocker = ledger.blocker(ticket, share)
            if blocker is None:
                if not ledger.spared_tokens or not backend.is_to_stop_for(ticket, now_s):
                    return backend
                blocker = PREFILL
            if blocker is not before and blocker is PREFILL:
                backend.feedback.note_use()
        if blocker is not None:
            ledger.bind(ticket, blocker, share)
            if blocker is PREFILL:
                self._prefill_blocks = True
            else:
                self._rest_blocks = True
        return None

    def _home_first(self, ticket: Ticket, candidates: Sequence[Backend]) -> Sequence[Backend]:
        """Put the engine first that has read how a prompt begins, unless its load costs more than reading it anew."""
        home, best = self._homes.get(ticket.request.affinity), candidates[0] if candidates else None
        if home is None or best is None or not home.up or home is best:
            return candidates
        saved_s = ticket.request.prompt_tokens / best.rates.tokens_per_s
        return candidates if home.load > best.load + saved_s else (home, *candidates)

    def remember(self, ticket: Ticket, backend: Backend) -> None:
        """Note which engine has read how a prompt begins."""
        if self._only is None and (affinity := ticket.request.affinity):
            self._homes[affinity] = backend
            self._homes.move_to_end(affinity)
            if len(self._homes) > _HOMES:
                self._homes.popitem(last=False)

    def _candidates(self) -> Sequence[Backend]:
        self._least_loaded = [entry[2] for entry in self._by_load[:_CANDIDATES]]
        return self._least_loaded
