"""Sizes that follow from a model's description: parameters, and the KV cache of one token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from trtkit.catalog.architectures.architecture import When
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.flow.inspect.finding import Amount
from trtkit.plan.tensors import rules_of, target_shape

_BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16}
_KV_BITS = {"INT8": 8, "FP8": 8, "NVFP4": 4.5}
"""FP4 has one FP8 scale for 16 values: 4 + 8 / 16 bits each."""
_NO_KV_HEADS = ("kv_lora_rank", "state_size", "layers_block_type")
"""Keys of models whose cache is not made of heads: latent attention, state space, mixtures of both."""


def parameters_of(model: ModelConfig) -> int:
    """Return the number of weights; Llama 3 8B has 8 030 261 248."""
    rules = [rule for rule in rules_of(model) if rule.when is not When.TIED]
    return sum(
        math.prod(target_shape(rule, model)) * (model.num_layers if rule.per_layer else 1) for rule in rules
    )


def parameters_in(dtypes: Mapping[str, Amount]) -> int | None:
    """Return the number of elements, where all of them are plain floating point and each is a weight."""
    plain = all(name in _BITS for name in dtypes)
    return sum(amount.elements for amount in dtypes.values()) if dtypes and plain else None


def kv_bytes_per_token(
    layers: int,
    kv_heads: int,
    head_size: int,
    *,
    dtype: str,
    kv_cache: str | None,
    ranks: Parallelism = ONE_RANK,
) -> int | None:
    """Return the bytes on the rank that holds most: 2 x layers x heads x size; Llama 3 8B in bfloat16 has 131 072."""
    bits = _KV_BITS.get(kv_cache or "") or _BITS.get(dtype)
    if bits is None or (kv_cache and kv_cache not in _KV_BITS):
        return None
    mine = max(1, math.ceil(kv_heads / ranks.tp)) * math.ceil(layers / ranks.pp)
    return math.ceil(2 * mine * head_size * bits / 8)


def geometry(raw: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Return layers, KV heads and head size of a configuration of no known architecture, in the usual spelling."""
    config = raw.get("text_config") if isinstance(raw.get("text_config"), dict) else raw
    if not isinstance(config, Mapping) or any(config.get(key) for key in _NO_KV_HEADS):
        return None
    layers, heads = _count(config, "num_hidden_layers"), _count(config, "num_attention_heads")
    hidden, kv_heads = _count(config, "hidden_size"), _count(config, "num_key_value_heads") or heads
    size = _count(config, "head_dim") or (hidden // heads if heads else 0)
    return (layers, kv_heads, size) if layers and kv_heads and size else None


def _count(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    return value if type(value) is int and value > 0 else 0
