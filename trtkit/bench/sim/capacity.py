"""How many engines a contract needs for its traffic, and what each class gets from so many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from trtkit.bench.account import ClassAccount, binds, kept
from trtkit.bench.mix import Mix
from trtkit.bench.sim.engine import Engine, EngineModel, Job
from trtkit.bench.sim.fleet import PROGRESS_REQUESTS, SimClass, Simulation, sim_classes
from trtkit.bench.sim.score import account_of, sample_of
from trtkit.contract.models import Contract
from trtkit.contract.pools import DEFAULT_POOL
from trtkit.errors import InputError
from trtkit.plan.resolve import zones_of
from trtkit.plan.types import EngineLimits, Plan, Zones
from trtkit.proxy.admission import Admission, PoolSpec, terms_of

OnTry = Callable[["Counts", Mapping[str, float]], None]
OnProgress = Callable[["Counts", int, int, int], None]
"""Engines, seed, and how many of its requests have come, of how many."""


@dataclass(frozen=True)
class Traffic:
    """A mix, at a rate or as a trace has it, for some time."""

    mix: Mix
    rate_per_s: float | None = 1.0
    """None for a trace at its own times."""
    duration_s: float = 200.0

    def jobs(self, seed: int) -> list[Job]:
        """Draw the requests of one seed."""
        return self.mix.jobs(rate_per_s=self.rate_per_s, duration_s=self.duration_s, seed=seed)

    def length_s(self, jobs: Sequence[Job]) -> float:
        """Return how long these requests arrive."""
        last_s = jobs[-1].arrival_s if jobs else 0.0
        return self.mix.length_s(last_s, self.rate_per_s, self.duration_s)


def engine_of(contract: Contract, model: EngineModel, plan: Plan | None = None) -> EngineModel:
    """Return the engine model with the plan's limits; without a plan, with what the contract itself says."""
    if plan is not None:
        return replace(
            model,
            max_batch_size=plan.limits.max_batch_size,
            max_num_tokens=plan.limits.max_num_tokens,
            kv_tokens=plan.memory.kv_tokens,
            tokens_per_block=plan.limits.tokens_per_block,
        )
    limits, kv_cache = contract.engine.limits, contract.engine.kv_cache
    return replace(
        model,
        max_batch_size=limits.max_batch_size or model.max_batch_size,
        max_num_tokens=limits.max_num_tokens or model.max_num_tokens,
        kv_tokens=kv_cache.max_tokens or model.kv_tokens,
        tokens_per_block=kv_cache.tokens_per_block,
    )


@dataclass(frozen=True)
class SimPool:
    """Engines that share a queue, for prompts from some length on."""

    name: str
    model: EngineModel
    zones: Zones
    min_prompt_tokens: int = 0

    @classmethod
    def of(
        cls,
        contract: Contract,
        model: EngineModel,
        plan: Plan | None = None,
        *,
        name: str = DEFAULT_POOL,
        min_prompt_tokens: int = 0,
    ) -> SimPool:
        """Return engines of the contract of one pool, with the plan's limits and zones where there is one."""
        engine = engine_of(contract, model, plan)
        zones = plan.zones if plan else _zones(engine, contract.admission.kv_fraction)
        return cls(name, engine, zones, min_prompt_tokens)

    def spec(self, engines: int) -> PoolSpec:
        """Return what admission needs of so many of them."""
        return PoolSpec(self.zones, self.model.tokens_per_block, engines, self.min_prompt_tokens)


def _zones(model: EngineModel, kv_fraction: float) -> Zones:
    longest = model.kv_tokens
    limits = EngineLimits(
        model.max_batch_size, longest, longest, model.max_num_tokens, model.tokens_per_block
    )
    return zones_of(limits, model.kv_tokens, kv_fraction)


Counts = tuple[int, ...]
"""Engines of each pool."""


