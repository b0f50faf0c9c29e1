"""Requests that wait: strict bands by priority, fair turns between the tenants of a band."""

from __future__ import annotations

import math
from bisect import insort

from trtkit.proxy.admission.lane import Band
from trtkit.proxy.admission.request import Request, Ticket

RELEGATED = 1 << 30
"""Priority of the band behind all classes."""


class BandQueue:
    """All that wait for one pool of engines. Every operation is O(bands + log n)."""

    def __init__(self, starvation_s: float, minimum_share: float) -> None:
        self._starvation_s = starvation_s
        self._minimum_share = minimum_share
        self._owed_tokens = 0.0
        self._by_priority: dict[int, Band] = {}
        self.bands: list[Band] = []
        """Most urgent first."""
        self.length = 0
        self.prompt_tokens = 0
        self.version = 0
        """Changes when somebody goes, or comes who may be next: nobody passes a more urgent band."""
        self._next_starved_s = math.inf
        """Nobody has starved before."""
        self._last_kept: Band | None = None
        """The least urgent band with somebody who may not be shed."""

    def __len__(self) -> int:
        return self.length

    def push(self, ticket: Ticket) -> None:
        """Put a request into its band."""
        priority = RELEGATED if ticket.relegated else ticket.request.priority
        band = self._by_priority.get(priority)
        if band is None:
            band = self._by_priority[priority] = Band(priority)
            insort(self.bands, band, key=lambda each: each.priority)
        if not self.length or priority <= self.first().priority:
            self.version += 1
        band.push(ticket)
        self.length += 1
        self.prompt_tokens += ticket.request.prompt_tokens
        kept = self._last_kept
        if not ticket.request.sheddable and priority < RELEGATED and (not kept or kept.priority < priority):
            self._last_kept = band
        self._next_starved_s = min(self._next_starved_s, ticket.request.arrival_s + self._starvation_s)

    def remove(self, ticket: Ticket, work_tokens: float = 0.0) -> None:
        """Take a request out, wherever it stands, and charge its tenant for the work that it is given."""
        band = self.band_of(ticket)
        band.remove(ticket, work_tokens)
        if band is self._last_kept and len(band.tickets) == len(band.sheddable):
            self._last_kept = self._find_last_kept()
        if self.length == 1:
            self._owed_tokens = 0.0
        self.length -= 1
        self.prompt_tokens -= ticket.request.prompt_tokens
        self.version += 1

    def band_of(self, ticket: Ticket) -> Band:
        """Return the band that a request waits or waited in."""
        return self._by_priority[RELEGATED if ticket.relegated else ticket.request.priority]

    def starved(self, now_s: float) -> Ticket | None:
        """Return the oldest request that has waited for too long, while the minimum share allows for it.

        Otherwise all would be served by age in a long overload. The relegated have no such claim.
        """
        if now_s < self._next_starved_s or self._owed_tokens < 0:
            return None
        waiting = [band.oldest() for band in self.bands if band.tickets and band.priority != RELEGATED]
        oldest = min(waiting, key=lambda ticket: ticket.request.arrival_s, default=None)
        since_s = oldest.request.arrival_s if oldest else math.inf
        self._next_starved_s = since_s + self._starvation_s
        return oldest if now_s - since_s >= self._starvation_s else None

    def owed(self, first: Band) -> Ticket | None:
        """Return the oldest of the least urgent band that may not be shed, when its minimum share is due.

        ``first`` is the most urgent band in which somebody waits.
        """
        if self._owed_tokens <= 0:
            return None
        band = self._last_kept
        if band is None or band is first:
            self._owed_tokens = 0.0
            return None
        oldest = band.oldest()
        return oldest if self._owed_tokens >= oldest.request.prompt_tokens else None

    def charge(self, ticket: Ticket, tokens: float) -> None:
        """Add work to the account of a request's tenant, or take back what was charged too much."""
        self.band_of(ticket).charge(ticket.request.tenant, tokens)

    def note_dispatch(self, ticket: Ticket, now_s: float) -> None:
        """Keep the account of the minimum share: 5 % of what others get while somebody waits.

        Who has starved goes on credit, which the dispatches of others pay back; the band takes what is there.
        """
        request, owed = ticket.request, self._owed_tokens
        if now_s - request.arrival_s >= self._starvation_s:
            self._owed_tokens = owed - request.prompt_tokens
        elif self._by_priority.get(request.priority) is self._last_kept:
            self._owed_tokens = max(min(owed, 0.0), owed - request.prompt_tokens)
        else:
            self._owed_tokens = owed + self._minimum_share * request.prompt_tokens

    def newest_sheddable(self, priority: int) -> Ticket | None:
        """Return the newest sheddable request of the least urgent band below ``priority``."""
        for band in reversed(self.bands):
            if band.priority > priority and band.sheddable:
                return next(reversed(band.sheddable.values()))
        return None

    def crowder(self, priority: int, tenant: str, coming: int = 0) -> Ticket | None:
        """Return whose place in a band is another tenant's by right, who has fewer there with ``coming`` more."""
        band = self._by_priority.get(priority)
        return band.crowder(tenant, coming) if band else None

    def ahead(self, priority: int) -> tuple[int, int]:
        """Return how many requests wait in this band and above, and their prompt tokens."""
        requests = tokens = 0
        for band in self.bands:
            if band.priority > priority:
                break
            requests += len(band.tickets)
            tokens += band.prompt_tokens
        return requests, tokens

    def tokens_before(self, request: Request, *, shortest_first: bool) -> int:
        """Return the prompt tokens that go before a newcomer: all of the bands above, and of its own what does."""
        own = self._by_priority.get(request.priority)
        own_tokens = own.tokens_before(request, shortest_first=shortest_first) if own else 0
        return self.ahead(request.priority - 1)[1] + own_tokens

    def tickets(self) -> list[Ticket]:
        """Return all that wait."""
        return [ticket for band in self.bands for ticket in band.tickets.values()]

    def first(self) -> Band:
        """Return the most urgent band in which somebody waits."""
        for band in self.bands:
            if band.tickets:
                return band
        raise LookupError("nobody waits")

    def _find_last_kept(self) -> Band | None:
        for band in reversed(self.bands):
            if len(band.tickets) > len(band.sheddable) and band.priority != RELEGATED:
                return band
        return None
