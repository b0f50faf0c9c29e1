"""Which GPU, format and number of ranks keep a contract's promises, and at how many requests per second."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS, Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.support import Support
from trtkit.catalog.trtllm import NEWEST
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract
from trtkit.errors import ContractError, InputError
from trtkit.plan.machine import Machine
from trtkit.plan.preflight.target import near_gpus
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.resolve import make_plan
from trtkit.plan.silicon import peak_rate
from trtkit.plan.solve import RANKS, changed
from trtkit.plan.support import kv_verdict, weights_verdict
from trtkit.plan.types import Basis, Plan, Workload


@dataclass(frozen=True)
class Candidate:
    """One way to serve the contract."""

    gpu: Gpu
    weights: str
    kv_cache: str
    tp: int
    plan: Plan | None
    """None where it cannot be."""
    pp: int = 1
    moe_ep: int = 1
    why_not: str = ""
    proven: bool = True
    """Whether the format is known to work on the GPU."""
    kv_asked: str = "auto"
    """The contract's format of the KV cache, which this GPU may not have."""

    @property
    def kept(self) -> bool:
        """Whether every promise holds by the plan's own numbers."""
        return (
            self.plan is not None
            and self.plan.pace is not None
            and all(each.kept for each in self.plan.pace.classes)
        )

    @property
    def world(self) -> int:
        """GPUs that it takes."""
        return self.tp * self.pp

    @property
    def requests_per_s(self) -> float:
        """Requests per second of all ranks together: with every promise kept, else the most that are served."""
        pace = self.plan.pace if self.plan else None
        return 0.0 if pace is None else pace.kept_requests_per_s or pace.requests_per_s

    @property
    def per_gpu(self) -> float:
        """Requests per second and GPU."""
        return self.requests_per_s / self.world

    @property
    def basis(self) -> Basis:
        """What the rate is known from."""
        return self.plan.pace.basis if self.plan and self.plan.pace else Basis.GUESS

    def summary(self) -> dict[str, Any]:
        """Return what a program needs to choose."""
        chosen = {
            "gpu": self.gpu.name,
            "weights": self.weights,
            "kv_cache": self.kv_cache,
            "kv_cache_asked": self.kv_asked,
            "tensor_parallel": self.tp,
            "pipeline_parallel": self.pp,
            "moe_expert_parallel": self.moe_ep,
            "gpus": self.world,
        }
        if self.plan is None or self.plan.pace is None:
            return {**chosen, "why_not": self.why_not}
        return {
            **chosen,
            "proven": self.proven,
            "basis": self.basis.value,
            "promises_kept": self.kept,
            "requests_per_s": self.requests_per_s,
            "requests_per_s_and_gpu": self.per_gpu,
            "most_requests_per_s": self.plan.pace.requests_per_s,
            "memory": asdict(self.plan.memory),
            "zones": asdict(self.plan.zones),
            "pace": asdict(self.plan.pace),
        }


@dataclass(frozen=True)
class Field:
    """What is tried."""

    gpus: Sequence[str] = tuple(GPUS)
    weights: Sequence[str] = tuple(WEIGHTS)
    ranks: Sequence[int] = RANKS
    workload: Workload | None = None


def compare(contract: Contract, model: ModelConfig, machine: Machine, field: Field) -> list[Candidate]:
    """Return every candidate, best first: promises kept, then requests per second and GPU.

    Raises:
        InputError: A GPU of the field is not in the catalog.
    """
    for name in field.gpus:
        if name not in GPUS:
            hint = f"known: {', '.join(near_gpus(name) or GPUS)}"
            raise InputError(f"{name!r} is no GPU of the catalog", hint=hint)
    found = list(_candidates(contract, model, machine, field))
    known = [each for each in found if each.basis is not Basis.GUESS]

    def order(each: Candidate) -> tuple[bool, bool, float, int]:
        return each.plan is None, not each.kept, -_rank(each, known), list(Basis).index(each.basis)

    return sorted(found, key=order)


def _rank(each: Candidate, known: Sequence[Candidate]) -> float:
    """Return the rate to sort by: a guess goes before nothing that is known on the same GPU at the same peak."""
    if each.basis is not Basis.GUESS:
        return each.per_gpu
    rate = peak_rate(each.gpu, each.weights)
    bounds = [
        other.per_gpu
        for other in known
        if other.gpu.name == each.gpu.name and peak_rate(other.gpu, other.weights) >= rate
    ]
    return min(each.per_gpu, max(bounds, default=each.per_gpu))


def _candidates(
    contract: Contract, model: ModelConfig, machine: Machine, field: Field
) -> Iterator[Candidate]:
    engine, asked = contract.engine, contract.quantization.kv_cache.value
    backend, line = engine.backend.value, engine.trtllm or NEWEST
    for gpu in (GPUS[name] for name in field.gpus):
        runs = kv_verdict(backend, asked, gpu.sm, line).support is not Support.REFUSED
        blank = Candidate(
            gpu=gpu,
            weights="none",
            kv_cache=asked if runs else "auto",
            tp=field.ranks[0],
            plan=None,
            pp=engine.pipeline_parallel,
            moe_ep=engine.moe_expert_parallel,
            kv_asked=asked,
        )
        for weights in field.weights:
            algorithm = quant_plan_of(contract.quantization.only(WeightFormat(weights))).quant_algo
            verdict = weights_verdict(backend, weights, gpu.sm, line, model.architecture, algorithm=algorithm)
            if verdict.support is Support.REFUSED:
                yield replace(blank, weights=weights, why_not=verdict.reason)
                continue
            one = _with_formats(changed(contract, gpu=gpu.name, targets=None), weights, blank.kv_cache)
            proven = verdict.support is Support.WORKS
            for tp in field.ranks:
                plan, why = _plan(changed(one, tensor_parallel=tp), model, machine, field.workload)
                yield replace(blank, weights=weights, tp=tp, plan=plan, why_not=why, proven=proven)


def _with_formats(contract: Contract, weights: str, kv_cache: str) -> Contract:
    formats = contract.quantization.only(WeightFormat(weights))
    scale = formats.kv_scale if kv_cache == KvCacheFormat.INT8.value else None
    formats = formats.model_copy(update={"kv_cache": KvCacheFormat(kv_cache), "kv_scale": scale})
    return contract.model_copy(update={"quantization": formats})


def _plan(
    contract: Contract, model: ModelConfig, machine: Machine, workload: Workload | None
) -> tuple[Plan | None, str]:
    try:
        return make_plan(contract, model, machine, workload=workload), ""
    except ContractError as error:
        return None, "; ".join(dict.fromkeys(each.message for each in error.problems))


def commonest_reasons(candidates: Sequence[Candidate], most: int = 3) -> list[tuple[str, int]]:
    """Return why candidates cannot be, and of how many each reason holds; numbers in it are those of one of them."""
    found: dict[str, list[str]] = {}
    for each in candidates:
        if each.why_not:
            found.setdefault(re.sub(r"\d[\d,.]*", "#", each.why_not), []).append(each.why_not)
    ordered = sorted(found.values(), key=len, reverse=True)
    return [(reasons[0], len(reasons)) for reasons in ordered[:most]]


def best_of_each(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the best candidate of each GPU and format, best first; those that cannot be are left out."""
    best: dict[tuple[str, str], Candidate] = {}
    for each in candidates:
        if each.plan is not None:
            best.setdefault((each.gpu.name, each.weights), each)
    return list(best.values())
