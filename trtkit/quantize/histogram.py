"""How often a cache keeps which magnitude, and the INT8 step that loses least of them.

Bins are those of float32's bits without the last 18: five bits of the significand, so that one is 3 % wide.
"""

from __future__ import annotations

import numpy as np

from trtkit.checkpoint.kernels import Floats

SHIFT = 18
"""Bits of a float32 that do not count."""
BINS = 1 << (31 - SHIFT)
_RATIOS = np.arange(10, 41) / 40
"""Of the step that reaches the largest value: 1 clips nothing."""
_MAX = 127


def best_int8_step(counts: Floats) -> float:
    """Return the step of the least mean squared error for magnitudes counted by bin.

    Below half a step a value is lost whole; up to 127.5 steps the error is spread evenly over a step, ``step**2 / 12``;
    above, it is what is beyond 127 steps.
    """
    held = np.flatnonzero(counts)
    weights = counts[held].astype(np.float64)
    values = (((held << SHIFT) + (1 << (SHIFT - 1))).astype(np.uint32)).view(np.float32).astype(np.float64)
    steps = values[-1] / _MAX * _RATIOS
    return float(min(steps, key=lambda step: float((weights * _squared_errors(values, step)).sum())))


def _squared_errors(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]], step: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    lost, clipped = values < step / 2, values > (_MAX + 0.5) * step
    inside = np.where(lost, values**2, step**2 / 12)
    return np.where(clipped, (values - _MAX * step) ** 2, inside)
