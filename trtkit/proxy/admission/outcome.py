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


class Reason(str, enum.Enum):
    """Why a request ended, with its kind, its gRPC code and what is said about a retry."""

    outcome: Outcome
    code: str
    retry: Retry

    def __new__(cls, value: str, outcome: Outcome, code: str, retry: Retry) -> Reason:  # noqa: PYI034 - Self is newer than 3.10
        """Build one member from its row."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.outcome, reason.code, reason.retry = outcome, code, retry
        return reason

    OK = "ok", Outcome.OK, "OK", Retry.UNSAID

    QUEUE_FULL = "queue_full", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG
    SHED = "shed_for_higher_class", Outcome.REFUSED, "RESOURCE_EXHAUSTED", Retry.BACKLOG
    DRAINING = "draining", Outcome.REFUSED, "UNAVAILABLE", Retry.SOON
    NO_BACKEND = "no_backend", Outcome.REFUSED, "UNAVAILABLE", Retry.SOON

    QUEUE_TIMEOUT = "queue_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.BACKLOG
    FIRST_TOKEN_TIMEOUT = "first_token_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID
    INTER_TOKEN_TIMEOUT = "inter_token_timeout", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID
    DEADLINE = "deadline", Outcome.TIMED_OUT, "DEADLINE_EXCEEDED", Retry.UNSAID

    TOO_LONG = "too_long", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER
    OVER_CLASS_LIMIT = "over_class_limit", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER
    BAD_PRIORITY = "bad_priority", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER
    UNKNOWN_CLASS = "unknown_class", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER
    INVALID_INPUT = "invalid_input", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER
    NOT_DECOUPLED = "not_decoupled", Outcome.INVALID, "INVALID_ARGUMENT", Retry.NEVER

    CLIENT_CANCELLED = "client_cancelled", Outcome.CANCELLED, "CANCELLED", Retry.UNSAID
    UPSTREAM_ERROR = "upstream_error", Outcome.FAILED, "INTERNAL", Retry.UNSAID
    TRUNCATED_STREAM = "truncated_stream", Outcome.FAILED, "DATA_LOSS", Retry.UNSAID
    INTERNAL = "internal", Outcome.FAILED, "INTERNAL", Retry.UNSAID
    """A bug of the proxy itself."""
