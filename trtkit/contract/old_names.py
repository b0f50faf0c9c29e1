"""What people know by another name, or hope to find here: TensorRT-LLM's and Triton's words for the contract's keys."""

from __future__ import annotations

from collections.abc import Mapping

OLD_KEYS: Mapping[str, str] = {
    "max_output_len": "engine.limits.max_seq_len, prompt and output together",
    "max_decoder_seq_len": "engine.limits.max_seq_len",
    "max_new_tokens": "classes.NAME.max_output_tokens",
    "batch_size": "engine.limits.max_batch_size",
    "beam_width": "engine.limits.max_beam_width",
    "free_gpu_memory_fraction": "engine.kv_cache.memory_fraction",
    "kv_cache_free_gpu_mem_fraction": "engine.kv_cache.memory_fraction",
    "kv_cache_free_gpu_memory_fraction": "engine.kv_cache.memory_fraction",
    "gpu_memory_utilization": "engine.kv_cache.memory_fraction",
    "max_tokens_in_paged_kv_cache": "engine.kv_cache.max_tokens",
    "enable_kv_cache_reuse": "engine.kv_cache.enable_block_reuse",
    "enable_chunked_context": "engine.chunked_context",
    "enable_chunked_prefill": "engine.chunked_context",
    "tp_size": "engine.tensor_parallel",
    "pp_size": "engine.pipeline_parallel",
    "moe_ep_size": "engine.moe_expert_parallel",
    "tensor_parallel_size": "engine.tensor_parallel",
    "pipeline_parallel_size": "engine.pipeline_parallel",
    "max_attention_window": "nothing: the plan tells the runtime the model's own windows",
    "max_attention_window_size": "nothing: the plan tells the runtime the model's own windows",
    "kv_cache_dtype": "quantization.kv_cache",
    "long_prompt_tokens": "pools.NAME.min_prompt_tokens of the pool for long prompts",
    "quant_algo": "quantization.weights",
    "qformat": "quantization.weights",
}
"""Key of another tool, and what to write instead."""

_FP4 = "trtkit writes no FP4 weights; GPUs from SM 100 on have them, and fp8 comes nearest"
UNWRITTEN: Mapping[str, str] = {
    "nvfp4": _FP4,
    "fp4": _FP4,
    "mxfp4": _FP4,
    "int4-wo": "trtkit writes no plain INT4 weights; int4-awq comes nearest",
    "w4a16": "trtkit writes no plain INT4 weights; int4-awq comes nearest",
}
"""Formats of weights that others have, and why they are none here."""
