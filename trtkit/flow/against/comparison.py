"""What a comparison found, and of what."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.errors import Problem


@dataclass(frozen=True)
class Comparison:
    """Problems, and names of what was compared: where that is nothing, no problem says nothing either."""

    problems: tuple[Problem, ...] = ()
    compared: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """What it depends on, and was not compared: the target does not say it."""

    def __add__(self, other: Comparison) -> Comparison:
        """Return both together, each name once."""
        compared = dict.fromkeys((*self.compared, *other.compared))
        left = dict.fromkeys((*self.open, *other.open))
        return Comparison((*self.problems, *other.problems), tuple(compared), tuple(left))
