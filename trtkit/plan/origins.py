"""Where the values come from that a contract leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.plan.types import Plan


def origins_of(contract: Contract, model: ModelConfig, plan: Plan) -> dict[str, str]:
    """Return the reason of each value that was not given, by its key."""
    return dict((*_limits(contract, model, plan), *_others(contract, plan)))


def _limits(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[tuple[str, str]]:
    given, limits = contract.engine.limits, plan.limits
    if given.max_batch_size is None:
        slots = BACKENDS[plan.backend].cache_per_slot
        yield "max_batch_size", "trtkit's own, or the slots whose caches fit" if slots else "trtkit's own"
    if given.max_seq_len is None:
        most = model.max_position_embeddings
        whole = limits.max_seq_len == most
        yield "max_seq_len", "all of the model's" if whole else f"trtkit's own; the model has {most:,}"
    if given.max_input_len is None:
        whole = limits.max_input_len == limits.max_seq_len - 1
        yield "max_input_len", "max_seq_len without one token of answer" if whole else "what one step takes"
    if given.max_num_tokens is None:
        yield (
            "max_num_tokens",
            "trtllm-build's own, within sequences x length" if plan.target else "trtkit's own",
        )


def _others(contract: Contract, plan: Plan) -> Iterator[tuple[str, str]]:
    engine = contract.engine
    if engine.kv_cache.max_tokens is None:
        yield (
            "kv_pool",
            "a full batch of full sequences, or what fits" if plan.target is None else _pool(contract),
        )
    if plan.threads is not None and engine.threads is None:
        yield "threads", "all cores but one"
    if plan.target and plan.target.trtllm and engine.trtllm is None:
        yield "trtllm", "the newest that has the back end"


def _pool(contract: Contract) -> str:
    fraction = contract.engine.kv_cache.memory_fraction
    all_of_it = contract.engine.backend.value == "vllm"
    return f"{fraction:g} of {'all memory, less what is used' if all_of_it else 'what weights and buffers leave'}"
