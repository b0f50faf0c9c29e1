"""What admission knows of a request, and the states it goes through."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trtkit.contract.scheduling import OnInfeasible
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission.outcome import Reason
from trtkit.proxy.admission.record import Constraint

if TYPE_CHECKING:
    from trtkit.proxy.admission.backend import Backend
    from trtkit.proxy.admission.lane import Lane
    from trtkit.proxy.admission.pool import Pool

INFINITE = math.inf
RELEGATED_QUEUE_S = 60.0
"""How long a request may wait that was relegated behind all classes."""


class State(enum.IntEnum):
    """Where a request is; :class:`~trtkit.proxy.admission.policy.Admission` alone changes it."""

    QUEUED = 0
    PREFILLING = 1
    DECODING = 2
    CANCELLING = 3
    """Answered, but the engine has not let go: its slot and KV stay taken."""
    DONE = 4


QUEUED, PREFILLING, DECODING, CANCELLING, DONE = State
"""The states, at hand: in Python 3.11 to look one up in its enum takes longer than a call."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Ends of a request in seconds after its arrival; ``inter_token_s`` restarts at each token."""

    queue_s: float = INFINITE
    first_token_s: float = INFINITE
    inter_token_s: float = INFINITE
    total_s: float = INFINITE

    @classmethod
    def of(cls, promise: ServiceClass, *, client_s: float = INFINITE, streams: bool = True) -> TimeLimits:
        """Combine a class's limits with the client's own, the smaller wins.

        A request that does not stream shows no tokens on the way, so only queue and total apply to it.
        """
        total_s = min(_seconds(promise.total_limit_ms), client_s)
        return cls(
            queue_s=_seconds(promise.queue_limit_ms),
            first_token_s=_seconds(promise.timeouts.first_token_ms) if streams else INFINITE,
            inter_token_s=_seconds(promise.inter_token_limit_ms) if streams else INFINITE,
            total_s=total_s,
        )


def _seconds(limit_ms: float | None) -> float:
    return INFINITE if limit_ms is None else limit_ms / 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """What a class was promised, as the policy needs it."""

    share: float = 1.0
    """Part of each zone that its band may fill."""
    ttft_s: float = INFINITE
    tpot_s: float = INFINITE
    on_infeasible: OnInfeasible = OnInfeasible.REJECT

    @classmethod
    def of(cls, promise: ServiceClass, share: float) -> Terms:
        """Read a class's promises."""
        return cls(share, _seconds(promise.ttft_ms), _seconds(promise.tpot_ms), promise.on_infeasible)


NO_TERMS = Terms()


def terms_of(classes: Mapping[str, ServiceClass], holdback: Sequence[float]) -> dict[str, Terms]:
    """Return every class's terms; its band's share is the holdback of its rank.

    The most urgent band has the first share, the least urgent one the last, those between what is between: with 1, 0.9
    and 0.6, two bands have 1 and 0.6, and four have 1, 0.9, 0.9 and 0.6.
    """
    bands = sorted({promise.priority for promise in classes.values()})
    middle = holdback[1:-1] or holdback[-1:]
    inner = [middle[min(rank, len(middle) - 1)] for rank in range(len(bands) - 2)]
    shares = [holdback[0], *inner, holdback[-1]][: len(bands)] if len(bands) > 1 else [holdback[0]]
    share_of = dict(zip(bands, shares, strict=True))
    return {name: Terms.of(promise, share_of[promise.priority]) for name, promise in classes.items()}


class Request(NamedTuple):
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
    tenant: str = ""
    terms: Terms = NO_TERMS
    beams: int = 1
    """Answers that are written side by side; each has blocks of its own, those of the prompt are shared."""
    affinity: int = 0
    """Stands for how the prompt begins, or for its session: an engine that has read it keeps its KV; 0 for nothing."""


