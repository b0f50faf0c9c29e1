"""Weights, buffers and the KV pool against the memory that there is."""

from __future__ import annotations

import math
from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.memory import slot_tokens
from trtkit.plan.types import MemoryPlan, Plan


@refuses
def pool_holds_sequence(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """One request of full length must fit the share of the KV pool that the proxy hands out."""
    need = plan.zones.kv_need(plan.limits.max_seq_len, plan.limits.tokens_per_block)
    proxies, pool = contract.admission.proxies, plan.memory.kv_tokens
    have = plan.zones.part(proxies).kv_tokens
    if have < need <= plan.zones.kv_tokens:
        message = f"one sequence needs {need} KV tokens, and each of {proxies} proxies may hand out {have}"
        yield Problem(message, "admission.proxies", f"at most {plan.zones.kv_tokens // need}")
    elif have < need and not _missing_bytes(plan.memory):
        message = f"one sequence needs {need} KV tokens, admission may hand out {have} of a pool of {pool}"
        key, hint = _bound_of_pool(contract, plan)
        yield Problem(message, key, f"{hint}, or lower engine.limits.max_seq_len")


def _bound_of_pool(contract: Contract, plan: Plan) -> tuple[str, str]:
    """Return what keeps the pool from being larger, and what to do about it."""
    given, memory = contract.engine.kv_cache, plan.memory
    more = memory.kv_tokens + plan.limits.tokens_per_block
    if given.max_tokens is not None and more > given.max_tokens:
        return "engine.kv_cache.max_tokens", "raise it"
    if given.max_bytes is not None and more * memory.kv_bytes_per_token > given.max_bytes:
        return "engine.kv_cache.max_bytes", "raise it"
    if "memory_fraction" in given.model_fields_set:
        return "engine.kv_cache.memory_fraction", "raise it"
    where = "more or larger GPUs" if plan.target else "more memory"
    return "engine.limits.max_seq_len", f"take {where}, or a smaller format"


def _missing_bytes(memory: MemoryPlan) -> int:
    """Return by how much weights and buffers alone exceed the memory."""
    fixed = memory.weights_bytes + memory.activation_bytes + memory.overhead_bytes
    return 0 if memory.available_bytes is None else max(0, fixed - memory.available_bytes)


@refuses
def slots_have_caches(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A back end whose slots have caches of their own allocates all of them, whatever the size of the pool."""
    if not BACKENDS[plan.backend].cache_per_slot:
        return
    limits, memory, wanted = plan.limits, plan.memory, contract.engine.kv_cache.max_tokens
    need = limits.max_batch_size * slot_tokens(limits)
    each = f"{limits.max_batch_size} slots of {slot_tokens(limits)} tokens"
    if wanted is not None and wanted != need:
        message = f"{wanted} tokens are asked for, and {each} are {need}"
        yield Problem(message, "engine.kv_cache.max_tokens", "leave the key out: the limits say it")
    elif memory.kv_tokens < need:
        fit = memory.kv_tokens // slot_tokens(limits)
        message = f"{each} need {_mb(need * memory.kv_bytes_per_token)}; {_mb(memory.kv_pool_bytes)} are left for them"
        hint = f"at most {fit}, or a shorter max_seq_len" if fit else "lower engine.limits.max_seq_len"
        yield Problem(message, "engine.limits.max_batch_size", hint)


@warns
def slots_share_nothing(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Prefixes are shared in blocks, which caches of slots have not."""
    is_slots, given = BACKENDS[plan.backend].cache_per_slot, contract.engine.kv_cache
    if is_slots and given.enable_block_reuse and "enable_block_reuse" in given.model_fields_set:
        message = "is asked for and will be off: each slot has a cache of its own"
        yield Problem(message, "engine.kv_cache.enable_block_reuse", "set it to false")


@refuses
def memory_holds_all(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Weights, buffers and a pool of the size asked for must fit the memory."""
    memory = plan.memory
    if memory.available_bytes is None:
        return
    if missing := _missing_bytes(memory):
        fixed = memory.available_bytes + missing
        parts = f"{_mb(memory.weights_bytes)} of weights and {_mb(fixed - memory.weights_bytes)} of buffers"
        message = f"{parts} need {_mb(fixed)}, there are {_mb(memory.available_bytes)}"
        yield Problem(message, *_way_out(plan))
        return
    wanted = contract.engine.kv_cache.max_tokens
    if wanted is not None and memory.kv_tokens < wanted - plan.limits.tokens_per_block:
        need = wanted * memory.kv_bytes_per_token
        message = f"a pool of {wanted} tokens needs {_mb(need)}; {_mb(memory.kv_pool_bytes)} are left for it"
        yield Problem(message, "engine.kv_cache.max_tokens", f"at most {memory.kv_tokens}")


def _way_out(plan: Plan) -> tuple[str, str]:
    """Return the key and the fix for memory that does not hold weights and buffers."""
    memory, world = plan.memory, plan.tensor_parallel * plan.pipeline_parallel
    available = memory.available_bytes or 0
    others = memory.overhead_bytes
    if memory.weights_bytes + others <= available:
        return "engine.limits", "lower max_num_tokens or max_batch_size, or use a smaller format"
    if plan.target is None or BACKENDS[plan.backend].max_ranks == 1 or others >= available:
        return "quantization.weights", "use a smaller format, or a smaller model"
    least = math.ceil(world * memory.weights_bytes / (available - others))
    return "engine.tensor_parallel", f"at least {least} such GPUs, or a larger GPU, or a smaller format"


@warns
def cache_is_as_small_as_its_format(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A back end without narrow pages gives a format's numbers and not its memory."""
    kv_cache = contract.quantization.kv_cache.value
    if plan.backend == "cpu" and kv_cache != "auto":
        message = f"the cpu back end keeps the values of an {kv_cache} KV cache in 16 bits: its numbers, not its memory"
        hint = "leave it to compare formats, or use auto"
        yield Problem(message, "quantization.kv_cache", hint)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


MEMORY_CHECKS = (
    pool_holds_sequence,
    slots_have_caches,
    slots_share_nothing,
    memory_holds_all,
    cache_is_as_small_as_its_format,
)