class Site:
    """A contract's service on modelled engines; pools come by the length of their prompts."""

    def __init__(
        self,
        contract: Contract,
        pools: Sequence[SimPool],
        traffic: Traffic,
        on_progress: OnProgress = lambda *_: None,
    ) -> None:
        self.contract = contract
        self.pools = pools
        self.traffic = traffic
        self.on_progress = on_progress
        self.classes: list[SimClass] = sim_classes(
            contract.classes, terms_of(contract.classes, contract.admission.holdback)
        )

    @cached_property
    def binding(self) -> list[str]:
        """Classes that are asked for, were promised something and may not be shed."""
        asked = {source.class_name for source in self.traffic.mix.sources if source.share}
        return [name for name, each in self.contract.classes.items() if binds(each) and name in asked]

    def gpus(self, engines: Counts) -> int | None:
        """Return the GPUs of so many engines; None of a back end without."""
        engine = self.contract.engine
        return sum(engines) * engine.tensor_parallel * engine.pipeline_parallel if engine.gpu else None

    def run(self, engines: Counts, seed: int) -> list[Job]:
        """Simulate one seed on so many engines."""
        jobs = self.traffic.jobs(seed)
        models = [pool.model for pool in self.pools]
        simulation = Simulation(self._admission(engines), self.classes, *models)
        simulation.run(jobs, lambda come: self.on_progress(engines, seed, come, len(jobs)))
        if len(jobs) > PROGRESS_REQUESTS:
            self.on_progress(engines, seed, len(jobs), len(jobs))
        return jobs

    def runs(self, engines: Counts, seeds: Sequence[int]) -> list[list[Job]]:
        """Simulate several seeds."""
        return [self.run(engines, seed) for seed in seeds]

    def account(self, runs: Sequence[Sequence[Job]]) -> list[ClassAccount]:
        """Return what each class gets, over all runs."""
        length_s = sum(self.traffic.length_s(jobs) for jobs in runs)
        return account_of([job for jobs in runs for job in jobs], self.classes, length_s)

    def alone(self, seeds: Sequence[int]) -> dict[str, float]:
        """Return each binding class's attainment if every request had an engine to itself: no number gives more.

        Raises:
            InputError: No class binds, or no request of one arrives: then nothing can be said.
        """
        if not self.binding:
            hint = "promise ttft_ms, tpot_ms or deadline_ms to a class that is asked for and not sheddable"
            raise InputError(
                "no class that may not be shed was promised anything: nothing can be kept", hint=hint
            )
        good, count = dict.fromkeys(self.binding, 0), dict.fromkeys(self.binding, 0)
        for job in (job for seed in seeds for job in self.traffic.jobs(seed)):
            each = self.classes[job.class_index]
            if each.name in count:
                count[each.name] += 1
                good[each.name] += self._kept_alone(job, each)
        if missing := [name for name in count if not count[name]]:
            hint = "raise --duration, --seeds, or the class's share in --traffic"
            raise InputError(f"no request of {', '.join(missing)} arrives", hint=hint)
        return {name: good[name] / count[name] for name in count}

    def _kept_alone(self, job: Job, each: SimClass) -> bool:
        starts = [pool.min_prompt_tokens for pool in self.pools]
        engine = Engine(self.pools[bisect_right(starts, job.prompt_tokens) - 1].model)
        engine.submit(job, job.arrival_s)
        while engine.busy:
            engine.advance()
        return kept(sample_of(job, each.name), each.promise)

    def keeps(self, account: Sequence[ClassAccount]) -> bool | None:
        """Return whether every binding class keeps the objective; None where none binds."""
        shares = {row.class_name: row.attainment or 0.0 for row in account}
        wanted = self.contract.objective.attainment
        return all(shares[name] >= wanted for name in self.binding) if self.binding else None

    def engines_needed(
        self, seeds: Sequence[int], most: int, on_try: OnTry = lambda *_: None
    ) -> Counts | None:
        """Return the fewest engines with which every class that may not be shed keeps the objective, or None.

        Doubles all pools until it is kept, then makes one after the other as small as it can be, that of the longest
        prompts first: attainment is taken to grow with the engines of each.
        """

        @cache
        def enough(engines: Counts) -> bool:
            rows = self.account(self.runs(engines, seeds))
            on_try(engines, {row.class_name: row.attainment for row in rows if row.attainment is not None})
            return bool(self.keeps(rows))

        engines, most_each = (1,) * len(self.pools), most // len(self.pools)
        while not enough(engines):
            if engines[0] >= most_each:
                return None
            engines = (min(2 * engines[0], most_each),) * len(self.pools)
        for index in reversed(range(len(self.pools))):
            # One pool alone was tried with half of them.
            short = 0 if len(self.pools) > 1 else engines[0] // 2
            while engines[index] - short > 1:
                middle = (short + engines[index]) // 2
                fewer = (*engines[:index], middle, *engines[index + 1 :])
                short, engines = (short, fewer) if enough(fewer) else (middle, engines)
        return engines

    def _admission(self, engines: Counts) -> Admission:
        first, *longer = (pool.spec(count) for pool, count in zip(self.pools, engines, strict=True))
        # One admission stands for all proxies: together they hand out what one alone would.
        rules = self.contract.admission.model_copy(update={"proxies": 1})
        return Admission(rules, first.zones, first.tokens_per_block, backends=first.backends, longer=longer)
