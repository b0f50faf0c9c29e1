"""Bytes on one GPU: weights of its rank, buffers, what the runtime takes, and the KV pool in the rest."""

from __future__ import annotations

import math

from trtkit.catalog.formats import BACKENDS, WEIGHTS
from trtkit.catalog.gpus import MIB, Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.contract.models import Contract
from trtkit.plan.layers import known_layers
from trtkit.plan.memory import DTYPE_BYTES, activation_bytes, slot_tokens, weights_bytes
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.ranks import group_of, layers_of_stage, share_of
from trtkit.plan.types import EngineLimits, MemoryPlan

RUNTIME_BYTES = 785 * MIB
"""CUDA context and libraries. A log of TensorRT-LLM's documentation (Llama-2-7B, FP8, H100): 79.10 GiB in all, 70.48
left for the pool, of which engine, execution context, buffers and decoder are 6695 + 1134 + 41 + 172 MiB."""
_NCCL_BYTES = {1: 0, 2: 342 * MIB}
_NCCL_MORE_BYTES = 392 * MIB
"""Buffers of communication among 2, and among 4 or 8 ranks, as aiconfigurator 0.12.0 has them."""
CONTEXT_LOGITS = ("gather_context_logits", "gather_all_token_logits")
"""Flags that make an engine give logits of prompts too."""
ELEMENT_BYTES = 3
"""Bytes of the execution context for each number of :func:`activation_bytes`. Logs have, for max_num_tokens 8192, 1134
MiB with Llama-2-7B in FP8 (computed: 1254) and, for 2048 and 512, 262 and 91 MiB with Qwen2.5-7B in INT4 (421, 106)."""


def gpu_memory(
    contract: Contract,
    model: ModelConfig,
    gpu: Gpu,
    ranks: Parallelism,
    limits: EngineLimits,
) -> MemoryPlan:
    """Return the bytes of the rank that holds most, and the pool by TensorRT-LLM's rule."""
    formats = contract.quantization
    group = group_of(model, formats.searched.value, formats.group_size)
    dtype = contract.dtype.value
    layers = known_layers(model, quant_plan_of(formats))
    weights = weights_bytes(model, WEIGHTS[formats.weights.value], dtype, ranks, group, layers=layers)
    weights = math.ceil(weights * (contract.engine.gpu_weights_fraction or 1.0))
    asked = contract.engine.speculation
    rows = contract.engine.limits.max_beam_width * (1 + (asked.draft_tokens if asked else 0))
    buffers = step_bytes(model, ranks, limits, rows)
    if any(contract.engine.build_flags.get(name) is True for name in CONTEXT_LOGITS):
        # 8192 tokens of a step over a vocabulary of 128,256 in float32 are 4.2 GB.
        buffers += 4 * limits.max_num_tokens * model.vocab_size
    overhead = RUNTIME_BYTES + _NCCL_BYTES.get(ranks.world, _NCCL_MORE_BYTES)
    per_token = kv_token_bytes(model, ranks, contract.quantization.kv_cache.value, dtype)
    tokens = _pool_tokens(contract, limits, per_token, gpu.memory_bytes, weights + buffers + overhead)
    return MemoryPlan(
        weights_bytes=weights,
        activation_bytes=buffers,
        kv_bytes_per_token=per_token,
        kv_blocks=tokens // limits.tokens_per_block,
        kv_tokens=tokens,
        available_bytes=gpu.memory_bytes,
        overhead_bytes=overhead,
    )


def step_bytes(model: ModelConfig, ranks: Parallelism, limits: EngineLimits, rows: int) -> int:
    """Return the execution context of one rank, and the logits of all sequences over the whole vocabulary.

    The logits are float32, in ``rows`` for each sequence: one a beam, and one for each draft token that a step checks.
    256 sequences of Llama 3's 128,256 tokens are 131 MB, with 5 draft tokens 788 MB.
    """
    context = activation_bytes(share_of(model, ranks), limits.max_num_tokens, 0, ELEMENT_BYTES)
    return context + 4 * limits.max_batch_size * rows * model.vocab_size


def kv_token_bytes(model: ModelConfig, ranks: Parallelism, kv_cache: str, dtype: str) -> int:
    """Return one rank's bytes of KV cache for one token: two tensors, the layers of its stage, its KV heads.

    Llama-3.1-70B with tp 4 in FP8: 2 x 80 x 8 / 4 x 128 x 1 B = 40,960 B. From tp 8 on every rank has one KV head, so
    the bytes shrink no more.
    """
    element = DTYPE_BYTES[dtype] if kv_cache == "auto" else 1
    heads = share_of(model, ranks).num_kv_heads
    return 2 * layers_of_stage(model, ranks) * heads * model.head_size * element


def _pool_tokens(
    contract: Contract, limits: EngineLimits, per_token: int, total_bytes: int, used_bytes: int
) -> int:
    """Return the pool: a fraction of what is left, no more than the tokens and bytes that were given."""
    given, backend = contract.engine.kv_cache, contract.engine.backend.value
    if backend == "vllm":
        # Its gpu_memory_utilization is a share of all memory, everything else included.
        size = math.floor(given.memory_fraction * total_bytes) - used_bytes
    else:
        size = math.floor(given.memory_fraction * (total_bytes - used_bytes))
    if given.max_bytes is not None:
        size = min(size, given.max_bytes)
    tokens = max(size, 0) // per_token
    if given.max_tokens is not None:
        tokens = min(tokens, given.max_tokens)
    if BACKENDS[backend].cache_per_slot:
        tokens = min(tokens, limits.max_batch_size * slot_tokens(limits))
    return tokens // limits.tokens_per_block * limits.tokens_per_block
