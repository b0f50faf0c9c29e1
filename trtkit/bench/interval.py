"""A mean of a few runs, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip
"""Student's t at 97.5 % for 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95 % interval; of one seed nothing is known but its own figure."""

    mean: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1

    def text(self, form: str) -> str:
        """Return it for a reader, each number in this form."""
        mean = format(self.mean, form)
        if self.low is None or self.high is None:
            return f"{mean} (one seed: no interval)"
        if math.isclose(self.low, self.high, abs_tol=1e-12):
            return f"{mean} in each of {self.seeds} seeds"
        return f"{mean}, 95 % interval {format(self.low, form)} to {format(self.high, form)} over {self.seeds} seeds"


def interval_of(
    values: Sequence[float | None], least: float = -math.inf, most: float = math.inf
) -> Interval | None:
    """Return the mean and Student's interval, cut to what the figure can be; None where a seed has no figure."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean, count = statistics.fmean(known), len(known)
    if count == 1:
        return Interval(mean)
    # Beyond 30 the quantile of a normal distribution, with the first term of its expansion: 2.04 at 31.
    t = _T[count - 2] if count - 1 <= len(_T) else 1.96 + 2.4 / (count - 1)
    half = t * statistics.stdev(known) / math.sqrt(count)
    return Interval(mean, max(least, mean - half), min(most, mean + half), count)
