"""The arguments of vLLM's engine (``AsyncEngineArgs``), as Triton's back end reads them from ``model.json``."""

from __future__ import annotations

from typing import Any

from trtkit.errors import InputError
from trtkit.plan.types import Plan


def vllm_settings(plan: Plan, *, model: str) -> dict[str, Any]:
    """Return the arguments; ``model`` is the folder where the server sees it. Its format vLLM reads there by itself."""
    target, limits = plan.target, plan.limits
    if target is None:
        raise InputError("vLLM is planned for a GPU", hint="set engine.gpu")
    return {
        "model": model,
        "dtype": plan.dtype,
        "tensor_parallel_size": target.ranks.tp,
        "pipeline_parallel_size": target.ranks.pp,
        "max_model_len": limits.max_seq_len,
        "max_num_seqs": limits.max_batch_size,
        "max_num_batched_tokens": limits.max_num_tokens,
        "enable_chunked_prefill": target.chunked_context,
        "enable_prefix_caching": plan.enable_block_reuse,
        # auto is the model's own type, whatever the checkpoint says.
        "kv_cache_dtype": plan.quantization.kv_cache,
        "block_size": limits.tokens_per_block,
        **({"gpu_memory_utilization": target.memory_fraction} if target.memory_fraction else {}),
        # Without statistics Triton has no vllm: metrics.
        "disable_log_stats": False,
    }
