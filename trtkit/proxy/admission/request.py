"""What admission knows of a request, and the states it goes through."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from trtkit.contract.models import ServiceClass
from trtkit.proxy.admission.outcome import Reason


class State(enum.Enum):
    """Where a request is; :class:`~trtkit.proxy.admission.policy.Admission` alone changes it."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    CANCELLING = "cancelling"
    """Answered, but the engine has not let go: its slot and KV stay taken."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Ends of a request in seconds after its arrival; ``inter_token_s`` restarts at each token."""

    queue_s: float = math.inf
    first_token_s: float = math.inf
    inter_token_s: float = math.inf
    total_s: float = math.inf

    @classmethod
    def of(cls, promise: ServiceClass, *, client_s: float = math.inf, streams: bool = True) -> TimeLimits:
        """Combine a class's limits with the client's own, the smaller wins.

        A request that does not stream shows no tokens on the way, so only queue and total apply to it.
        """
        total_s = min(_seconds(promise.total_limit_ms), client_s)
        return cls(
            queue_s=_seconds(promise.queue_limit_ms),
            first_token_s=_seconds(promise.timeouts.first_token_ms) if streams else math.inf,
            inter_token_s=_seconds(promise.inter_token_limit_ms) if streams else math.inf,
            total_s=total_s,
        )


def _seconds(limit_ms: float | None) -> float:
    return math.inf if limit_ms is None else limit_ms / 1000


@dataclass(frozen=True, slots=True)
class Request:
    """One request: its class, its size and its ends."""

    id: str
    class_name: str
    priority: int
    """1 is the most urgent."""
    prompt_tokens: int
    max_tokens: int
    arrival_s: float
    limits: TimeLimits = TimeLimits()
    sheddable: bool = False
    streams: bool = True


@dataclass(slots=True, eq=False)
class Ticket:
    """A request in Admission's hands."""

    request: Request
    state: State = State.QUEUED
    prefilled_s: float = math.inf
    """When the prefill of a request that does not stream is taken to be over."""
    last_token_s: float = math.inf
    armed_s: float = field(default=math.inf)
    """Time of its earliest entry in the timer heap."""

    def due(self) -> tuple[float, Reason | None]:
        """Return what happens to this request next if nothing else does; no reason means prefill is over."""
        request, limits = self.request, self.request.limits
        ends: list[tuple[float, Reason | None]] = [(request.arrival_s + limits.total_s, Reason.DEADLINE)]
        if self.state is State.QUEUED:
            ends.append((request.arrival_s + limits.queue_s, Reason.QUEUE_TIMEOUT))
        if self.state in (State.QUEUED, State.PREFILLING):
            ends.append((request.arrival_s + limits.first_token_s, Reason.FIRST_TOKEN_TIMEOUT))
        if self.state is State.PREFILLING:
            ends.append((self.prefilled_s, None))
        if self.state is State.DECODING:
            ends.append((self.last_token_s + limits.inter_token_s, Reason.INTER_TOKEN_TIMEOUT))
        if self.state in (State.CANCELLING, State.DONE):
            return math.inf, None
        return min(ends, key=lambda end: end[0])
