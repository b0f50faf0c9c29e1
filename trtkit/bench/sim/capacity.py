"""How many engines a contract needs for its traffic, and what each class gets from so many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trtkit.bench.account import ClassAccount, kept
from trtkit.bench.sim.engine import Engine, EngineModel, Job
from trtkit.bench.sim.fleet import SimClass, Simulation, sim_classes
from trtkit.bench.sim.score import account_of, sample_of
from trtkit.bench.sim.trace import TraceRow
from trtkit.bench.sim.workload import Source, draw_jobs, gamma_arrivals
from trtkit.contract.models import Contract
from trtkit.errors import InputError
from trtkit.plan.resolve import zones_of
from trtkit.plan.types import EngineLimits
from trtkit.proxy.admission import Admission, terms_of

OnTry = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class Traffic:
    """What arrives: drawn by rate from tables, or a trace whose requests are dealt out to the classes by share."""

    sources: Sequence[Source]
    """One per class, in the contract's order."""
    rate_per_s: float = 1.0
    cv: float = 1.0
    duration_s: float = 200.0
    trace: Sequence[TraceRow] = ()

    def jobs(self, seed: int) -> list[Job]:
        """Draw the requests of one seed."""
        draw = np.random.default_rng(seed)
        if not self.trace:
            times_s = gamma_arrivals(draw, rate_per_s=self.rate_per_s, cv=self.cv, duration_s=self.duration_s)
            return draw_jobs(self.sources, times_s, draw)
        shares = np.array([source.share for source in self.sources])
        classes = draw.choice(len(self.sources), size=len(self.trace), p=shares / shares.sum()).tolist()
        return [
            Job(
                class_index=index,
                arrival_s=row.at_s,
                prompt_tokens=row.prompt_tokens,
                output_tokens=max(1, row.output_tokens),
                max_tokens=self.sources[index].max_tokens,
            )
            for index, row in zip(classes, self.trace, strict=True)
        ]

    @property
    def length_s(self) -> float:
        """From the first arrival to the last, at least a second: a trace may be of one moment."""
        return max(1.0, self.trace[-1].at_s if self.trace else self.duration_s)


def engine_of(contract: Contract, model: EngineModel) -> EngineModel:
    """Return the engine model with what the contract itself says about the engine."""
    limits, kv_cache = contract.engine.limits, contract.engine.kv_cache
    return replace(
        model,
        max_batch_size=limits.max_batch_size or model.max_batch_size,
        max_num_tokens=limits.max_num_tokens or model.max_num_tokens,
        kv_tokens=kv_cache.max_tokens or model.kv_tokens,
        tokens_per_block=kv_cache.tokens_per_block,
    )


def check_pools(contract: Contract) -> None:
    """Make sure that one queue for all engines is what the contract has.

    Raises:
        InputError: It has pools for prompts of different lengths.
    """
    if len(contract.pools) > 1:
        hint = "simulate it without: --set pools={}, and mind that short prompts then wait behind long ones"
        raise InputError("one pool of engines is modelled, not a contract's several `pools`", hint=hint)


class Site:
    """A contract's service on modelled engines."""

    def __init__(self, contract: Contract, model: EngineModel, traffic: Traffic) -> None:
        check_pools(contract)
        self.contract = contract
        self.model = engine_of(contract, model)
        self.traffic = traffic
        self.classes: list[SimClass] = sim_classes(
            contract.classes, terms_of(contract.classes, contract.admission.holdback)
        )

    def gpus(self, engines: int) -> int:
        """Return the GPUs of so many engines."""
        engine = self.contract.engine
        return engines * engine.tensor_parallel * engine.pipeline_parallel

    def run(self, engines: int, seed: int) -> list[Job]:
        """Simulate one seed on so many engines."""
        jobs = self.traffic.jobs(seed)
        Simulation(self._admission(engines), self.classes, self.model).run(jobs)
        return jobs

    def account(self, engines: int, seeds: Sequence[int]) -> list[ClassAccount]:
        """Return what each class gets, over all seeds."""
        jobs = [job for seed in seeds for job in self.run(engines, seed)]
        return account_of(jobs, self.classes, self.traffic.length_s * len(seeds))

    def alone(self, seeds: Sequence[int]) -> dict[str, float]:
        """Return each class's attainment if every request had an engine to itself: no number of engines gives more."""
        good, count = [0] * len(self.classes), [0] * len(self.classes)
        for job in (job for seed in seeds for job in self.traffic.jobs(seed)):
            engine = Engine(self.model)
            engine.submit(job, job.arrival_s)
            while engine.busy:
                engine.advance()
            each = self.classes[job.class_index]
            count[job.class_index] += 1
            good[job.class_index] += kept(sample_of(job, each.name), each.promise)
        return {
            each.name: g / n
            for each, g, n in zip(self.classes, good, count, strict=True)
            if n and self._must_keep(each)
        }

    def engines_needed(self, seeds: Sequence[int], most: int, on_try: OnTry = lambda *_: None) -> int | None:
        """Return the fewest engines with which every class that may not be shed keeps the objective, or None.

        Doubles until it is kept, then halves the gap: attainment is taken to grow with the engines.
        """

        def enough(engines: int) -> bool:
            rows = self.account(engines, seeds)
            found = {row.class_name: row.attainment for row in rows if row.attainment is not None}
            on_try(engines, found)
            wanted = self.contract.objective.attainment
            return all(found.get(each.name, 1.0) >= wanted for each in self.classes if self._must_keep(each))

        short, engines = 0, 1
        while not enough(engines):
            if engines >= most:
                return None
            short, engines = engines, min(2 * engines, most)
        while engines - short > 1:
            middle = (short + engines) // 2
            short, engines = (short, middle) if enough(middle) else (middle, engines)
        return engines

    def _must_keep(self, each: SimClass) -> bool:
        return each.promise.has_slo and not each.promise.sheddable

    def _admission(self, engines: int) -> Admission:
        rules, model = self.contract.admission, self.model
        limits = EngineLimits(
            model.max_batch_size,
            model.kv_tokens,
            model.kv_tokens,
            model.max_num_tokens,
            model.tokens_per_block,
        )
        zones = zones_of(limits, model.kv_tokens, rules.kv_fraction)
        return Admission(rules, zones, model.tokens_per_block, backends=engines)
