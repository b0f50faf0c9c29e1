"""Why a request got what it got: one record each, the same in trailers, log and ``trtkit explain``."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from trtkit.proxy.admission.outcome import Reason


class Constraint(str, enum.Enum):
    """What bound a request."""

    NONE = "none"
    """Nothing: it went to the engine as it came."""
    PREFILL = "prefill"
    """Prompt tokens in flight."""
    KV = "kv"
    """Tokens in the KV pool."""
    DECODE = "decode"
    """Running requests."""
    ORDER = "order"
    """Others of its band and above went before it: how many."""
    QUEUE = "queue"
    """Room in the queue."""
    PROMISE = "promise"
    """The time that was left to its first token, in seconds."""


class Record(NamedTuple):
    """One decision, with the constraint that bound it: what was measured and what was allowed."""

    id: str
    class_name: str
    tenant: str
    bucket: str
    """Prompt length up to which tokens it is counted with."""
    prompt_tokens: int
    arrival_s: float
    ahead: int
    """Requests of its band and above that waited when it came."""
    predicted_ttft_s: float
    """As it came, all that waited ahead of it included; infinite while no rate was measured."""
    constraint: Constraint
    measured: float
    threshold: float
    reason: Reason | None = None
    """Why it was refused; None when it was sent to an engine."""
    backend: int | None = None
    queue_s: float = math.nan
    relegated: bool = False


def bucket_of(prompt_tokens: int, edges: Sequence[int]) -> str:
    """Return the upper end of a prompt's bucket, ``inf`` for the last: 2048 is in ``2048``, 2049 in ``8192``."""
    index = bisect_left(edges, prompt_tokens)
    return str(edges[index]) if index < len(edges) else "inf"
