"""Contract + model + machine → plan, or every problem at once. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from trtkit.catalog.formats import BACKENDS, KV_CACHE, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.models import Contract
from trtkit.errors import ContractError, Problem, Severity
from trtkit.plan.checks import CHECKS, backend_problems
from trtkit.plan.cpu_memory import copies_bytes, packed_bytes
from trtkit.plan.gpu import resolve_gpu
from trtkit.plan.kv import kv_bytes_per_token
from trtkit.plan.layers import known_layers
from trtkit.plan.machine import Machine
from trtkit.plan.memory import activation_bytes, fewer_slots, kv_pool_tokens, weights_bytes
from trtkit.plan.origins import origins_of
from trtkit.plan.pace import Speed, paced
from trtkit.plan.preflight import GPU_CHECKS, RANKLESS_CHECKS
from trtkit.plan.preflight.target import target_problems
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.ranks import group_of
from trtkit.plan.types import EngineLimits, MemoryPlan, Plan, QuantPlan, Workload, Zones

DEFAULT_BATCH_SIZE = 32
DEFAULT_SEQ_LEN = 2048
DEFAULT_NUM_TOKENS = 512
"""Packed tokens per step on a CPU: about 0.25 s of prefill of a 135M model on one core, the pause that others feel."""


def make_plan(
    contract: Contract,
    model: ModelConfig,
    machine: Machine,
    *,
    measured: Speed | None = None,
    workload: Workload | None = None,
) -> Plan:
    """Resolve a contract for one model on one machine, which for GPU back ends only does the planning.

    ``measured`` is the speed of this very engine, if it was measured; ``workload`` the request that rates are computed
    for, where the contract's own worst case is not what is meant.

    Raises:
        ContractError: The contract asks for something that cannot be; all problems are listed.
    """
    plan = outline(contract, model, machine, measured=measured, workload=workload)
    checks = CHECKS if plan.target is None else (*CHECKS, *GPU_CHECKS)
    problems = [problem for check in checks for problem in check(contract, model, plan)]
    problems += _workload_problems(plan.limits, workload) if workload else []
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if errors:
        raise ContractError(errors)
    return replace(plan, warnings=tuple(problems), origins=origins_of(contract, model, plan))


def _workload_problems(limits: EngineLimits, workload: Workload) -> list[Problem]:
    """Return why an engine would never see the request that rates are asked for."""
    total, longest = workload.prompt_tokens + workload.output_tokens, limits.max_input_len
    problems = []
    if workload.prompt_tokens > longest:
        message = (
            f"the engine takes prompts of {longest} tokens, rates are asked for {workload.prompt_tokens}"
        )
        problems.append(
            Problem(message, "engine.limits.max_input_len", "raise it, or ask for shorter prompts")
        )
    if total > limits.max_seq_len:
        message = (
            f"rates are asked for {total} tokens of prompt and answer, the engine takes {limits.max_seq_len}"
        )
        problems.append(
            Problem(message, "engine.limits.max_seq_len", "raise it, or ask for shorter requests")
        )
    return problems


def outline(
    contract: Contract,
    model: ModelConfig,
    machine: Machine,
    *,
    measured: Speed | None = None,
    workload: Workload | None = None,
) -> Plan:
    """Return the numbers alone, without the checks.

    Raises:
        ContractError: There is no such target, or the model cannot be divided as asked for.
    """
    if problems := backend_problems(contract) or target_problems(contract, model):
        raise ContractError([*problems, *_problems_without_ranks(contract, model)])
    if BACKENDS[contract.engine.backend.value].needs_gpu:
        return resolve_gpu(contract, model, measured, workload)
    return _resolve(contract, model, machine, measured, workload)


def _problems_without_ranks(contract: Contract, model: ModelConfig) -> list[Problem]:
    """Return what is wrong beside a division among ranks that is, so that nobody is told in two rounds."""
    alone = {"tensor_parallel": 1, "pipeline_parallel": 1, "moe_expert_parallel": 1}
    one = contract.model_copy(update={"engine": contract.engine.model_copy(update=alone)})
    on_gpu = BACKENDS[contract.engine.backend.value].needs_gpu
    if not on_gpu or backend_problems(one) or target_problems(one, model):
        return []
    plan = resolve_gpu(one, model, None, None)
    found = [problem for check in RANKLESS_CHECKS for problem in check(one, model, plan)]
    return [problem for problem in found if problem.severity is Severity.ERROR]


def quant_plan(
    weights: str,
    kv_cache: str = "auto",
    *,
    exclude: tuple[str, ...] | None = None,
    overrides: tuple[tuple[str, str], ...] = (),
) -> QuantPlan:
    """Return the formats in TensorRT-LLM's terms."""
    return QuantPlan(
        weights,
        kv_cache,
        WEIGHTS[weights].quant_algo,
        KV_CACHE[kv_cache],
        exclude=exclude,
        overrides=overrides,
    )


