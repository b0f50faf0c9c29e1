"""Qwen 1.5, 2 and 2.5: Llama's layers with biases on queries, keys and values only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import When
from trtkit.catalog.architectures.llama import LLAMA
from trtkit.catalog.model import ModelConfig


def engine_config(model: ModelConfig, qwen_type: str) -> Mapping[str, Any]:
    """Return the keys that TensorRT-LLM's Qwen class reads without a default."""
    content = {
        "position_embedding_type": "rope_gpt_neox",
        "qwen_type": qwen_type,
        # Used with logn attention only, which no model of these classes has.
        "seq_length": 8192,
    }
    if model.moe is None:
        return content
    return {
        **content,
        "moe_intermediate_size": model.moe.intermediate_size,
        "moe_shared_expert_intermediate_size": model.moe.shared_intermediate_size,
    }


def window_off_by_default(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say what the absence of ``use_sliding_window`` means: publishers give ``sliding_window`` all the same."""
    return {**raw, "use_sliding_window": raw.get("use_sliding_window") or False}


QWEN2 = dataclasses.replace(
    LLAMA,
    name="Qwen2ForCausalLM",
    # Some publishers say that there are biases, most leave it to the class.
    keys={**LLAMA.keys, "attn_bias": ("attention_bias", "qkv_bias"), "mlp_bias": ()},
    defaults={
        # Without the key transformers assumes 32 KV heads, whatever the number of heads: ask instead.
        **{key: value for key, value in LLAMA.defaults.items() if key != "num_kv_heads"},
        "attn_bias": True,
    },
    neutral={**LLAMA.neutral, "mlp_bias": (False,), "use_mrope": (False,)},
    engine_config=lambda model: engine_config(model, "qwen2"),
    engine_keys=("qwen_type", "seq_length"),
    tensors=tuple(
        rule
        for rule in LLAMA.tensors
        if rule.when is not When.MLP_BIAS and not rule.target.endswith(".dense.bias")
    ),
    adapt=window_off_by_default,
    sliding_window_default=4096,
)
