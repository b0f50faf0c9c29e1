"""What a host has to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtkit.proxy.admission.outcome import Reason
from trtkit.proxy.admission.record import Record


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


Decision = Dispatch | Refuse | Abort
