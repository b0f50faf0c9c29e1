"""One tenant's waiting requests, and a band of tenants."""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from collections import OrderedDict
from heapq import nlargest
from typing import Any

from trtkit.proxy.admission.request import Request, Ticket

_IDLE_TENANTS = 32
"""Tenants with nothing waiting that may be remembered before those without a debt are forgotten."""
_DEBTORS = 1024
"""Tenants with nothing waiting whose debt is remembered, the largest debts first."""
_serials = itertools.count()


class Lane:
    """One tenant's waiting requests of one band, by when they are due and by size."""

    __slots__ = ("by_due", "by_size", "prompt_tokens", "served", "tokens_by_length", "turn")

    def __init__(self, served: float) -> None:
        self.served = served
        """Tokens of work that the tenant was given."""
        self.turn: tuple[float, int, Lane] | None = None
        """Its entry in the band's order of turns, while something of it waits."""
        self.by_due: list[tuple[float, int, Ticket]] = []
        self.by_size: list[tuple[int, int, Ticket]] = []
        self.prompt_tokens = 0
        self.tokens_by_length = [0] * 256
        """Prompt tokens that wait, by :func:`_length_index`."""

    def tokens_up_to(self, prompt_tokens: int) -> int:
        """Return the tokens of prompts that are shorter, or about as long."""
        return sum(self.tokens_by_length[: _length_index(prompt_tokens) + 1])


