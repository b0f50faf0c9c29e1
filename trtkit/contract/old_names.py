"""What people know by another name, or hope to find here: TensorRT-LLM's and Triton's words for the contract's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LIMITS, _KV_CACHE = ("engine", "limits"), ("engine", "kv_cache")

RENAMED: Mapping[str, tuple[str, ...]] = {
    "max_decoder_seq_len": (*_LIMITS, "max_seq_len"),
    "batch_size": (*_LIMITS, "max_batch_size"),
    "beam_width": (*_LIMITS, "max_beam_width"),
    "free_gpu_memory_fraction": (*_KV_CACHE, "memory_fraction"),
    "kv_cache_free_gpu_mem_fraction": (*_KV_CACHE, "memory_fraction"),
    "kv_cache_free_gpu_memory_fraction": (*_KV_CACHE, "memory_fraction"),
    "max_tokens_in_paged_kv_cache": (*_KV_CACHE, "max_tokens"),
    "enable_kv_cache_reuse": (*_KV_CACHE, "enable_block_reuse"),
    "enable_chunked_context": ("engine", "chunked_context"),
    "enable_chunked_prefill": ("engine", "chunked_context"),
    "tp_size": ("engine", "tensor_parallel"),
    "pp_size": ("engine", "pipeline_parallel"),
    "moe_ep_size": ("engine", "moe_expert_parallel"),
    "tensor_parallel_size": ("engine", "tensor_parallel"),
    "pipeline_parallel_size": ("engine", "pipeline_parallel"),
}
"""Names that the same value has elsewhere, in ``engine`` and its sections: taken, with a warning."""

OLD_KEYS: Mapping[str, str] = {
    **{old: ".".join(new) for old, new in RENAMED.items()},
    "max_output_len": "engine.limits.max_seq_len, prompt and output together",
    "max_new_tokens": "classes.NAME.max_output_tokens",
    "gpu_memory_utilization": "engine.kv_cache.memory_fraction, of what is left beside the weights",
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


def rename(raw: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Put values that stand under another tool's name where they belong; yield the old and the new key of each.

    One whose place is taken stays where it is, so that it is refused.
    """
    engine = raw.get("engine")
    if not isinstance(engine, dict):
        return
    sections = {("engine",): engine} | {("engine", name): engine.get(name) for name in ("limits", "kv_cache")}
    for path, section in sections.items():
        if not isinstance(section, dict):
            continue
        for old in sorted(RENAMED.keys() & section):
            *parents, leaf = RENAMED[old]
            place: Any = raw
            for parent in parents:
                place = place.setdefault(parent, {}) if isinstance(place, dict) else None
            if isinstance(place, dict) and leaf not in place:
                place[leaf] = section.pop(old)
                yield (*path, old), (*parents, leaf)
