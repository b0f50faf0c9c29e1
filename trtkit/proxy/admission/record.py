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
    """Its turn: how many of its band and above waited when it came."""
    QUEUE = "queue"
    """Room in the queue."""
    PROMISE = "promise"
    """The time that was left to its first token, which takes longer even on an idle engine; in seconds."""
    BACKLOG = "backlog"
    """The time that was left to its first token, which takes longer behind those who go before it; in seconds."""
    WAIT = "wait"
    """The time that its first token may take, and that was over while it waited; in seconds."""
    REQUEST = "request"
    """The request itself: its answer says what is wrong with it."""
    SERVER = "server"
    """The inference server that is away, or the proxy that is shutting down."""
    UNSAID = "unsaid"
    """It ended before admission saw it."""


SENTENCES = {
    Constraint.NONE: "nothing held it back",
    Constraint.PREFILL: "prompt tokens in flight: {measured:.0f} with it, {threshold:.0f} allowed",
    Constraint.KV: "tokens in the KV pool: {measured:.0f} with it, {threshold:.0f} allowed",
    Constraint.DECODE: "running requests: {measured:.0f} with it, {threshold:.1f} allowed",
    Constraint.ORDER: "{measured:.0f} of its band and above waited when it came",
    Constraint.QUEUE: "requests, or prompt tokens, in the queue: {measured:.0f}, {threshold:.0f} allowed",
    Constraint.PROMISE: "its first token needs {measured:.3f} s on an idle engine, {threshold:.3f} s were left",
    Constraint.BACKLOG: (
        "its first token needs {measured:.3f} s behind those who go before it, {threshold:.3f} s were left"
    ),
    Constraint.WAIT: "it waited {measured:.3f} s, its first token was to come within {threshold:.3f} s",
    Constraint.REQUEST: "the request itself",
    Constraint.SERVER: "the inference server is away, or the proxy shuts down",
    Constraint.UNSAID: "it ended before admission saw it",
}
"""What bound a request, for people."""

UNSIZED = "unsized"
"""Bucket of a request that was refused before its prompt was counted."""


class Bound(NamedTuple):
    """What bound a request: what was measured, and what was allowed."""

    constraint: Constraint
    measured: float = 0.0
    threshold: float = 0.0

    @property
    def sentence(self) -> str:
        """Return it for people."""
        return SENTENCES[self.constraint].format(measured=self.measured, threshold=self.threshold)


class Record(NamedTuple):
    """One request: what was decided, what bound it, and how it ended."""

    id: str
    class_name: str
    tenant: str
    bucket: str
    """Prompt length up to which tokens it is counted with."""
    prompt_tokens: int | None
    arrival_s: float
    ahead: int
    """Requests of its band and above that waited when it came."""
    predicted_ttft_s: float
    """As it came, all that waited ahead of it included; infinite while no rate was measured."""
    constraint: Constraint
    measured: float
    threshold: float
    reason: Reason | None = None
    """How it ended; None while it runs."""
    backend: int | None = None
    """The engine that it was sent to; None when it never was."""
    queue_s: float = math.nan
    relegated: bool = False
    total_s: float = math.nan
    """From arrival to its answer's end."""
    tokens: int = 0
    """Of its answer, sent to the client."""

    @property
    def bound(self) -> Bound:
        """What bound it."""
        return Bound(self.constraint, self.measured, self.threshold)


def bucket_of(prompt_tokens: int, edges: Sequence[int]) -> str:
    """Return the upper end of a prompt's bucket, ``inf`` for the last: 2048 is in ``2048``, 2049 in ``8192``."""
    index = bisect_left(edges, prompt_tokens)
    return str(edges[index]) if index < len(edges) else "inf"
