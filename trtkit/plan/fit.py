"""Curves through step times: three terms, none negative, by least relative squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from trtkit.plan.silicon import Three

WORST = 0.35
"""A curve that is further off at some point is none: mixtures of experts bend as batches reach more of them."""


@dataclass(frozen=True)
class Curve:
    """Coefficients, and how far the worst point is off, relative to it."""

    terms: Three
    worst: float


def fit_prefill(points: Sequence[tuple[int, float]]) -> Curve:
    """Fit ``a + b n + c n^2`` milliseconds to prompts of n tokens."""
    return _fit([(1.0, float(n), float(n) * n) for n, _ in points], [ms for _, ms in points])


def fit_step(points: Sequence[tuple[int, float, float]]) -> Curve:
    """Fit ``a + b batch + c batch context`` milliseconds to steps of (batch, context)."""
    return _fit([(1.0, float(b), b * c) for b, c, _ in points], [ms for *_, ms in points])


def _fit(rows: Sequence[Three], times: Sequence[float]) -> Curve:
    """Return the best of the fits with some of the terms, all of which are positive."""
    import numpy as np

    weighed = np.array(rows) / np.array(times)[:, None]
    ones, best = np.ones(len(times)), Curve((0.0, 0.0, 0.0), float("inf"))
    least = float("inf")
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            part = np.linalg.lstsq(weighed[:, list(chosen)], ones, rcond=None)[0]
            off = np.abs(weighed[:, list(chosen)] @ part - 1)
            if (part >= 0).all() and float(off @ off) < least:
                least = float(off @ off)
                terms = [0.0, 0.0, 0.0]
                for index, value in zip(chosen, part, strict=True):
                    terms[index] = float(value)
                best = Curve((terms[0], terms[1], terms[2]), float(off.max()))
    return best
