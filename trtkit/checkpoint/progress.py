"""How long work tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Takes the name of a stage, how much of it is done, and how much there is (None when unknown)."""

    def __call__(self, stage: str, done: int, total: int | None, /) -> None:
        """Show it."""


def silent(stage: str, done: int, total: int | None, /) -> None:
    """Show nothing."""