class Band:
    """The waiting requests of one priority.

    Every operation costs O(log n) comparisons; a sorted list also shifts 8 bytes an entry of a tenant, or a tenant.
    """

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.prompt_tokens = 0
        self.tickets: OrderedDict[str, Ticket] = OrderedDict()
        self.sheddable: OrderedDict[str, Ticket] = OrderedDict()
        self._lanes: dict[str, Lane] = {}
        self._turns: list[tuple[float, int, Lane]] = []
        self._smallest: list[tuple[int, int, Ticket]] = []
        """Each tenant's shortest prompt, the shortest first."""
        self._by_length: list[dict[Lane, None]] = [{}]
        """The lanes in which so many wait."""
        self._floor = 0.0
        self._debtors = 0
        """Tenants that were kept, with nothing waiting, when some were last forgotten."""

    def push(self, ticket: Ticket) -> None:
        """Put a request into its tenant's lane; a tenant that comes back has no claim from when it was away."""
        request = ticket.request
        lane = self._lanes.get(request.tenant)
        if lane is None:
            lane = self._lanes[request.tenant] = Lane(self._floor)
        if lane.turn is None:
            lane.served = max(lane.served, self._floor)
            self._take_turn(lane)
        ticket.serial, ticket.lane = next(_serials), lane
        self.tickets[request.id] = ticket
        if request.sheddable:
            self.sheddable[request.id] = ticket
        tokens, by_size = request.prompt_tokens, lane.by_size
        self.prompt_tokens += tokens
        lane.prompt_tokens += tokens
        lane.tokens_by_length[_length_index(tokens)] += tokens
        insort(lane.by_due, (ticket.due_s, ticket.serial, ticket))
        insort(by_size, (tokens, ticket.serial, ticket))
        if by_size[0][2] is ticket:
            if len(by_size) > 1:
                take_out(self._smallest, by_size[1])
            insort(self._smallest, by_size[0])
        self._resize(lane, len(by_size) - 1)

    def remove(self, ticket: Ticket, work_tokens: float = 0.0) -> None:
        """Take a request out, wherever it stands, and charge its tenant for the work that it is given."""
        request, lane = ticket.request, self._lanes[ticket.request.tenant]
        ticket.lane = None
        del self.tickets[request.id]
        self.sheddable.pop(request.id, None)
        tokens, by_size = request.prompt_tokens, lane.by_size
        self.prompt_tokens -= tokens
        lane.prompt_tokens -= tokens
        lane.tokens_by_length[_length_index(tokens)] -= tokens
        take_out(lane.by_due, (ticket.due_s, ticket.serial, ticket))
        if by_size[0][2] is ticket:
            take_out(self._smallest, by_size.pop(0))
            if by_size:
                insort(self._smallest, by_size[0])
        else:
            take_out(by_size, (tokens, ticket.serial, ticket))
        self._resize(lane, len(by_size) + 1)
        lane.served += work_tokens
        if by_size and work_tokens:
            take_out(self._turns, lane.turn)
            self._take_turn(lane)
        elif not by_size:
            take_out(self._turns, lane.turn)
            lane.turn = None
            idle = len(self._lanes) - len(self._turns)
            if idle > len(self._turns) + _IDLE_TENANTS and idle > 2 * self._debtors:
                self._forget()

    def head(self, *, shortest_first: bool) -> Ticket:
        """Return the next of the tenant that was served least: the first due, or the shortest."""
        lane: Lane = self._turns[0][2]
        self._floor = max(self._floor, lane.served)
        head: Ticket = (lane.by_size if shortest_first else lane.by_due)[0][2]
        return head

    def smallest(self) -> Ticket:
        """Return the shortest prompt of the band, whoever's it is."""
        ticket: Ticket = self._smallest[0][2]
        return ticket

    def oldest(self) -> Ticket:
        """Return the one that came first."""
        return next(iter(self.tickets.values()))

    def newest(self) -> Ticket:
        """Return the one that came last."""
        return next(reversed(self.tickets.values()))

    def crowder(self, tenant: str, coming: int) -> Ticket | None:
        """Return the last of the tenant with most requests, if a tenant with ``coming`` more has fewer."""
        longest, own = next(iter(self._by_length[-1]), None), self._lanes.get(tenant)
        if longest is None or len(longest.by_due) <= (len(own.by_due) if own else 0) + coming:
            return None
        ticket: Ticket = longest.by_due[-1][2]
        return ticket

    def tokens_before(self, request: Request, *, shortest_first: bool) -> int:
        """Return the prompt tokens of its tenant that go before a newcomer; with other tenants it takes turns."""
        lane = self._lanes.get(request.tenant)
        if lane is None:
            return 0
        return lane.tokens_up_to(request.prompt_tokens) if shortest_first else lane.prompt_tokens

    def charge(self, tenant: str, tokens: float) -> None:
        """Add work to a tenant's account, or take back what was charged too much."""
        lane = self._lanes.get(tenant)
        if lane is not None:
            lane.served += tokens
            if lane.turn is not None:
                take_out(self._turns, lane.turn)
                self._take_turn(lane)

    def _resize(self, lane: Lane, before: int) -> None:
        """Note a lane's length, which was one less or more."""
        lengths, now = self._by_length, len(lane.by_size)
        if now == len(lengths):
            lengths.append({})
        if before:
            del lengths[before][lane]
        if now:
            lengths[now][lane] = None
        if len(lengths) > 1 and not lengths[-1]:
            lengths.pop()

    def _take_turn(self, lane: Lane) -> None:
        lane.turn = (lane.served, next(_serials), lane)
        insort(self._turns, lane.turn)

    def _forget(self) -> None:
        """Drop the tenants that neither wait nor were given more than those who do."""
        idle = [(name, lane) for name, lane in self._lanes.items() if lane.turn is None]
        kept = [entry for entry in idle if entry[1].served > self._floor]
        if len(kept) > _DEBTORS:
            kept = nlargest(_DEBTORS, kept, key=lambda entry: entry[1].served)
        self._debtors = len(kept)
        self._lanes = {name: lane for name, lane in self._lanes.items() if lane.turn} | dict(kept)


def _length_index(prompt_tokens: int) -> int:
    """Return the bucket of a prompt's length, an eighth of a power of two wide: 1024 to 1151 are in 88."""
    bits = prompt_tokens.bit_length()
    return min(255, 8 * bits + ((prompt_tokens << 4 >> bits) & 7))


def take_out(ordered: list[Any], entry: Any) -> None:
    """Remove an entry from a sorted list that has it."""
    del ordered[bisect_left(ordered, entry)]
