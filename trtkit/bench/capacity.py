"""How many requests of a mix a target completes per second when it is never idle, and the proof that it was not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

from trtkit.bench.load import Spell, Target, keep_busy
from trtkit.bench.measured import Measured
from trtkit.bench.schedule import Shot
from trtkit.errors import StageError
from trtkit.proxy.admission import Outcome

FLAT = 1.1
"""Twice and four times the requests under way bring at most so many times the rate: the target is saturated."""
FIRST_WORKERS, MOST_WORKERS = 8, 512
_ANSWERS_EACH = 3
"""Of each level's places: the first answers are warm-up."""
_REFUSED_SHARE = 0.02


@dataclass(frozen=True)
class Level:
    """One number of requests under way, and what came of it."""

    workers: int
    rate_per_s: float
    answered: int
    unanswered: int


@dataclass(frozen=True)
class Capacity:
    """The saturated rate and the levels that prove it; of a rate that was given there are none."""

    rate_per_s: float
    levels: tuple[Level, ...]
    measured: bool = True

    @property
    def how(self) -> str:
        """Where it is from, for a reader."""
        return "measured" if self.measured else "given"


async def measure_capacity(
    target: Target, shots: Iterator[Shot], level_s: float, on_level: Callable[[Level], None] = lambda _: None
) -> Capacity:
    """Double the requests under way until the rate stays.

    Raises:
        StageError: It never stayed, or the target does not answer all: a proxy that refuses shows its policy, not
            its engine.
    """

    async def measure(workers: int) -> Level:
        level = _level(workers, await keep_busy(target, shots, workers, level_s, _ANSWERS_EACH * workers))
        on_level(level)
        if level.unanswered > _REFUSED_SHARE * (level.answered + level.unanswered):
            raise StageError(
                f"{level.unanswered} of {level.answered + level.unanswered} requests were not answered while the "
                "capacity was measured",
                hint="measure it at Triton itself with --capacity-target HOST:PORT, or give it with --capacity RATE",
            )
        return level

    capacity = await saturate(measure)
    if capacity is None:
        raise StageError(
            f"{MOST_WORKERS} requests under way do not saturate {target.address}",
            hint="use longer prompts or answers (--scale), or give the capacity with --capacity RATE",
        )
    return capacity


async def saturate(measure: Callable[[int], Awaitable[Level]]) -> Capacity | None:
    """Return the mean of the levels at the plateau, or None if there is none: the best alone may have been lucky.

    A best level that no other comes near is measured again: either the target does worse with more under way, or
    something else made the difference, and then the second time counts.
    """
    levels: list[Level] = []
    workers = FIRST_WORKERS
    while workers <= MOST_WORKERS:
        levels.append(await measure(workers))
        while _is_flat(levels) and len(best := _plateau(levels)) == 1:
            again, at = await measure(best[0].workers), levels.index(best[0])
            levels[at : at + 1] = [best[0], again] if len(_plateau([best[0], again])) == 2 else [again]
        if _is_flat(levels):
            return Capacity(fmean(each.rate_per_s for each in _plateau(levels)), tuple(levels))
        workers *= 2
    return None


def _is_flat(levels: Sequence[Level]) -> bool:
    """Tell whether two levels in a row brought no more: one may have met a neighbour on the machine."""
    rates = [each.rate_per_s for each in levels]
    return len(rates) > 2 and max(rates[-2:]) <= FLAT * max(rates[:-2])


def _plateau(levels: Sequence[Level]) -> list[Level]:
    best = max(each.rate_per_s for each in levels)
    return [each for each in levels if FLAT * each.rate_per_s >= best]


def _level(workers: int, spell: Spell) -> Level:
    """Sum up what was done once each place had an answer; who was only partly answered then counts for that part."""
    ends_s = sorted(each.at_s + each.ended_s for each in spell.done)
    start_s = ends_s[min(workers, len(ends_s)) - 1]
    answered = [each for each in spell.done if each.kind is Outcome.OK]
    parts = sum(_part(each, start_s, spell.end_s) for each in answered)
    length_s = spell.end_s - start_s
    rate_per_s = parts / length_s if length_s > 0 else 0.0
    return Level(workers, rate_per_s, len(answered), len(spell.done) - len(answered))


def _part(sample: Measured, start_s: float, end_s: float) -> float:
    """Return the share of a request's messages that came within a time."""
    times_s = accumulate((sample.at_s + (sample.ttft_s or 0.0), *sample.gaps_s))
    return sum(start_s <= each < end_s for each in times_s) / (1 + len(sample.gaps_s))
