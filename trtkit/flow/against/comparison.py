"""What a comparison found, and of what."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.errors import Problem


@dataclass(frozen=True)
class Comparison:
    """Problems, and names of what was compared: where that is nothing, no problem says nothing either."""

    problems: tuple[Problem, ...] = ()
    compared: tuple[str, ...] = ()

    def __add__(self, other: Comparison) -> Comparison:
        """Return both together, each name once."""
        names = dict.fromkeys((*self.compared, *other.compared))
        return Comparison((*self.problems, *other.problems), tuple(names))
