"""Many problems of one kind, told once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from trtkit.errors import Problem

_LAYER = re.compile(r"(?<=\.)\d{1,6}(?=\.)")
_MOST = 20


def condense(problems: Iterable[Problem], *, file: str) -> list[Problem]:
    """Return the problems with ``file`` as their place: one for all layers that share it, and not without end."""
    kinds: dict[Problem, list[Problem]] = {}
    for problem in problems:
        kinds.setdefault(replace(problem, key=_LAYER.sub("*", problem.key, count=1)), []).append(problem)
    told = [
        replace(same[0], message=same[0].message + _others(same[1:]), file=file) for same in kinds.values()
    ]
    if len(told) > _MOST:
        return [*told[:_MOST], Problem(f"and {len(told) - _MOST} more like these", file=file)]
    return told


def _others(problems: list[Problem]) -> str:
    layers = [int(match[0]) for problem in problems if (match := _LAYER.search(problem.key))]
    return f" (and in layer{'s' * (len(layers) > 1)} {_ranges(sorted(layers))})" if layers else ""


def _ranges(numbers: list[int]) -> str:
    """Render ``1-3, 5``."""
    text, previous = "", -1
    for number, following in zip(numbers, [*numbers[1:], -1], strict=True):
        starts, ends = number != previous + 1, following != number + 1
        if starts:
            text += f", {number}"
        elif ends:
            text += f"-{number}"
        previous = number
    return text.removeprefix(", ")
