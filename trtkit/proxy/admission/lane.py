"""One tenant's waiting requests, and a band of tenants."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from heapq import heapify, heappop, heappush

from trtkit.proxy.admission.request import Ticket

_SLACK = 32
"""Entries of a heap that may be dead before it is cleaned: small heaps are not worth it."""
_serials = itertools.count()


class _Heap:
    """A heap whose members may leave in any order: an entry is dead when its ticket has left the lane."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, Ticket, Lane]] = []

    def push(self, key: float, serial: int, ticket: Ticket, lane: Lane, alive: int) -> None:
        if len(self.entries) > 2 * alive + _SLACK:
            self.entries = [entry for entry in self.entries if entry[2].lane is entry[3]]
            heapify(self.entries)
        heappush(self.entries, (key, serial, ticket, lane))

    def head(self) -> Ticket:
        entries = self.entries
        while entries[0][2].lane is not entries[0][3]:
            heappop(entries)
        return entries[0][2]


class Lane:
    """One tenant's waiting requests of one band, by when they are due and by size."""

    __slots__ = ("by_due", "by_size", "count", "served", "turn")

    def __init__(self, served: float) -> None:
        self.served = served
        """Tokens of work that the tenant was given."""
        self.turn = -1
        """Serial number of its entry in the band's order of turns."""
        self.count = 0
        self.by_due = _Heap()
        self.by_size = _Heap()


class Band:
    """The waiting requests of one priority. Every operation is O(log n)."""

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.prompt_tokens = 0
        self.tickets: OrderedDict[str, Ticket] = OrderedDict()
        self.sheddable: OrderedDict[str, Ticket] = OrderedDict()
        self._lanes: dict[str, Lane] = {}
        self._turns: list[tuple[float, int, Lane]] = []
        self._by_size = _Heap()
        self._active = 0
        self._floor = 0.0

    def push(self, ticket: Ticket) -> None:
        """Put a request into its tenant's lane; a tenant that comes back has no claim from when it was away."""
        request, serial = ticket.request, next(_serials)
        lane = self._lanes.get(request.tenant)
        if lane is None:
            lane = self._lanes[request.tenant] = Lane(self._floor)
        if not lane.count:
            self._active += 1
            lane.served = max(lane.served, self._floor)
            self._take_turn(lane)
        ticket.lane = lane
        lane.count += 1
        self.tickets[request.id] = ticket
        if request.sheddable:
            self.sheddable[request.id] = ticket
        self.prompt_tokens += request.prompt_tokens
        lane.by_due.push(ticket.due_s, serial, ticket, lane, lane.count)
        lane.by_size.push(request.prompt_tokens, serial, ticket, lane, lane.count)
        self._by_size.push(request.prompt_tokens, serial, ticket, lane, len(self.tickets))

    def remove(self, ticket: Ticket) -> None:
        """Take a request out, wherever it stands."""
        request, lane = ticket.request, ticket.lane
        assert lane is not None  # noqa: S101 - for the type checker
        ticket.lane = None
        del self.tickets[request.id]
        self.sheddable.pop(request.id, None)
        self.prompt_tokens -= request.prompt_tokens
        lane.count -= 1
        if not lane.count:
            lane.turn = -1
            self._active -= 1
            if len(self._lanes) > 2 * self._active + _SLACK:
                self._forget()

    def head(self, *, shortest_first: bool) -> Ticket:
        """Return the next of the tenant that was served least: the first due, or the shortest."""
        lane = self._least_served()
        self._floor = max(self._floor, lane.served)
        return (lane.by_size if shortest_first else lane.by_due).head()

    def smallest(self) -> Ticket:
        """Return the shortest prompt of the band, whoever's it is."""
        return self._by_size.head()

    def oldest(self) -> Ticket:
        """Return the one that came first."""
        return next(iter(self.tickets.values()))

    def newest(self) -> Ticket:
        """Return the one that came last."""
        return next(reversed(self.tickets.values()))

    def charge(self, tenant: str, tokens: float) -> None:
        """Add work to a tenant's account, or take back what was charged too much."""
        lane = self._lanes.get(tenant)
        if lane is not None:
            lane.served += tokens
            if lane.count:
                self._take_turn(lane)

    def _least_served(self) -> Lane:
        turns = self._turns
        while turns[0][2].turn != turns[0][1]:
            heappop(turns)
        return turns[0][2]

    def _take_turn(self, lane: Lane) -> None:
        lane.turn = next(_serials)
        if len(self._turns) > 2 * self._active + _SLACK:
            self._turns = [entry for entry in self._turns if entry[2].turn == entry[1]]
            heapify(self._turns)
        heappush(self._turns, (lane.served, lane.turn, lane))

    def _forget(self) -> None:
        """Drop the tenants that neither wait nor were given more than those who do."""
        self._lanes = {
            name: lane for name, lane in self._lanes.items() if lane.count or lane.served > self._floor
        }