def effective_limits(contract: Contract, model: ModelConfig) -> EngineLimits:
    """Return the engine's shapes: what the contract gives, and what follows from it."""
    given = contract.engine.limits
    max_seq_len = given.max_seq_len or min(model.max_position_embeddings, DEFAULT_SEQ_LEN)
    batch = given.max_batch_size or DEFAULT_BATCH_SIZE
    return EngineLimits(
        max_batch_size=batch,
        # At least one token must be left for the answer.
        max_input_len=given.max_input_len or max_seq_len - 1,
        max_seq_len=max_seq_len,
        # A step takes a token of each request at least.
        max_num_tokens=given.max_num_tokens or max(batch, min(DEFAULT_NUM_TOKENS, max_seq_len)),
        tokens_per_block=contract.engine.kv_cache.tokens_per_block,
    )


def zones_of(limits: EngineLimits, kv_tokens: int, kv_fraction: float) -> Zones:
    """Return what may be in flight at once.

    Prefill: one and a half engine steps of prompt tokens, enough that the engine never waits for the proxy and too
    little for a queue to form behind it. KV: the share of the pool that leaves headroom for growth.
    """
    block = limits.tokens_per_block
    return Zones(
        prefill_tokens=limits.max_num_tokens * 3 // 2,
        kv_tokens=int(kv_tokens * kv_fraction) // block * block,
        decode_slots=limits.max_batch_size,
    )


def _resolve(
    contract: Contract,
    model: ModelConfig,
    machine: Machine,
    measured: Speed | None,
    workload: Workload | None,
) -> Plan:
    engine, dtype = contract.engine, contract.dtype.value
    is_slots = BACKENDS[engine.backend.value].cache_per_slot
    # Slots have their caches: nothing is kept back, and nothing shared.
    share = 1.0 if is_slots else contract.admission.kv_fraction
    limits = effective_limits(contract, model)
    memory = _memory(contract, model, machine, limits, share)
    if is_slots and not engine.limits.max_batch_size:
        limits = fewer_slots(limits, memory)
        memory = _memory(contract, model, machine, limits, share)
    # One core is left to Triton and the proxy.
    threads = engine.threads or max(1, machine.cores - 1)
    zones, pace = zones_of(limits, memory.kv_tokens, share), None
    if measured is not None:
        zones, pace = paced(contract, limits, zones, measured, workload)
    return Plan(
        name=contract.name,
        backend=engine.backend.value,
        gpu=engine.gpu,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        threads=threads,
        dtype=dtype,
        model=model,
        quantization=quant_plan_of(contract.quantization),
        limits=limits,
        memory=memory,
        zones=zones,
        enable_block_reuse=engine.kv_cache.enable_block_reuse and not is_slots,
        pace=pace,
    )


def _pool_for(limits: EngineLimits, kv_fraction: float) -> int:
    """Return the pool that a full batch of full sequences takes, of which admission may use only its share.

    In whole blocks: 8 sequences of 2048 tokens are 8 x 64 blocks of 32, which are 0.75 of 683 blocks.
    """
    blocks = limits.max_batch_size * math.ceil(limits.max_seq_len / limits.tokens_per_block)
    return math.ceil(blocks / kv_fraction) * limits.tokens_per_block


def _memory(
    contract: Contract, model: ModelConfig, machine: Machine, limits: EngineLimits, share: float
) -> MemoryPlan:
    kv_cache, backend = contract.engine.kv_cache, contract.engine.backend.value
    formats = contract.quantization.weights.value
    layers = known_layers(model, quant_plan_of(contract.quantization))
    dtype = "float32" if backend == "onnx" else contract.dtype.value
    group = group_of(model, contract.quantization.searched.value, contract.quantization.group_size)
    weights = weights_bytes(model, WEIGHTS[formats], dtype, group_size=group, layers=layers)
    activations = activation_bytes(model, limits.max_num_tokens, limits.max_batch_size)
    per_token = kv_bytes_per_token(
        backend,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
    )
    copies = packed_bytes(model, formats) if backend == "onnx" else copies_bytes(model, formats, layers)
    free = None if machine.memory_bytes is None else machine.memory_bytes - weights - copies - activations
    tokens = kv_pool_tokens(
        wanted_tokens=kv_cache.max_tokens or _pool_for(limits, share),
        bytes_per_token=per_token,
        free_bytes=free,
        fraction=kv_cache.memory_fraction,
        tokens_per_block=limits.tokens_per_block,
    )
    return MemoryPlan(
        weights_bytes=weights,
        activation_bytes=activations,
        kv_bytes_per_token=per_token,
        kv_blocks=tokens // limits.tokens_per_block,
        kv_tokens=tokens,
        available_bytes=machine.memory_bytes,
        overhead_bytes=copies,
    )
