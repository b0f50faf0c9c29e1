"""Questions that turn the plan round: the largest batch or sequence, the fewest ranks, the smallest GPU."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import ContractError, InputError
from trtkit.plan.machine import Machine
from trtkit.plan.resolve import make_plan, outline
from trtkit.plan.types import Plan

_MOST_REQUESTS = 65_536
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
    """
    value, meaning = _SOLVERS[unknown](contract, model, machine)
    return Solution(unknown, value, changed(contract, **{unknown.value: value}), meaning)


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
    blocks = math.ceil(limits.max_seq_len / limits.tokens_per_block)
    return plan.zones.kv_tokens // (blocks * limits.tokens_per_block)


def _batch(contract: Contract, model: ModelConfig, machine: Machine) -> tuple[int, str]:
    def fits(batch: int) -> bool:
        return full_sequences(outline(changed(contract, max_batch_size=batch), model, machine)) >= batch

    length = outline(contract, model, machine).limits.max_seq_len
    batch = _largest(fits, _MOST_REQUESTS)
    if batch == 0:
        raise InputError(
            f"not one sequence of {length} tokens fits", hint="lower max_seq_len, or see --compare"
        )
    return batch, f"requests of {length} tokens each, all admitted at once"


def _length(contract: Contract, model: ModelConfig, machine: Machine) -> tuple[int, str]:
    batch = outline(contract, model, machine).limits.max_batch_size

    def fits(length: int) -> bool:
        limits = {"max_seq_len": length, "max_batch_size": batch}
        return full_sequences(outline(changed(contract, **limits), model, machine)) >= batch

    length = _largest(fits, model.max_position_embeddings)
    if length < 2:
        raise InputError(f"not even {batch} sequences of two tokens fit", hint="lower max_batch_size")
    return length, f"tokens of prompt and answer for each of {batch} requests at once"


def _ranks(contract: Contract, model: ModelConfig, machine: Machine) -> tuple[int, str]:
    for tp in RANKS:
        if fits(changed(contract, tensor_parallel=tp), model, machine):
            return tp, f"ranks, the fewest of {', '.join(map(str, RANKS))}"
    raise InputError(f"the model fits no {RANKS[-1]} GPUs of this kind", hint="see trtkit plan --compare")


def _gpu(contract: Contract, model: ModelConfig, machine: Machine) -> tuple[str, str]:
    for gpu in sorted(GPUS.values(), key=lambda each: (each.memory_mib, each.bandwidth_gb_per_s)):
        if fits(changed(contract, gpu=gpu.name, targets=None), model, machine):
            return gpu.name, f"the smallest of the catalog, {gpu.memory_mib:,} MiB"
    raise InputError("no GPU of the catalog fits", hint="see trtkit plan --compare")


_SOLVERS: dict[Unknown, Callable[[Contract, ModelConfig, Machine], tuple[int | str, str]]] = {
    Unknown.MAX_BATCH_SIZE: _batch,
    Unknown.MAX_SEQ_LEN: _length,
    Unknown.TENSOR_PARALLEL: _ranks,
    Unknown.GPU: _gpu,
}


def fits(contract: Contract, model: ModelConfig, machine: Machine) -> bool:
    """Return whether a plan of the contract has no error."""
    try:
        make_plan(contract, model, machine)
    except ContractError:
        return False
    return True


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to ``most`` that fits, 0 if none does; below one that fits all do."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
