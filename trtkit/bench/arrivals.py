"""When requests come, as multiples of a mean rate: smooth, bursty, in a step, in two moods, or as recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trtkit.bench.schedule import Shape
from trtkit.bench.sim.trace import TraceRow, stamp_step_s
from trtkit.bench.sim.workload import Draws, gamma_arrivals
from trtkit.errors import InputError

MOST_REQUESTS = 5_000_000
"""Of one run: more do not fit into memory."""
_STEP_SHARE = 1 / 6
"""At most so much of the time is the step: there has to be a time before it, and one to recover in."""
CALM, BUSY = 0.4, 2.2
"""Rates of the two moods: with 20 s and 10 s of each, 0.4 * 20 + 2.2 * 10 = 30 arrivals in 30 s at a mean of 1/s."""
CALM_S, BUSY_S = 20.0, 10.0


@dataclass(frozen=True)
class Arrivals:
    """A shape and its parameters; those of other shapes are ignored."""

    shape: Shape = Shape.POISSON
    cv: float = 2.5
    """Gamma: coefficient of variation of the gaps."""
    step_factor: float = 10.0
    step_s: float = 5.0
    """Step: the rate is so many times as high for so long, after a third of the time; its mean is what was asked."""
    trace: Sequence[TraceRow] = ()
    keep_stamps: bool = False
    """Replay the requests of a coarse stamp in one moment, as they were recorded."""

    def step_end_s(self, duration_s: float) -> float | None:
        """Return when the step is over, for arrivals that have one."""
        return duration_s / 3 + self.step_s if self.shape is Shape.STEP else None

    def times(self, draw: Draws, rate_per_s: float | None, duration_s: float) -> Draws:
        """Draw arrival times in order; of a trace those of its beginning, at this mean rate or as recorded.

        Raises:
            InputError: So many requests are more than a machine can hold, or the time is too short for a step.
        """
        self.check(rate_per_s, duration_s)
        if self.shape is Shape.REPLAY:
            return self._replay(draw, rate_per_s, duration_s)
        if rate_per_s is None:
            raise InputError("only a trace has a rate of its own", hint="give a rate")
        if self.shape is Shape.STEP:
            return self._step(draw, rate_per_s, duration_s)
        if self.shape is Shape.MMPP:
            return _mmpp(draw, rate_per_s, duration_s)
        cv = self.cv if self.shape is Shape.GAMMA else 1.0
        return gamma_arrivals(draw, rate_per_s=rate_per_s, cv=cv, duration_s=duration_s)

    def check(self, rate_per_s: float | None, duration_s: float) -> None:
        """Check that such arrivals can be.

        Raises:
            InputError: They cannot.
        """
        if rate_per_s is not None and not 1 <= rate_per_s * duration_s <= MOST_REQUESTS:
            message = (
                f"{rate_per_s:g} requests/s for {duration_s:g} s are {rate_per_s * duration_s:.3g} requests"
            )
            raise InputError(message, hint=f"send 1 to {MOST_REQUESTS:,}: change the rate or --duration")
        if self.shape is Shape.STEP and self.step_s > _STEP_SHARE * duration_s:
            message = f"{duration_s:g} s are too short for a step of {self.step_s:g} s, and for what recovers after it"
            raise InputError(message, hint=f"give --duration {self.step_s / _STEP_SHARE:g} or more")

    @cached_property
    def stamps_s(self) -> float:
        """How coarse the trace's times are; within that the requests are spread at random."""
        return 0.0 if self.keep_stamps else stamp_step_s(self.trace)

    def _replay(self, draw: Draws, rate_per_s: float | None, duration_s: float) -> Draws:
        """Return the first requests of a trace; at a rate its gaps are stretched, and its bursts stay of as many."""
        if rate_per_s is None:
            rows = [row for row in self.trace if row.at_s <= duration_s]
        else:
            rows = list(self.trace[: max(1, round(rate_per_s * duration_s))])
        times = np.array([row.at_s for row in rows])
        if self.stamps_s:
            times = np.sort(times + draw.uniform(0.0, self.stamps_s, len(times)))
            times -= times[0]
        length_s = float(times[-1]) or 1.0
        return times if rate_per_s is None else times * (len(rows) / rate_per_s / length_s)

    def _step(self, draw: Draws, rate_per_s: float, duration_s: float) -> Draws:
        """With a factor of 10 for 5 of 60 s, 60 / (60 + 9 * 5) = 0.57 times the mean rate goes before and after."""
        calm = duration_s / (duration_s + (self.step_factor - 1) * self.step_s)
        start_s = duration_s / 3
        rest_s = duration_s - start_s - self.step_s
        spans = [(start_s, calm), (self.step_s, calm * self.step_factor), (rest_s, calm)]
        return _spans(draw, rate_per_s, spans)


def _mmpp(draw: Draws, rate_per_s: float, duration_s: float) -> Draws:
    spans, end_s = [], 0.0
    busy = draw.random() < BUSY_S / (CALM_S + BUSY_S)
    while end_s < duration_s:
        length_s = min(draw.exponential(BUSY_S if busy else CALM_S), duration_s - end_s)
        spans.append((length_s, BUSY if busy else CALM))
        end_s, busy = end_s + length_s, not busy
    return _spans(draw, rate_per_s, spans)


def _spans(draw: Draws, rate_per_s: float, spans: Sequence[tuple[float, float]]) -> Draws:
    """Return Poisson arrivals whose rate changes: spans are lengths in seconds and factors."""
    parts, start_s = [], 0.0
    for length_s, factor in spans:
        if length_s > 0:
            times = gamma_arrivals(draw, rate_per_s=rate_per_s * factor, cv=1.0, duration_s=length_s)
            parts.append(start_s + times)
        start_s += length_s
    return np.concatenate(parts)
