"""A line through noisy pairs, learnt as they come."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

_PARTNERS = 3
"""Earlier pairs that a new one is compared with."""
_SLOPES = 128
_LEVELS = 64
_ENOUGH = 16
"""Slopes from which on their median is trusted."""


class Window:
    """The last ``size`` numbers, in order of size as well."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.count = 0
        self._recent: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """Take a number in, and let the oldest go where there are too many."""
        ordered, recent = self._sorted, self._recent
        if self.count == self._size:
            del ordered[bisect_left(ordered, recent[0])]
        else:
            self.count += 1
        insort(ordered, value)
        recent.append(value)

    def quantile(self, share: float) -> float:
        """Return a quantile of those kept; there must be one."""
        return self._sorted[int(share * (self.count - 1))]


class LineFit:
    """Theil-Sen, incrementally: ``y = level + slope * x`` by medians, which one pair in four may be wrong about.

    Each new pair gives a slope with each of the last few that differ enough in ``x``; where all are alike, the slope is
    that of the line through the origin. Costs O(1) a pair for the fixed windows.
    """

    def __init__(self, min_distance: float) -> None:
        self._min_distance = min_distance
        self._pairs: deque[tuple[float, float]] = deque(maxlen=_PARTNERS)
        self._slopes = Window(_SLOPES)
        self._ratios = Window(_LEVELS)
        self._levels = Window(_LEVELS)

    @property
    def known(self) -> bool:
        """Whether enough was seen to rely on it."""
        return self._ratios.count >= _ENOUGH

    def level(self, share: float = 0.5) -> float:
        """Return a quantile of the heights of the line at 0, never negative."""
        return max(0.0, self._levels.quantile(share)) if self._slopes.count >= _ENOUGH else 0.0

    def slope(self, share: float = 0.5) -> float:
        """Return a quantile of the slopes; a larger one is more careful. 0 where nothing was seen."""
        if self._slopes.count >= _ENOUGH:
            return max(0.0, self._slopes.quantile(share))
        return self._ratios.quantile(share) if self._ratios.count else 0.0

    def add(self, x: float, y: float) -> None:
        """Learn from one pair; one closer to 0 than the smallest distance tells nothing of the slope."""
        if x < self._min_distance:
            return
        for other_x, other_y in self._pairs:
            if abs(x - other_x) >= self._min_distance:
                self._slopes.add((y - other_y) / (x - other_x))
        self._pairs.append((x, y))
        self._ratios.add(y / x)
        self._levels.add(y - self.slope() * x)
