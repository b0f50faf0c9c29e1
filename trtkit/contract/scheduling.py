"""Names of what the proxy does with requests that wait."""

from __future__ import annotations

import enum


class OnInfeasible(str, enum.Enum):
    """What becomes of a request whose first token cannot come in time."""

    REJECT = "reject"
    """It is refused at once, with a time to come back."""
    RELEGATE = "relegate"
    """It waits behind all classes, without a promise, and the response says so."""
    QUEUE = "queue"
    """It keeps its place: a late answer is worth as much."""


class Order(str, enum.Enum):
    """Who of one tenant's requests in a band goes first."""

    HYBRID = "hybrid"
    """By deadline while all can be in time, else the shortest prompt first."""
    DEADLINE = "deadline"
    SHORTEST = "shortest"