class Ticket:
    """A request in Admission's hands."""

    __slots__ = (
        "ahead", "armed_s", "backend", "blocked_by", "dispatched_s", "due_s", "ends_s", "first_mark_tokens", "first_s",
        "first_slot_s", "flight_tokens", "held_kv_tokens", "held_prefill_tokens", "kv_need", "lane", "last_token_s",
        "measured", "passed_by", "patient", "pool", "predicted_s", "prefilled_s", "relegated", "request", "serial",
        "share", "spared_tokens", "start_by_s", "state", "stopping", "threshold", "tokens", "watched", "work_tokens",
    )  # fmt: skip

    def __init__(self, request: Request, kv_need: int, pool: Pool) -> None:
        limits, terms = request.limits, request.terms
        self.request = request
        self.share = terms.share
        """Part of each zone that it may fill."""
        self.kv_need = kv_need
        self.pool = pool
        """In whose queue it waits; another may lend it an engine."""
        self.state: State = QUEUED
        self.due_s = request.arrival_s + min(terms.ttft_s, limits.total_s)
        """When its first token is due, by promise or by its end with the answer in between."""
        self.patient = self.due_s == INFINITE or terms.on_infeasible is OnInfeasible.QUEUE
        """Whether it is not to be refused for being late."""
        self.ends_s = request.arrival_s + min(limits.queue_s, limits.first_token_s, limits.total_s)
        """When its time is over if it still waits."""
        self.start_by_s = INFINITE
        """When it is to be looked at again, because it may have become hopeless."""
        self.prefilled_s = INFINITE
        """When the prefill of a request that does not stream is taken to be over."""
        self.last_token_s = INFINITE
        self.armed_s = INFINITE
        """Time of its earliest entry in the timer heap."""
        self.watched = (
            not request.streams or min(limits.first_token_s, limits.inter_token_s, limits.total_s) < INFINITE
        )
        """Whether time can end it once it was sent to an engine."""
        self.serial = 0
        self.lane: Lane | None = None
        self.backend: Backend | None = None
        self.relegated = False
        self.passed_by = 0
        self.stopping = False
        """Whether it was told to stop before its first token."""
        self.tokens = 0
        self.dispatched_s = self.first_s = INFINITE
        self.first_mark_tokens, self.first_slot_s = 0, 0.0
        """Prompt tokens that its engine had prefilled, and its running time so far, when its first token came."""
        self.flight_tokens = 0
        """Prompt tokens in flight at its engine as it was sent, its own included."""
        self.work_tokens = 0.0
        """What its tenant was charged for its output; nothing where nobody had to wait."""
        self.held_prefill_tokens = self.held_kv_tokens = 0
        self.spared_tokens = 0
        """What it holds of the prefill zone that is not counted, because it is more than its band's share."""
        self.ahead = 0
        self.predicted_s = INFINITE
        self.blocked_by = Constraint.NONE
        self.measured = self.threshold = 0.0

    def leave_time(self, answer_s: float) -> None:
        """Bring its first token forward, so that an answer of that length is complete by its end."""
        request = self.request
        self.due_s = request.arrival_s + min(request.terms.ttft_s, request.limits.total_s - answer_s)

    def relegate(self) -> None:
        """Let it wait behind all others, without a promise."""
        self.relegated = self.patient = True
        self.due_s = INFINITE
        self.ends_s = min(self.ends_s, self.request.arrival_s + RELEGATED_QUEUE_S)

    def bind(self, constraint: Constraint, measured: float = 0.0, threshold: float = 0.0) -> None:
        """Note what binds it: what was measured, and what was allowed."""
        self.blocked_by, self.measured, self.threshold = constraint, measured, threshold

    def due(self) -> tuple[float, Reason | None]:
        """Return what happens to this request next if nothing else does; no reason means a look at it."""
        request, limits, state = self.request, self.request.limits, self.state
        if state is CANCELLING or state is DONE:
            return INFINITE, None
        at_s, reason = limits.total_s + request.arrival_s, Reason.DEADLINE
        look_s = INFINITE
        if state is DECODING:
            end_s, why = self.last_token_s + limits.inter_token_s, Reason.INTER_TOKEN_TIMEOUT
        else:
            end_s, why = request.arrival_s + limits.first_token_s, Reason.FIRST_TOKEN_TIMEOUT
            look_s = self.prefilled_s
            if state is QUEUED:
                look_s = self.start_by_s
                queue_s = min(limits.queue_s, RELEGATED_QUEUE_S) if self.relegated else limits.queue_s
                if request.arrival_s + queue_s < at_s:
                    at_s, reason = request.arrival_s + queue_s, Reason.QUEUE_TIMEOUT
        if end_s < at_s:
            at_s, reason = end_s, why
        return (look_s, None) if look_s < at_s else (at_s, reason)
