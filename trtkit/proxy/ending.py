"""The one answer that ends a request, in the two shapes that clients understand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtkit.conventions import (
    BACKEND_TRAILER,
    CLASS_TRAILER,
    CLIPPED_TRAILER,
    CONSTRAINT_TRAILER,
    DEADLINE_TRAILER,
    PREDICTED_TRAILER,
    PUSHBACK_TRAILER,
    QUEUE_TRAILER,
    REASON_TRAILER,
    RELEGATED_TRAILER,
    REQUEST_ID_TRAILER,
)
from trtkit.errors import TrtkitError
from trtkit.proxy.admission import FIXED_PUSHBACK_MS, Bound, Reason, Record
from trtkit.proxy.wire.details import DETAILS_TRAILER, status_details

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True)
class Ending:
    """Why a request ended and what its client is told."""

    reason: Reason
    detail: str = ""
    pushback_ms: int | None = None
    code: str = ""
    """gRPC code; left out, the reason's."""

    @property
    def status(self) -> str:
        """Name of the gRPC code."""
        return self.code or self.reason.code

    @property
    def message(self) -> str:
        """Return the answer as a gRPC status message."""
        return f"{self.reason.value}: {self.detail or self.reason.text}"


OK = Ending(Reason.OK)


class Refusal(TrtkitError):  # noqa: N818 - an answer, not an accident
    """A request is answered before it has produced anything."""

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        *,
        pushback_ms: int | None = None,
        code: str = "",
        record: Record | None = None,
        bound: Bound | None = None,
    ) -> None:
        """Take the record of admission's decision, or what bound a request that admission never saw."""
        bound = record.bound if record else bound
        if bound is not None and not detail:
            detail = f"{reason.text}; {bound.sentence}"
        super().__init__(detail or reason.text)
        if pushback_ms is None:
            pushback_ms = FIXED_PUSHBACK_MS.get(reason.retry)
        self.ending = Ending(reason, detail, pushback_ms, code)
        self.record = record
        self.bound = bound


@dataclass
class Facts:
    """What the proxy found out and decided about a request; sent as trailing metadata."""

    class_name: str = ""
    queue_s: float | None = None
    deadline_s: float = math.inf
    clipped_to: int | None = None
    record: Record | None = None

    def trailers(self, ending: Ending) -> Metadata:
        """Return the trailing metadata of a request's status."""
        facts: list[tuple[str, object]] = [
            (REASON_TRAILER, ending.reason.value),
            (CLASS_TRAILER, self.class_name or None),
            (QUEUE_TRAILER, None if self.queue_s is None else round(1000 * self.queue_s)),
            (DEADLINE_TRAILER, None if self.deadline_s == math.inf else round(1000 * self.deadline_s)),
            (CLIPPED_TRAILER, self.clipped_to),
            *self._decision(),
            (PUSHBACK_TRAILER, ending.pushback_ms),
        ]
        trailers: Metadata = tuple((name, str(value)) for name, value in facts if value is not None)
        if ending.reason is Reason.OK:
            return trailers
        request_id = self.record.id if self.record else ""
        return (*trailers, (DETAILS_TRAILER, status_details(ending, self.class_name, request_id)))

    def _decision(self) -> list[tuple[str, object]]:
        record = self.record
        if record is None:
            return []
        known = record.predicted_ttft_s < math.inf
        return [
            (REQUEST_ID_TRAILER, record.id),
            (CONSTRAINT_TRAILER, record.constraint.value),
            (PREDICTED_TRAILER, round(1000 * record.predicted_ttft_s) if known else None),
            (RELEGATED_TRAILER, "true" if record.relegated else None),
            (BACKEND_TRAILER, record.backend),
        ]


_TRANSIT_S, _ROUNDING = 0.05, 0.02
"""A client's clock ends its call before the deadline that arrives here: by the way of its request, and by what gRPC
rounds timeouts up (1.234 s to 1.24 s)."""


@dataclass(frozen=True)
class Caller:
    """Who asks: what the client's call says beside its messages."""

    metadata: Metadata
    """To be passed on."""
    arrival_s: float
    deadline_s: float
    """End of the client's call on the proxy's clock, or infinity."""
    grpc_errors: bool
    """Whether the client wants errors as the status of its stream."""
    class_names: tuple[str, ...] = ()
    """What it names as its class, each once; more than one contradict each other."""
    tenants: tuple[str, ...] = ()
    """Who shares its band's turns as one; likewise."""
    sessions: tuple[str, ...] = ()
    """What its prompt continues; likewise."""

    def why_left(self, now_s: float) -> Reason:
        """Tell a client whose time was up from one that left of its own will."""
        early_s = max(_TRANSIT_S, _ROUNDING * (now_s - self.arrival_s))
        return Reason.DEADLINE if now_s + early_s >= self.deadline_s else Reason.CLIENT_CANCELLED
