"""Requests that wait: strict bands by priority, first come first served inside a band."""

from __future__ import annotations

from collections import OrderedDict

from trtkit.proxy.admission.request import Request, Ticket


class _ClassQueue:
    """One class's waiting requests in order of arrival; any of them can leave in O(1)."""

    def __init__(self, request: Request) -> None:
        self.priority = request.priority
        self.sheddable = request.sheddable
        self.prompt_tokens = 0
        self.tickets: OrderedDict[str, Ticket] = OrderedDict()

    def oldest(self) -> Ticket:
        return next(iter(self.tickets.values()))

    def newest(self) -> Ticket:
        return next(reversed(self.tickets.values()))


class BandQueue:
    """All waiting requests. Every operation costs O(classes), however many wait."""

    def __init__(self, starvation_s: float) -> None:
        self._starvation_s = starvation_s
        self._classes: dict[str, _ClassQueue] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def depth(self, class_name: str) -> int:
        """Return how many requests of a class wait."""
        waiting = self._classes.get(class_name)
        return len(waiting.tickets) if waiting else 0

    def push(self, ticket: Ticket) -> None:
        """Put a request at the end of its class."""
        request = ticket.request
        waiting = self._classes.setdefault(request.class_name, _ClassQueue(request))
        waiting.tickets[request.id] = ticket
        waiting.prompt_tokens += request.prompt_tokens
        self._length += 1

    def remove(self, ticket: Ticket) -> None:
        """Take a request out, wherever it stands."""
        waiting = self._classes[ticket.request.class_name]
        del waiting.tickets[ticket.request.id]
        waiting.prompt_tokens -= ticket.request.prompt_tokens
        self._length -= 1

    def head(self, now_s: float) -> Ticket | None:
        """Return who goes next: the oldest that has starved, else the oldest of the most urgent band."""
        heads = self.heads()
        starved = [head for head in heads if now_s - head.request.arrival_s >= self._starvation_s]
        if starved:
            return min(starved, key=lambda head: head.request.arrival_s)
        return min(heads, key=lambda head: (head.request.priority, head.request.arrival_s), default=None)

    def heads(self) -> list[Ticket]:
        """Return the oldest of each class."""
        return [waiting.oldest() for waiting in self._classes.values() if waiting.tickets]

    def newest_sheddable(self, priority: int) -> Ticket | None:
        """Return the newest sheddable request of the least urgent class below ``priority``."""
        below = [
            waiting
            for waiting in self._classes.values()
            if waiting.tickets and waiting.sheddable and waiting.priority > priority
        ]
        return max(below, key=lambda waiting: waiting.priority).newest() if below else None

    def ahead(self, priority: int) -> int:
        """Return how many requests wait in this band and above."""
        return sum(len(each.tickets) for each in self._classes.values() if each.priority <= priority)

    def tokens_ahead(self, priority: int) -> int:
        """Return the prompt tokens that wait in this band and above."""
        return sum(each.prompt_tokens for each in self._classes.values() if each.priority <= priority)

    def tickets(self) -> list[Ticket]:
        """Return all that wait."""
        return [ticket for waiting in self._classes.values() for ticket in waiting.tickets.values()]
