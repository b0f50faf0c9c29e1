"""Limits against each other, and against what the builder leaves of them."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.gpu_memory import CONTEXT_LOGITS
from trtkit.plan.preflight.target import TRTLLM_BACKENDS
from trtkit.plan.types import Plan

_TENSOR_TOKENS = 16_384
"""Above it the builder itself warns that a tensor may exceed 2^31 elements."""
_LOGITS_PART = 20
"""Logits above one part in so many of a GPU's memory are worth a word."""
_SLOTS_PER_SEQUENCE = 16
_OF_CONTEXT = {
    "enable_block_reuse": "engine.kv_cache.enable_block_reuse",
    "chunked_context": "engine.chunked_context",
}
"""What needs blocks that the context phase can read, by key."""


@refuses
def prompt_fits_step(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Without chunked context a prompt longer than a step is rejected at run time, whatever max_input_len says."""
    limits, target = plan.limits, plan.target
    if target and not target.chunked_context and limits.max_input_len > limits.max_num_tokens:
        why = target.setting("chunked_context").reason or "chunked_context is false"
        message = (
            f"max_input_len {limits.max_input_len} exceeds max_num_tokens {limits.max_num_tokens}, and {why}"
        )
        hint = f"set max_num_tokens to {limits.max_input_len}, or let chunked context work (it is off: {why})"
        yield Problem(message, "engine.limits.max_num_tokens", hint)


@refuses
def pool_leaves_something(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """TensorRT-LLM refuses to start with a pool of all that is left."""
    fraction = contract.engine.kv_cache.memory_fraction
    if contract.engine.backend.value in TRTLLM_BACKENDS and fraction >= 1:
        message = f"the pool may take a part of what is left, and {fraction:g} is all of it"
        yield Problem(message, "engine.kv_cache.memory_fraction", "0.9 is TensorRT-LLM's own, at most 0.95")


@refuses
def step_holds_beams(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Every beam of every request takes one token of each step."""
    beams = plan.target.max_beam_width if plan.target else 1
    need = plan.limits.max_batch_size * beams
    if beams > 1 and plan.limits.max_num_tokens < need:
        message = f"{plan.limits.max_batch_size} requests of {beams} beams exceed max_num_tokens"
        yield Problem(message, "engine.limits.max_num_tokens", f"at least {need}")


@warns
def step_is_whole_blocks(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Pieces of a prompt are whole blocks, so the rest of a step is never used."""
    block, tokens = plan.limits.tokens_per_block, plan.limits.max_num_tokens
    if tokens % block and tokens > block and not BACKENDS[plan.backend].cache_per_slot:
        message = f"max_num_tokens {tokens} is no multiple of tokens_per_block {block}"
        yield Problem(message, "engine.limits.max_num_tokens", f"{tokens // block * block} is as good")


@warns
def step_stays_within_tensors(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Steps of more than 16,384 tokens risk tensors that TensorRT cannot index."""
    if plan.limits.max_num_tokens > _TENSOR_TOKENS:
        message = f"max_num_tokens {plan.limits.max_num_tokens} exceeds {_TENSOR_TOKENS}"
        hint = f"at most {_TENSOR_TOKENS}: longer prompts go in pieces"
        yield Problem(message, "engine.limits.max_num_tokens", hint)


@warns
def context_logits_are_small(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Logits of prompts are float32 for every token of a step, in the memory that the pool would have."""
    flags = [name for name in CONTEXT_LOGITS if contract.engine.build_flags.get(name) is True]
    size = 4 * plan.limits.max_num_tokens * model.vocab_size
    if flags and plan.target and size * _LOGITS_PART > plan.target.gpu.memory_bytes:
        message = f"logits of {plan.limits.max_num_tokens} tokens take {size / 1e9:.1f} GB"
        yield Problem(message, f"engine.build_flags.{flags[0]}", "leave it out, or lower max_num_tokens")


@warns
def logits_are_small(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Logits are kept in float32 for every beam of every sequence the engine was built for."""
    target = plan.target
    if target is None:
        return
    size = 4 * plan.limits.max_batch_size * target.max_beam_width * model.vocab_size
    if size * _LOGITS_PART > target.gpu.memory_bytes:
        sequences = plan.limits.max_batch_size * target.max_beam_width
        message = f"logits of {sequences} sequences take {size / 1e9:.1f} GB"
        yield Problem(
            message, "engine.limits.max_batch_size", "lower max_batch_size, or search with fewer beams"
        )


@warns
def reuse_and_chunks_work(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Reuse and chunked context that were asked for and are silently switched off."""
    for name, key in _OF_CONTEXT.items() if not BACKENDS[plan.backend].cache_per_slot else ():
        setting = plan.target.setting(name) if plan.target else None
        if plan.target and setting and setting.reason:
            cause = [each.reason for each in plan.target.settings if each.name == "use_paged_context_fmha"]
            message = (
                f"{name} is asked for and will be off: {cause[0] if cause and cause[0] else setting.reason}"
            )
            by_cache = plan.quantization.kv_cache != "auto"
            keep = (
                "set quantization.kv_cache to auto"
                if by_cache
                else "leave the context flags at their defaults"
            )
            yield Problem(message, key, f"{keep}, or set this to false")


@warns
def pool_holds_batch(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Slots beyond what the pool holds at full length are only filled by shorter requests."""
    limits = plan.limits
    full = plan.memory.kv_tokens // plan.zones.kv_need(limits.max_seq_len, limits.tokens_per_block)
    if 1 <= full < limits.max_batch_size // _SLOTS_PER_SEQUENCE:
        message = f"the pool holds {full} sequences of {limits.max_seq_len} tokens, and {limits.max_batch_size} may run"
        hint = "lower it to free buffers for the pool, or lower max_seq_len"
        yield Problem(message, "engine.limits.max_batch_size", hint)


LIMIT_CHECKS = (
    prompt_fits_step,
    pool_leaves_something,
    step_holds_beams,
    step_is_whole_blocks,
    step_stays_within_tensors,
    context_logits_are_small,
    logits_are_small,
    reuse_and_chunks_work,
    pool_holds_batch,
)
