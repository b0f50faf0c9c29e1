"""A whole bench: capacity if it is needed, then every rate and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from trtkit.bench.calibration import calibration_of
from trtkit.bench.capacity import Capacity, Level, measure_capacity
from trtkit.bench.experiment import Experiment
from trtkit.bench.filler import Filler
from trtkit.bench.load import Target
from trtkit.bench.mix import Manners, Mix
from trtkit.bench.probe import Row, probe_engine
from trtkit.bench.schedule import Shot
from trtkit.contract.models import Contract
from trtkit.plan import Plan

_CAPACITY_SEED = 2**31
"""No run's: the requests that the capacity was measured with are not sent again."""


@dataclass(frozen=True)
class Load:
    """How much is sent: rates, or multiples of a capacity that is given or measured."""

    rates_per_s: Sequence[float] = ()
    rhos: Sequence[float] = ()
    seeds: Sequence[int] = (0,)
    duration_s: float = 60.0
    refine: int = 0
    capacity_per_s: float | None = None
    level_s: float = 15.0


@dataclass(frozen=True)
class Watcher:
    """Who is told what happens."""

    on_level: Callable[[Level], None] = lambda _: None
    on_rate: Callable[[float, int], None] = lambda *_: None
    on_row: Callable[[Row], None] = lambda _: None
    on_run: Callable[[Experiment], None] = lambda _: None
    """After each run: what is kept of it is safe from whatever comes after."""


@dataclass(frozen=True)
class Job:
    """One contract's mix against one target."""

    contract: Contract
    mix: Mix
    filler: Filler
    load: Load
    buckets: Sequence[int] = ()
    watcher: Watcher = field(default_factory=Watcher)

    async def run(self, address: str, capacity_address: str) -> Experiment:
        """Run everything.

        Raises:
            InputError: A rate cannot be.
            StartError: A target does not serve the model.
            StageError: It could not be saturated.
        """
        load, arrivals = self.load, self.mix.arrivals
        for rate_per_s in load.rates_per_s or (None,):
            arrivals.check(rate_per_s, load.duration_s)
        capacity = await self.measure(capacity_address) if load.rhos else None
        rates = load.rates_per_s or [rho * capacity.rate_per_s for rho in load.rhos if capacity]
        for rate_per_s in rates:
            arrivals.check(rate_per_s, load.duration_s)
        async with Target(address, self.filler) as target:
            experiment = Experiment(
                *(target, self.contract, self.mix, self.filler, load.duration_s, self.buckets, capacity),
                on_run=self.watcher.on_run,
            )
            for rate_per_s in rates:
                for seed in load.seeds:
                    self.watcher.on_rate(rate_per_s, seed)
                    await experiment.run(rate_per_s, seed)
            await experiment.refine(load.seeds, load.refine, self.watcher.on_rate)
        return experiment

    async def calibrate(self, address: str, plan: Plan) -> dict[str, Any]:
        """Measure lone prompts, as long as the engine takes, and return the calibration that they give.

        Raises:
            StageError: A prompt was not answered, or they cannot tell.
        """
        longest = self.mix.longest_prompt or 2048
        async with Target(address, self.filler) as target:
            server = {"address": address, **await target.described()}
            rows = await probe_engine(
                target,
                self.filler,
                next(iter(self.contract.classes)),
                longest_prompt=longest,
                longest_answer=(self.mix.longest_sequence or 2 * longest) - longest,
                most_running=plan.zones.decode_slots,
                on_row=self.watcher.on_row,
            )
        return calibration_of(rows, self.contract, plan, server)

    async def measure(self, address: str) -> Capacity:
        """Return the capacity that was given, else measure it."""
        if self.load.capacity_per_s is not None:
            return Capacity(self.load.capacity_per_s, (), measured=False)
        async with Target(address, self.filler) as target:
            return await measure_capacity(target, self._endless(), self.load.level_s, self.watcher.on_level)

    def _endless(self) -> Iterator[Shot]:
        # What clients do to their own requests says nothing about the engine.
        polite = replace(self.mix, manners=Manners())
        for seed in count(_CAPACITY_SEED):
            yield from polite.shots(self.filler, rate_per_s=1.0, duration_s=200.0, seed=seed)
