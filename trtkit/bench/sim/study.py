"""Policies against each other on the same arrivals, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trtkit.bench.sim.bound import attainment_bound
from trtkit.bench.sim.engine import EngineModel, Job
from trtkit.bench.sim.fleet import SimClass, Simulation, pass_through, sim_classes
from trtkit.bench.sim.score import Score, score
from trtkit.bench.sim.workload import Source, draw_jobs, gamma_arrivals
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Admission, PoolSpec, terms_of

MIX = (
    Source("code", 0.35, "azure2023_code", max_tokens=512),
    Source("chat", 0.50, "azure2023_conversation", max_tokens=1024),
    Source("batch", 0.15, "mooncake_conversation", max_tokens=2048, longest_prompt=32_768),
)
"""Mean prompt about 2 830 tokens, so that prefill alone is full at about 9 requests a second."""
CLASSES = {
    "code": ServiceClass(priority=1, ttft_ms=500.0, tpot_ms=60.0),
    "chat": ServiceClass(priority=2, ttft_ms=1000.0, tpot_ms=60.0),
    "batch": ServiceClass(priority=3, ttft_ms=30_000.0, tpot_ms=250.0),
}
REFERENCE = EngineModel()
RULES = AdmissionRules()


@dataclass(frozen=True)
class Cell:
    """One load on one kind of engine."""

    rate_per_s: float
    cv: float = 2.5
    engine: EngineModel = REFERENCE
    engines: int = 1
    duration_s: float = 200.0

    def jobs(self, seed: int, sources: Sequence[Source] = MIX) -> list[Job]:
        """Draw the cell's requests: the same for every policy."""
        draw = np.random.default_rng(seed)
        rate_per_s = self.rate_per_s * self.engines
        times_s = gamma_arrivals(draw, rate_per_s=rate_per_s, cv=self.cv, duration_s=self.duration_s)
        return draw_jobs(sources, times_s, draw)


@dataclass(frozen=True)
class Policy:
    """A way to run a cell: rules, what the classes are told to be, or no proxy at all."""

    name: str
    rules: AdmissionRules = RULES
    kv_fraction: float = 0.75
    classes: Mapping[str, ServiceClass] = field(default_factory=lambda: CLASSES)
    proxied: bool = True
    long_engines: int = 0
    """Engines of a pool of their own, for prompts of ``long_from_tokens`` and more."""
    long_from_tokens: int = 8193

    def with_rules(self, name: str, **rules: Any) -> Policy:
        """Return the policy with some rules changed."""
        return replace(self, name=name, rules=self.rules.model_copy(update=rules))

    def with_classes(self, name: str, **changes: Any) -> Policy:
        """Return the policy with every class changed."""
        changed = {key: each.model_copy(update=changes) for key, each in self.classes.items()}
        return replace(self, name=name, classes=changed)

    def run(self, cell: Cell, seed: int) -> Score:
        """Run a cell; what is judged are the promises of the mix, whatever the policy was told."""
        jobs, judged = cell.jobs(seed), sim_classes(CLASSES, terms_of(CLASSES, self.rules.holdback))
        if not self.proxied:
            pass_through(jobs, cell.engine, cell.engines)
            return score(jobs, judged)
        admission = Admission(
            *(self.rules, self._zones(cell.engine), cell.engine.tokens_per_block),
            backends=cell.engines - self.long_engines,
            longer=self._longer(cell.engine),
        )
        Simulation(admission, self._told(), *[cell.engine] * len(admission.pools)).run(jobs)
        return score(jobs, judged)

    def _longer(self, engine: EngineModel) -> list[PoolSpec]:
        spec = PoolSpec(
            self._zones(engine), engine.tokens_per_block, self.long_engines, self.long_from_tokens
        )
        return [spec] if self.long_engines else []

    def _told(self) -> list[SimClass]:
        return sim_classes(self.classes, terms_of(self.classes, self.rules.holdback))

    def _zones(self, engine: EngineModel) -> Zones:
        block = engine.tokens_per_block
        return Zones(
            prefill_tokens=engine.max_num_tokens * 3 // 2,
            kv_tokens=int(engine.kv_tokens * self.kv_fraction) // block * block,
            decode_slots=engine.max_batch_size,
        )


FULL = Policy("full")


def bounds(cell: Cell, seeds: Sequence[int]) -> list[float]:
    """Return what nobody can exceed, per seed."""
    classes = sim_classes(CLASSES, terms_of(CLASSES, FULL.rules.holdback))
    return [attainment_bound(cell.jobs(seed), classes, cell.engine) for seed in seeds]


def compare(
    policies: Sequence[Policy], cell: Cell, seeds: Sequence[int], on_run: Callable[[], None] = lambda: None
) -> dict[str, list[Score]]:
    """Run every policy on every seed of a cell."""
    found: dict[str, list[Score]] = {policy.name: [] for policy in policies}
    for seed in seeds:
        for policy in policies:
            found[policy.name].append(policy.run(cell, seed))
            on_run()
    return found
