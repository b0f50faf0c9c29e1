"""A contract for GPUs, resolved: target, effective settings, memory, zones and pace."""

from __future__ import annotations

from dataclasses import replace

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.gpus import GPUS, Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import GPUS_PER_NODE, Parallelism
from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.contract.models import Contract
from trtkit.plan.builder_flags import builder_flags
from trtkit.plan.effective import Ask, Effect, build_effect
from trtkit.plan.gpu_memory import gpu_memory
from trtkit.plan.memory import fewer_slots, slot_unit
from trtkit.plan.pace import Speed, paced
from trtkit.plan.preflight.target import TRTLLM_BACKENDS
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.ranks import windows_of
from trtkit.plan.speed import speed_of
from trtkit.plan.types import EngineLimits, Plan, QuantPlan, Setting, Target, Workload, Zones

DEFAULT_BATCH_SIZE = 256
DEFAULT_SEQ_LEN = 8192
DEFAULT_NUM_TOKENS = 8192
"""``trtllm-build``'s own default."""


def resolve_gpu(
    contract: Contract, model: ModelConfig, measured: Speed | None, workload: Workload | None
) -> Plan:
    """Return the plan; the contract's back end, GPU and parallelism were checked before."""
    engine, quantization = contract.engine, quant_plan_of(contract.quantization)
    gpu, ranks = GPUS[engine.gpu or ""], ranks_of(contract, model)
    effect = _effect(contract, model, quantization, gpu)
    limits = _prompt_limit(contract, effect)
    memory = gpu_memory(contract, model, gpu, ranks, limits)
    if _has_slots(contract) and not engine.limits.max_batch_size:
        limits = fewer_slots(limits, memory)
        memory = gpu_memory(contract, model, gpu, ranks, limits)
    block = limits.tokens_per_block
    # Caches of slots cannot run out while there are slots: nothing is kept back. Each beam has blocks of its own.
    share = 1.0 if _has_slots(contract) else contract.admission.kv_fraction
    kv_tokens = int(memory.kv_tokens * share / engine.limits.max_beam_width) // block * block
    speed = measured or speed_of(
        model, gpu, ranks, quantization, contract.dtype.value, backend=engine.backend.value
    )
    zones = Zones(
        limits.max_num_tokens * 3 // 2, kv_tokens, limits.max_batch_size, *_window(model, ranks, limits)
    )
    zones, pace = paced(contract, limits, zones, speed, workload)
    reuse = engine.kv_cache.enable_block_reuse and effect.paged_context
    return Plan(
        name=contract.name,
        backend=engine.backend.value,
        gpu=engine.gpu,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        threads=None,
        dtype=contract.dtype.value,
        model=model,
        quantization=quantization,
        limits=limits,
        memory=memory,
        zones=zones,
        enable_block_reuse=reuse,
        target=_target(contract, model, ranks=ranks, effect=effect, limits=limits),
        pace=pace,
    )


def _has_slots(contract: Contract) -> bool:
    return BACKENDS[contract.engine.backend.value].cache_per_slot


def ranks_of(contract: Contract, model: ModelConfig) -> Parallelism:
    """Return how the model is divided; some engines share the embedding whatever they are told."""
    engine = contract.engine
    shares = ARCHITECTURES[model.architecture].shares_embedding and engine.tensor_parallel > 1
    return Parallelism(
        engine.tensor_parallel,
        engine.pipeline_parallel,
        engine.moe_expert_parallel,
        parallel_embedding=shares,
        gpus_per_node=engine.machine_gpus or GPUS_PER_NODE,
    )


def line_of(contract: Contract) -> str | None:
    """Return TensorRT-LLM's release line that is meant; None for back ends that are not part of it."""
    if contract.engine.backend.value not in TRTLLM_BACKENDS:
        return None
    return contract.engine.trtllm or NEWEST


def default_limits(contract: Contract, model: ModelConfig) -> EngineLimits:
    """Return the shapes that are asked for: what the contract gives, and what follows from it."""
    given = contract.engine.limits
    unit, longest = slot_unit(contract, model), min(model.max_position_embeddings, DEFAULT_SEQ_LEN)
    max_seq_len = given.max_seq_len or longest // unit * unit or longest
    batch = given.max_batch_size or DEFAULT_BATCH_SIZE
    return EngineLimits(
        max_batch_size=batch,
        max_input_len=given.max_input_len or max_seq_len - 1,
        max_seq_len=max_seq_len,
        max_num_tokens=given.max_num_tokens or max(DEFAULT_NUM_TOKENS, batch),
        tokens_per_block=contract.engine.kv_cache.tokens_per_block,
    )


