"""The machine that a plan is made for, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What the plan may use; the caller looks, the plan only calculates."""

    cores: int
    memory_bytes: int | None
    """Memory that weights, buffers and the KV pool share; None when unknown."""
