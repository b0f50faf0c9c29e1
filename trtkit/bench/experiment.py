"""Runs of one mix at several rates and seeds, and what they say together."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from trtkit.bench.account import binds
from trtkit.bench.capacity import Capacity
from trtkit.bench.filler import Filler
from trtkit.bench.interval import Interval, interval_of
from trtkit.bench.load import Target, fire_at
from trtkit.bench.measured import Measured
from trtkit.bench.mix import Mix
from trtkit.bench.tally import Tallier, Tally
from trtkit.contract.models import Contract
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
    """The rate as a multiple of the capacity."""
    sent_per_s: float = 0.0
    """Requests that were really sent, per second: what the draw gave of the rate, and a late client of that."""
    load_average: float = 0.0
    """Of the client's machine, over the last minute, at the run's end."""
    discarded: str = ""
    """Why the run counts nowhere, if it does not."""


@dataclass(frozen=True)
class RateResult:
    """All seeds of one rate together."""

    rate_per_s: float
    rho: float | None
    seeds: int
    goodput_per_s: Interval
    attainment: dict[str, float | None]
    """Per class, over all its requests."""
    attainment_by_seed: dict[str, Interval | None]


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
    rates: tuple[RateResult, ...]
    binding: tuple[str, ...]
    """Classes that were promised something and may not be shed; with none, nothing can be kept or missed."""
    goodput_capacity_per_s: float | None
    """Requests sent per second at the largest rate tried at which :data:`GOODPUT_ATTAINMENT` of every class is kept.

    None if at none, or none binds.
    """
    goodput_capacity_by_seed: tuple[float | None, ...]
    """The same of each seed alone."""
    missed: tuple[str, ...]
    """Objectives of the contract that were not kept, or that nothing was measured of."""
    warnings: tuple[str, ...]
    schema: int = 2


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
    on_run: Callable[[Experiment], None] = lambda _: None

    async def run(self, rate_per_s: float, seed: int) -> Run:
        """Send one run's requests and count them.

        A run whose client was late is kept, and counts nowhere; so is what had ended of one that is cancelled.
        """
        shots = self.mix.shots(self.filler, rate_per_s=rate_per_s, duration_s=self.duration_s, seed=seed)
        samples: list[Measured] = []
        last_s = shots[-1].at_s if shots else 0.0
        length_s = self.mix.length_s(last_s, rate_per_s, self.duration_s)
        try:
            await fire_at(self.target, shots, samples)
        except asyncio.CancelledError:
            if samples:
                until_s = max(each.at_s + each.ended_s for each in samples)
                why = f"interrupted: {len(samples)} of its {len(shots)} requests had ended"
                self._keep(rate_per_s, seed, samples, min(length_s, until_s), discarded=why)
            raise
        samples.sort(key=lambda each: each.at_s)
        return self._keep(rate_per_s, seed, samples, length_s)

    def _keep(
        self, rate_per_s: float, seed: int, samples: list[Measured], length_s: float, discarded: str = ""
    ) -> Run:
        """Count what was measured in so many seconds of arrivals."""
        buckets = self.buckets or self.contract.admission.length_buckets
        tallier = Tallier(self.contract.classes, buckets, self.contract.objective.attainment)
        tally = tallier.tally(samples, length_s, self.mix.arrivals.step_end_s(self.duration_s))
        run = Run(
            rate_per_s,
            seed,
            length_s,
            tally,
            rho=rate_per_s / self.capacity.rate_per_s if self.capacity else None,
            sent_per_s=len(samples) / max([length_s, *(each.at_s for each in samples)]),
            load_average=round(os.getloadavg()[0], 2),
            discarded=discarded or self._discarded(tally),
        )
        self.runs.append(run)
        self.samples[rate_per_s, seed] = samples
        self.on_run(self)
        return run

    async def refine(self, seeds: Sequence[int], times: int, on_rate: Callable[[float, int], None]) -> None:
        """Halve, so many times, the gap between the largest rate that keeps the promises and the next that does not."""
        for _ in range(times):
            good = self._best_rate() or 0.0
            worse = [rate for rate in self._rates() if rate > good]
            if not worse or not self.asked:
                return
            rate = (good + worse[0]) / 2
            for seed in seeds:
                on_rate(rate, seed)
                await self.run(rate, seed)

    @property
    def asked(self) -> list[str]:
        """Classes of the mix that were promised something and may not be shed."""
        asked = {source.class_name for source in self.mix.sources if source.share}
        return [name for name in self._binding() if name in asked]

    def goodput_capacity(self, seed: int | None = None) -> float | None:
        """Return what was sent per second at the largest rate up to which all that were tried keep the promises.

        Of one seed, or the mean of all. A draw gives more or less than the rate that was asked for.
        """
        best = self._best_rate(seed)
        sent = [run.sent_per_s for run in self._at(best) if seed in {None, run.seed}] if best else []
        return fmean(sent) if sent else None

    def _best_rate(self, seed: int | None = None) -> float | None:
        """Return the largest rate, as asked for, up to which every rate that was tried keeps the promises."""
        best = None
        for rate in self._rates() if self.asked else ():
            runs = [run for run in self._at(rate) if seed in {None, run.seed}]
            shares = attainments(runs)
            if runs and any((shares[name] or 0.0) < GOODPUT_ATTAINMENT for name in self.asked):
                return best
            best = rate if runs else best
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
            rates=tuple(map(self._rate, self._rates())),
            binding=tuple(self._binding()),
            goodput_capacity_per_s=self.goodput_capacity(),
            goodput_capacity_by_seed=tuple(
                self.goodput_capacity(seed) for seed in sorted({run.seed for run in self.runs})
            ),
            missed=tuple(self._missed()),
            warnings=tuple(self._warnings()),
        )

    def _rates(self) -> list[float]:
        """Return the rates of which a run counts."""
        return sorted({run.rate_per_s for run in self.runs if not run.discarded})

    def _at(self, rate_per_s: float) -> list[Run]:
        return [run for run in self.runs if run.rate_per_s == rate_per_s and not run.discarded]

    def _rate(self, rate_per_s: float) -> RateResult:
        runs = self._at(rate_per_s)
        by_seed = [attainments([run]) for run in runs]
        goodput = interval_of([run.tally.goodput_per_s for run in runs], 0.0) or Interval(0.0)
        return RateResult(
            rate_per_s,
            runs[0].rho,
            len(runs),
            goodput,
            attainments(runs),
            {name: interval_of([each[name] for each in by_seed], 0.0, 1.0) for name in by_seed[0]},
        )

    def _binding(self) -> list[str]:
        return [name for name, each in self.contract.classes.items() if binds(each)]

    def _missed(self) -> Iterator[str]:
        wanted = self.contract.objective.attainment
        for rate in self._rates():
            shares = attainments(self._at(rate))
            for name in self._binding():
                share = shares.get(name)
                if share is None:
                    yield f"{name} at {rate:.3g}/s: nothing was measured"
                elif share < wanted:
                    yield f"{name} at {rate:.3g}/s: {share:.1%} kept, {wanted:.1%} promised"

    def _warnings(self) -> Iterator[str]:
        if not self._binding():
            yield "no class that may not be shed was promised anything: no objective can be kept or missed"
        for run in self.runs:
            where = f"{run.rate_per_s:.3g}/s, seed {run.seed}"
            yield from (f"{where}: {each}" for each in self._odd(run, self.samples[run.rate_per_s, run.seed]))

    def _odd(self, run: Run, samples: Sequence[Measured]) -> Iterator[str]:
        """Yield what speaks against a run's figures."""
        if run.discarded:
            yield f"discarded: {run.discarded}"
        for kind, what in ((Outcome.INVALID, "could never be served"), (Outcome.FAILED, "failed")):
            ends = Counter(each.outcome for each in samples if each.kind is kind)
            if ends:
                yield f"{ends.total()} of {len(samples)} requests {what}: {ends.most_common(1)[0][0]}"
        failed = any(each.kind is Outcome.FAILED for each in samples)
        if run.rho is not None and run.rho > 1 and not failed and not _overloaded(run, samples):
            how = self.capacity.how if self.capacity else "taken"
            yield f"no queue and no refusal at {run.rho:.2f} times the capacity: it was {how} too low"

    def _discarded(self, tally: Tally) -> str:
        """Return why a run measured its client: it sent later than a twentieth of the smallest promise."""
        if not tally.requests:
            return "no request arrived"
        promises = [each.ttft_ms for each in self.contract.classes.values() if each.ttft_ms is not None]
        limit_ms = max(1000 * _LEAST_LAG_S, _LAG_SHARE * min(promises, default=1000.0))
        late = f"the client itself was late: p99 {tally.lag_p99_ms:.0f} ms, at most {limit_ms:.0f} ms may be"
        return late if tally.lag_p99_ms > limit_ms else ""


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
