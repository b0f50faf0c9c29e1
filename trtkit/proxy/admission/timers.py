"""When to look at whom again."""

from __future__ import annotations

import heapq
import itertools

from trtkit.proxy.admission.outcome import Reason
from trtkit.proxy.admission.request import INFINITE, Ticket


class Timers:
    """At least one entry for every ticket whose time can run out, at its time or before; none is ever moved.

    A token only moves the ticket's own end: the entry finds that out when it fires, and is set again.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Ticket]] = []
        self._serials = itertools.count()

    def arm(self, ticket: Ticket, due_s: float) -> None:
        """See to it that the ticket is looked at when it is due."""
        if due_s < ticket.armed_s:
            ticket.armed_s = due_s
            heapq.heappush(self._entries, (due_s, next(self._serials), ticket))

    def next_s(self) -> float | None:
        """Return when the next entry fires, if ever; there may then be nothing to do."""
        return self._entries[0][0] if self._entries else None

    def pop(self, now_s: float) -> tuple[Ticket, Reason | None] | None:
        """Return a ticket that is due and what for; no reason means that it is to be looked at."""
        while self._entries and self._entries[0][0] <= now_s:
            entry_s, _, ticket = heapq.heappop(self._entries)
            if entry_s != ticket.armed_s:
                continue
            ticket.armed_s = INFINITE
            due_s, reason = ticket.due()
            if due_s <= now_s:
                return ticket, reason
            self.arm(ticket, due_s)
        return None
