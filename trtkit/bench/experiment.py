"""Runs of one mix at several rates and seeds, and what they say together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trtkit.bench.capacity import FLAT, Capacity
from trtkit.bench.filler import Filler
from trtkit.bench.load import Target, fire_at
from trtkit.bench.measured import Measured
from trtkit.bench.mix import Mix
from trtkit.bench.tally import Tallier, Tally
from trtkit.contract.models import Contract, ServiceClass
from trtkit.errors import StageError
from trtkit.proxy.admission import Outcome

GOODPUT_ATTAINMENT = 0.9
"""Goodput capacity is the largest rate at which so much of every class that may not be shed keeps its promises."""
_LAG_SHARE = 0.05
_LEAST_LAG_S = 0.01


@dataclass(frozen=True)
class Run:
    """One rate and seed, and what came of it."""

    rate_per_s: float
    seed: int
    duration_s: float
    tally: Tally
    rho: float | None = None
    """The rate as a multiple of the measured capacity."""
    load_average: float = 0.0
    """Of the client's machine, over the last minute, at the run's end."""


@dataclass(frozen=True)
class BenchResult:
    """Everything that a bench found; ``docs/goodput.md`` explains the figures."""

    target: str
    contract: str
    objective: float
    traffic: dict[str, str]
    """Per class the table of lengths and the share of the requests."""
    arrivals: str
    scale: float
    capacity: Capacity | None
    runs: tuple[Run, ...]
    goodput_capacity_per_s: float | None
    """Largest rate that was tried at which :data:`GOODPUT_ATTAINMENT` of every class was kept; None if at none."""
    missed: tuple[str, ...]
    """Objectives of the contract that were not kept, or that nothing was measured of."""
    warnings: tuple[str, ...]
    schema: int = 1


@dataclass
class Experiment:
    """One target and one mix; collects runs."""

    target: Target
    contract: Contract
    mix: Mix
    filler: Filler
    duration_s: float
    buckets: Sequence[int] = ()
    capacity: Capacity | None = None
    runs: list[Run] = field(default_factory=list)
    samples: dict[tuple[float, int], list[Measured]] = field(default_factory=dict)
    """By rate and seed."""

    async def run(self, rate_per_s: float, seed: int) -> Run:
        """Send one run's requests and count them.

        Raises:
            StageError: The client sent too late for its figures to mean anything.
        """
        shots = self.mix.shots(self.filler, rate_per_s=rate_per_s, duration_s=self.duration_s, seed=seed)
        if not shots:
            hint = "raise --rate, --rho or --duration"
            raise StageError(f"no request arrives in {self.duration_s:g} s at {rate_per_s:g}/s", hint=hint)
        samples = await fire_at(self.target, shots)
        buckets = self.buckets or self.contract.admission.length_buckets
        tallier = Tallier(self.contract.classes, buckets, self.contract.objective.attainment)
        arrivals = self.mix.arrivals
        # A trace may be shorter than asked for.
        length_s = (
            min(self.duration_s, shots[-1].at_s + 1 / rate_per_s) if arrivals.trace else self.duration_s
        )
        tally = tallier.tally(samples, length_s, arrivals.step_end_s(self.duration_s))
        self._check_lag(tally)
        rho = rate_per_s / self.capacity.rate_per_s if self.capacity else None
        run = Run(rate_per_s, seed, length_s, tally, rho, round(os.getloadavg()[0], 2))
        self.runs.append(run)
        self.samples[rate_per_s, seed] = samples
        return run

    async def refine(self, seeds: Sequence[int], times: int, on_rate: Callable[[float, int], None]) -> None:
        """Halve, so many times, the gap between the largest rate that keeps the promises and the next that does not."""
        for _ in range(times):
            rates = sorted({run.rate_per_s for run in self.runs})
            good = self.goodput_capacity() or 0.0
            worse = [rate for rate in rates if rate > good]
            if not worse:
                return
            rate = (good + worse[0]) / 2
            for seed in seeds:
                on_rate(rate, seed)
                await self.run(rate, seed)

    def goodput_capacity(self) -> float | None:
        """Return the largest rate below which every rate that was tried keeps the promises."""
        best = None
        for rate in sorted({run.rate_per_s for run in self.runs}):
            shares = attainments([run for run in self.runs if run.rate_per_s == rate])
            asked = {source.class_name for source in self.mix.sources if source.share}
            if any((shares[name] or 0.0) < GOODPUT_ATTAINMENT for name in self._binding() if name in asked):
                return best
            best = rate
        return best

    def result(self, traffic: Mapping[str, str]) -> BenchResult:
        """Return what the runs say together."""
        return BenchResult(
            target=self.target.address,
            contract=self.contract.name,
            objective=self.contract.objective.attainment,
            traffic=dict(traffic),
            arrivals=self.mix.arrivals.shape.value,
            scale=self.mix.scale,
            capacity=self.capacity,
            runs=tuple(self.runs),
            goodput_capacity_per_s=self.goodput_capacity(),
            missed=tuple(self._missed()),
            warnings=tuple(self._warnings()),
        )

    def _binding(self) -> list[str]:
        """Return the classes that were promised something and may not be shed."""
        return [name for name, each in self.contract.classes.items() if _binds(each)]

    def _missed(self) -> Iterator[str]:
        wanted = self.contract.objective.attainment
        for rate in sorted({run.rate_per_s for run in self.runs}):
            shares = attainments([run for run in self.runs if run.rate_per_s == rate])
            for name in self._binding():
                share = shares.get(name)
                if share is None:
                    yield f"{name} at {rate:.3g}/s: nothing was measured"
                elif share < wanted:
                    yield f"{name} at {rate:.3g}/s: {share:.1%} kept, {wanted:.1%} promised"

    def _warnings(self) -> Iterator[str]:
        for run in self.runs:
            where = f"{run.rate_per_s:.3g}/s, seed {run.seed}"
            samples = self.samples[run.rate_per_s, run.seed]
            wrong = [each for each in samples if each.kind is Outcome.INVALID]
            if wrong:
                yield f"{where}: {len(wrong)} requests could never be served: {wrong[0].outcome}"
            if run.rho is not None and run.rho > 1 and not _overloaded(run, samples):
                yield f"{where}: no queue and no refusal at {run.rho:.2f} times the capacity: it was measured too low"
            # What was kept after the last arrival took time as well.
            work_s = run.duration_s + run.tally.overrun_s
            kept_per_s = run.tally.goodput_per_s * run.duration_s / work_s
            if run.rho is not None and kept_per_s > FLAT * run.rate_per_s / run.rho:
                yield f"{where}: more requests kept their promises than the capacity: it was measured too low"

    def _check_lag(self, tally: Tally) -> None:
        promises = [each.ttft_ms for each in self.contract.classes.values() if each.ttft_ms is not None]
        limit_ms = max(1000 * _LEAST_LAG_S, _LAG_SHARE * min(promises, default=1000.0))
        if tally.lag_p99_ms > limit_ms:
            raise StageError(
                f"the client itself was late: p99 {tally.lag_p99_ms:.0f} ms, at most {limit_ms:.0f} ms may be",
                hint="run it on another machine than the target, or at a lower rate",
            )


def _binds(each: ServiceClass) -> bool:
    return each.has_slo and not each.sheddable


def _overloaded(run: Run, samples: Sequence[Measured]) -> bool:
    """Return whether the target was behind: it turned somebody away, or worked on for long after the last arrival."""
    turned_away = any(each.kind in {Outcome.REFUSED, Outcome.TIMED_OUT} for each in samples)
    answered = sorted(each.ended_s for each in samples if each.kind is Outcome.OK)
    return turned_away or not answered or run.tally.overrun_s > 2 * answered[len(answered) // 10]


def attainments(runs: Sequence[Run]) -> dict[str, float | None]:
    """Return each class's attainment over all requests of several runs."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys(row.class_name for run in runs for row in run.tally.classes):
        rows = [row for run in runs for row in run.tally.classes if row.class_name == name]
        counted = sum(row.kept + row.missed for row in rows)
        found[name] = sum(row.kept for row in rows) / counted if counted else None
    return found
