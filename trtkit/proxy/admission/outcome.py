"""How a request can end. The vocabulary is the same in trailers, in-band errors, metrics and logs."""

from __future__ import annotations

import enum


class Outcome(str, enum.Enum):
    """The few kinds of ends, disjoint: over all requests they sum to the arrivals."""

    OK = "ok"
    INVALID = "invalid"
    """The client's mistake: it can never work, and says nothing about the service."""
    REFUSED = "refused"
    """Never reached the engine, and could have."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    """By the client."""
    FAILED = "failed"


class Retry(enum.Enum):
    """What the client is told about trying again (``grpc-retry-pushback-ms``)."""

    BACKLOG = "after the queue ahead has drained"
    SOON = "in a moment, elsewhere if possible"
    NEVER = "never"
    UNSAID = "nothing is said"


FIXED_PUSHBACK_MS = {Retry.NEVER: -1, Retry.SOON: 250}
"""``grpc-retry-pushback-ms`` where it does not depend on the backlog."""


class Reason(str, enum.Enum):
    """Why a request ended: its kind, its gRPC code, what is said about a retry, and the sentence for the user."""

    outcome: Outcome
    code: str
    retry: Retry
    text: str

    def __new__(cls, value: str, outcome: Outcome, code: str, retry: Retry, text: str) -> Reason:  # noqa: PYI034
        """Build one member from its row."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.outcome, reason.code, reason.retry, reason.text = outcome, code, retry, text
        return reason

    OK = "ok", Outcome.OK, "OK", Retry.UNSAID, "complete"

    QUEUE_FULL = (
        *("queue_full", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG),
        "the queue is full",
    )
    SHED = (
        *("shed_for_higher_class", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG),
        "dropped from the queue to make room for a more urgent class",
    )
    HOPELESS = (
        *("slo_unreachable", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG),
        "its first token cannot come in the time promised to its class",
    )
    IMPOSSIBLE = (
        *("slo_impossible", Outcome.REFUSED, "FAILED_PRECONDITION", Retry.NEVER),
        "its first token takes longer than was promised to its class, even on an idle engine",
    )
    EVICTED = (
        *("evicted", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG),
        "stopped before its first token to keep the promise to a more urgent class",
    )
    DRAINING = (
        *("draining", Outcome.REFUSED, "UNAVAILABLE", Retry.SOON),
        "the proxy is shutting down",
    )
    NO_BACKEND = (
        *("no_backend", Outcome.REFUSED, "UNAVAILABLE", Retry.SOON),
        "the inference server cannot be reached",
    )
    QUEUE_TIMEOUT = (
        *("queue_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.BACKLOG),
        "waited in the queue for as long as its class may",
    )
    FIRST_TOKEN_TIMEOUT = (
        *("first_token_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID),
        "no first token within the limit of its class",
    )
    INTER_TOKEN_TIMEOUT = (
        *("inter_token_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID),
        "no further token within the limit of its class",
    )
    DEADLINE = (
        *("deadline", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID),
        "not complete by its deadline",
    )
    TOO_LONG = (
        *("too_long", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "longer than the engine can take",
    )
    OVER_CLASS_LIMIT = (
        *("over_class_limit", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "longer than its class may be",
    )
    BAD_PRIORITY = (
        *("bad_priority", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "no class has this priority",
    )
    UNKNOWN_CLASS = (
        *("unknown_class", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "there is no such class",
    )
    INVALID_INPUT = (
        *("invalid_input", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "the request does not fit the model",
    )
    NOT_DECOUPLED = (
        *("not_decoupled", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER),
        "the model cannot stream",
    )
    CLIENT_CANCELLED = (
        *("client_cancelled", Outcome.CANCELLED, "CANCELLED", Retry.UNSAID),
        "cancelled by the client",
    )
    SLOW_READER = (
        *("slow_reader", Outcome.CANCELLED, "RESOURCE_EXHAUSTED", Retry.UNSAID),
        "the client reads so slowly that its answers pile up",
    )
    UPSTREAM_ERROR = (
        *("upstream_error", Outcome.FAILED, "INTERNAL", Retry.UNSAID),
        "the inference server failed",
    )
    TRUNCATED_STREAM = (
        *("truncated_stream", Outcome.FAILED, "DATA_LOSS", Retry.UNSAID),
        "the inference server ended the stream without a final response",
    )
    INTERNAL = (
        *("internal", Outcome.FAILED, "INTERNAL", Retry.UNSAID),
        "the proxy failed; this is a bug",
    )
