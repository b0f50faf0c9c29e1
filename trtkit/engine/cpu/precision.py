"""The numeric settings of the engine, chosen so that an answer does not depend on who else is being answered."""

from __future__ import annotations

import os
from typing import Any

# Measured on SmolLM2-135M, bf16 and INT8 weights: 12 prompts alone, among 8, among 32, joining one by one, and after
# their first halves were cached. Greedy texts of 40 tokens that stayed the same in the worst case:
#     f32 + f32 or f16 KV    12 of 12
#     f32 + u8 KV            11
#     bf16 + bf16 KV          9, about 1.7 times as fast
#     dynamic quantization    8, about 1.8 times as fast (f32, groups of 32, INT8 weights)
# With f32 + f16, alone and among 12, by format: SmoothQuant per token, FP8 rows, and INT8 weights with an FP8 KV cache
# 12 of 12, INT4 11, INT8 weights with an INT8 KV cache 8: its steps are as wide for small values as for the largest,
# and what lies in the middle of two goes either way with the last bit of f32, which depends on the size of the batch.
INFERENCE_PRECISION = "f32"
KV_CACHE_PRECISION = "f16"
"""Half the memory of f32, and rounding that depends on nothing but the value itself."""
DYNAMIC_QUANTIZATION_GROUP_SIZE = 0
"""0: weights are INT8, activations are not (W8A16)."""


def runtime_block(threads: int | None) -> dict[str, Any]:
    """Return the ``runtime`` block of the engine's ``config.json``."""
    return {
        "inference_precision": INFERENCE_PRECISION,
        "kv_cache_precision": KV_CACHE_PRECISION,
        "dynamic_quantization_group_size": DYNAMIC_QUANTIZATION_GROUP_SIZE,
        "threads": threads,
    }


def plugin_properties(runtime: dict[str, Any]) -> dict[str, Any]:
    """Return OpenVINO's properties for a ``runtime`` block."""
    return {
        "INFERENCE_PRECISION_HINT": runtime["inference_precision"],
        "KV_CACHE_PRECISION": runtime["kv_cache_precision"],
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": str(runtime["dynamic_quantization_group_size"]),
        "INFERENCE_NUM_THREADS": runtime["threads"] or _all_cores_but_one(),
    }


def _all_cores_but_one() -> int:
    """Return the threads that leave one core to Triton and the proxy."""
    return max(1, len(os.sched_getaffinity(0)) - 1)
