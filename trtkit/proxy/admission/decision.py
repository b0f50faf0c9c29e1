"""What a host has to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trtkit.proxy.admission.outcome import Reason
from trtkit.proxy.admission.record import Record, bucket_of
from trtkit.proxy.admission.request import Ticket


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the request to an engine now."""

    id: str
    backend: int = 0
    record: Record | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer a request that never reached the engine; Admission has forgotten it."""

    id: str
    reason: Reason
    pushback_ms: int | None
    """Wait before a retry; -1 says never, None says nothing."""
    record: Record | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Abort:
    """Answer a request that runs, stop it at the engine, and call :meth:`Admission.finish` when it has ended."""

    id: str
    reason: Reason
    pushback_ms: int | None = None
    """As of :class:`Refuse`."""


Decision = Dispatch | Refuse | Abort


def record_of(ticket: Ticket, now_s: float, edges: Sequence[int], reason: Reason | None = None) -> Record:
    """Return the record of what is decided now; ``edges`` are the ends of the prompt lengths told apart."""
    request = ticket.request
    return Record(
        request.id,
        request.class_name,
        request.tenant,
        bucket_of(request.prompt_tokens, edges),
        request.prompt_tokens,
        request.arrival_s,
        ticket.ahead,
        ticket.predicted_s,
        ticket.blocked_by,
        ticket.measured,
        ticket.threshold,
        reason,
        ticket.backend.index if ticket.backend else None,
        now_s - request.arrival_s,
        ticket.relegated,
    )