def _effect(contract: Contract, model: ModelConfig, quantization: QuantPlan, gpu: Gpu) -> Effect:
    limits, engine = default_limits(contract, model), contract.engine
    if engine.backend.value == "tensorrt":
        ask = Ask(
            model,
            quantization,
            gpu.sm,
            engine.tensor_parallel,
            builder_flags(engine),
            engine.limits.max_beam_width,
        )
        return build_effect(ask, limits)
    most = limits.max_seq_len * limits.max_batch_size
    limits = replace(limits, max_num_tokens=min(limits.max_num_tokens, most))
    # The graph of the others has a cache for each slot, which nothing shares.
    return Effect(limits, (), not _has_slots(contract))


def _prompt_limit(contract: Contract, effect: Effect) -> EngineLimits:
    """Return the limits with the longest prompt that is accepted when nobody asked for a longer one."""
    limits = effect.limits
    if contract.engine.limits.max_input_len is not None or _chunks(contract, effect):
        return limits
    return replace(limits, max_input_len=min(limits.max_input_len, limits.max_num_tokens))


def _chunks(contract: Contract, effect: Effect) -> bool:
    # A graph with slots takes a prompt in any number of calls.
    return contract.engine.chunked_context and (effect.paged_context or _has_slots(contract))


def _target(
    contract: Contract, model: ModelConfig, *, ranks: Parallelism, effect: Effect, limits: EngineLimits
) -> Target:
    engine = contract.engine
    line = line_of(contract)
    return Target(
        gpu=GPUS[engine.gpu or ""],
        ranks=ranks,
        trtllm=line,
        image=f"nvcr.io/nvidia/tritonserver:{PROFILES[line].images[-1]}-trtllm-python-py3" if line else None,
        max_beam_width=engine.limits.max_beam_width,
        build_flags=builder_flags(engine),
        chunked_context=_chunks(contract, effect),
        max_attention_window=_windows(model, limits),
        settings=(*effect.settings, *_runtime(contract, effect, limits)),
        lookahead=_lookahead(contract),
        choices=engine.speculation.choices if engine.speculation else None,
        gpu_weights_fraction=engine.gpu_weights_fraction,
        memory_fraction=engine.kv_cache.memory_fraction
        if engine.backend.value in ("llmapi", "vllm")
        else None,
        sms=sms_of(contract),
    )


def sms_of(contract: Contract) -> tuple[int, ...]:
    """Return the compute capabilities of an engine that may have code for several."""
    engine = contract.engine
    if engine.backend.value != "rtx":
        return ()
    return tuple(sorted(engine.targets or [GPUS[engine.gpu or ""].sm]))


def _lookahead(contract: Contract) -> tuple[int, int, int] | None:
    asked = contract.engine.speculation
    sizes = asked.lookahead if asked else None
    return (sizes.window, sizes.ngram, sizes.verification) if sizes else None


def _runtime(contract: Contract, effect: Effect, limits: EngineLimits) -> tuple[Setting, ...]:
    """Return the runtime's switches that hang on the context attention, and what that does to prompts."""
    engine = contract.engine
    off = "" if effect.paged_context else "the context phase does not read the KV cache's blocks"
    if _has_slots(contract):
        off = "each slot has a cache of its own"
    chunks = _chunks(contract, effect)
    rows = [
        _on("enable_block_reuse", engine.kv_cache.enable_block_reuse, effect.paged_context, off),
        _on("chunked_context", engine.chunked_context, chunks, off),
    ]
    if not chunks:
        reason = "without chunked context a prompt must fit one step: max_num_tokens"
        longest = min(limits.max_input_len, limits.max_num_tokens)
        rows.append(Setting("longest prompt", f"{limits.max_seq_len - 1}", f"{longest}", reason))
    return tuple(rows)


def _on(name: str, asked: bool, possible: bool, reason: str) -> Setting:
    word = {True: "on", False: "off"}
    effective = asked and possible
    return Setting(name, word[asked], word[effective], reason if asked and not effective else "")


def _window(model: ModelConfig, ranks: Parallelism, limits: EngineLimits) -> tuple[int | None, float]:
    """Return the window that the runtime is told, and the part of the layers that have it."""
    window, share = windows_of(model, ranks)
    return (None, 0.0) if window is None or window >= limits.max_seq_len else (window, share)


def _windows(model: ModelConfig, limits: EngineLimits) -> tuple[int, ...] | None:
    window, pattern = model.sliding_window, model.sliding_window_pattern
    if window is None or window >= limits.max_seq_len:
        return None
    return (window,) if pattern is None else (*[window] * (pattern - 1), limits.max_seq_len)
