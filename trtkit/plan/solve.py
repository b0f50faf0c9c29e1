"""Questions that turn the plan round: the largest batch or sequence, the fewest ranks, the smallest GPU."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import ContractError, InputError, Problem
from trtkit.plan.checks import reachable_positions
from trtkit.plan.machine import Machine
from trtkit.plan.memory import slot_unit
from trtkit.plan.resolve import make_plan, outline
from trtkit.plan.types import Plan

MOST_REQUESTS = 65_536
RANKS = (1, 2, 4, 8)
"""Ranks that are tried: those of one machine."""


class Unknown(str, enum.Enum):
    """What can be solved for."""

    MAX_BATCH_SIZE = "max_batch_size"
    MAX_SEQ_LEN = "max_seq_len"
    TENSOR_PARALLEL = "tensor_parallel"
    GPU = "gpu"


@dataclass(frozen=True)
class Solution:
    """The answer, and the plan with it."""

    unknown: Unknown
    value: int | str
    contract: Contract
    meaning: str


def solve(unknown: Unknown, contract: Contract, model: ModelConfig, machine: Machine) -> Solution:
    """Return the answer for one unknown; everything else is as the contract has it.

    Raises:
        InputError: There is no value that fits.
        ContractError: Something is wrong that no value cures.
    """
    value, meaning, limits = _SOLVERS[unknown](contract, model, machine)
    return Solution(unknown, value, changed(contract, **{unknown.value: value}, **limits), meaning)


def changed(contract: Contract, **values: Any) -> Contract:
    """Return the contract with other values of ``engine`` or ``engine.limits``."""
    engine = contract.engine
    shapes = {key: value for key, value in values.items() if key in type(engine.limits).model_fields}
    rest = {key: value for key, value in values.items() if key not in shapes}
    limits = engine.limits.model_copy(update=shapes)
    return contract.model_copy(update={"engine": engine.model_copy(update={"limits": limits, **rest})})


def full_sequences(plan: Plan) -> int:
    """Return how many sequences of full length admission lets into the KV pool at once."""
    limits = plan.limits
    return plan.zones.kv_tokens // plan.zones.kv_need(limits.max_seq_len, limits.tokens_per_block)


def holds_batch(contract: Contract, model: ModelConfig, machine: Machine) -> bool:
    """Return whether a plan of the contract has no error, and holds all its requests at full length."""
    try:
        plan = make_plan(contract, model, machine)
    except ContractError:
        return False
    return full_sequences(plan) >= plan.limits.max_batch_size


_Answer = tuple[int | str, str, dict[str, Any]]
"""Value, meaning, and what else of the limits was held fixed for it."""


def _batch(contract: Contract, model: ModelConfig, machine: Machine) -> _Answer:
    def fits(batch: int) -> bool:
        return holds_batch(changed(contract, max_batch_size=batch), model, machine)

    # With one request: what is wrong then is wrong with any number.
    length = make_plan(changed(contract, max_batch_size=1), model, machine).limits.max_seq_len
    batch = _largest(fits, 0, MOST_REQUESTS)
    if batch == 0:
        hint = "lower max_seq_len, or see --compare"
        raise InputError(f"not one sequence of {length} tokens fits", hint=hint)
    more = " (no more were tried)" if batch == MOST_REQUESTS else ""
    return batch, f"requests of {length} tokens each, all admitted at once{more}", {}


def _length(contract: Contract, model: ModelConfig, machine: Machine) -> _Answer:
    (shortest, whose), unit = _shortest(contract), slot_unit(contract, model)
    shortest = -(-shortest // unit) * unit
    # Left out, the number of requests would shrink with the length where each has a cache of its own.
    batch = outline(changed(contract, max_seq_len=shortest), model, machine).limits.max_batch_size

    def asked(length: int) -> Contract:
        return changed(contract, max_seq_len=length, max_batch_size=batch)

    make_plan(asked(shortest), model, machine)
    units = reachable_positions(model) // unit
    length = unit * _largest(
        lambda each: holds_batch(asked(unit * each), model, machine), shortest // unit - 1, units
    )
    if length < shortest:
        fewer = _largest(
            lambda each: holds_batch(
                changed(contract, max_seq_len=shortest, max_batch_size=each), model, machine
            ),
            0,
            batch - 1,
        )
        message = f"{fewer} sequences of {shortest} tokens fit at once, not {batch}; {whose} takes that many"
        raise InputError(
            message, hint=f"lower {whose}" + (f", or max_batch_size to {fewer}" if fewer else "")
        )
    return (
        length,
        f"tokens of prompt and answer for each of {batch} requests at once",
        {"max_batch_size": batch},
    )


def _shortest(contract: Contract) -> tuple[int, str]:
    """Return the shortest sequence that leaves a token beside every prompt and answer that is named, and whose."""
    asked = {"any request": 1, "engine.limits.max_input_len": contract.engine.limits.max_input_len or 1}
    for name, spec in contract.classes.items():
        asked[f"classes.{name}.max_prompt_tokens"] = spec.max_prompt_tokens or 1
        given = "default_output_tokens" in spec.model_fields_set
        asked[f"classes.{name}.default_output_tokens"] = spec.default_output_tokens if given else 1
    whose = max(asked, key=lambda key: asked[key])
    return asked[whose] + 1, whose


def _ranks(contract: Contract, model: ModelConfig, machine: Machine) -> _Answer:
    backend = contract.engine.backend.value
    if BACKENDS[backend].max_ranks == 1:
        hint = "set engine.backend to one with more"
        raise InputError(f"the {backend} back end runs on one rank only", hint=hint)
    ways = [(tp, changed(contract, tensor_parallel=tp)) for tp in RANKS]
    found = _first(ways, model, machine)
    if found is None:
        hint = "see trtkit plan --compare"
        raise InputError(f"the model fits no {RANKS[-1]} GPUs of this kind", hint=hint)
    return found, f"ranks, the fewest of {', '.join(map(str, RANKS))}", {}


def _gpu(contract: Contract, model: ModelConfig, machine: Machine) -> _Answer:
    gpus = sorted(GPUS.values(), key=lambda each: (each.memory_mib, each.bandwidth_gb_per_s))
    found = _first(
        [(gpu.name, changed(contract, gpu=gpu.name, targets=None)) for gpu in gpus], model, machine
    )
    if found is None:
        raise InputError("no GPU of the catalog fits", hint="see trtkit plan --compare")
    engine = contract.engine
    ranks = engine.tensor_parallel * engine.pipeline_parallel
    each = f", {ranks} of them" if ranks > 1 else ""
    return found, f"the smallest of the catalog, {GPUS[str(found)].memory_mib:,} MiB{each}", {}


_SOLVERS: dict[Unknown, Callable[[Contract, ModelConfig, Machine], _Answer]] = {
    Unknown.MAX_BATCH_SIZE: _batch,
    Unknown.MAX_SEQ_LEN: _length,
    Unknown.TENSOR_PARALLEL: _ranks,
    Unknown.GPU: _gpu,
}


def _first(
    ways: Iterable[tuple[int | str, Contract]], model: ModelConfig, machine: Machine
) -> int | str | None:
    """Return the first value without an error, None if each has one of its own.

    Raises:
        ContractError: The same is wrong with every value.
    """
    everywhere: list[Problem] | None = None
    for value, way in ways:
        problems = problems_of(way, model, machine)
        if not problems:
            return value
        same = [each for each in everywhere if each in problems] if everywhere is not None else problems
        everywhere = same
    if everywhere:
        raise ContractError(everywhere)
    return None


def problems_of(contract: Contract, model: ModelConfig, machine: Machine) -> list[Problem]:
    """Return the errors of a contract's plan."""
    try:
        make_plan(contract, model, machine)
    except ContractError as error:
        return list(error.problems)
    return []


def _largest(fits: Callable[[int], bool], low: int, most: int) -> int:
    """Return the largest number above ``low`` and up to ``most`` that fits, else ``low``; below it all fit."""
    high = max(low, most)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
