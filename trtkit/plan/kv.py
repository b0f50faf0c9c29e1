"""Bytes of KV cache per token, per back end, and the lengths that a slot's cache may have."""

from __future__ import annotations

import math

ALIGNMENT_BYTES = 256
"""Of every address that a context of TensorRT is given; a slot's cache is a part of one that holds all."""
MOST_SLOT_TOKENS = 1 << 24
"""Positions that float32 tells apart, which the tables of a graph's angles are computed in."""

# OpenVINO's pool holds float16: per layer two tensors of (blocks, KV heads, 32, head size), no padding, no scales.
# With an INT8 or FP8 cache too: its values are those of the format, float16 has all of them. OpenVINO's own u8 pool has
# a scale for each token and head instead of the checkpoint's, so that it would give other numbers.
# The graph's caches are float32 as its activations are.
_ELEMENT_BYTES = {"cpu": 2, "onnx": 4}


def kv_bytes_per_token(backend: str, *, num_layers: int, num_kv_heads: int, head_size: int) -> int:
    """Return the KV cache's bytes for one token over all layers.

    SmolLM2-135M on the CPU, as measured from the pool's size: 2 x 30 layers x 3 heads x 64 x 2 B = 23 040 B.
    """
    return 2 * num_layers * num_kv_heads * head_size * _ELEMENT_BYTES[backend]


def slot_unit_tokens(*, num_kv_heads: int, head_size: int, element_bytes: int) -> int:
    """Return what a slot's length has to be a multiple of, so that each slot's cache starts at an aligned address.

    SmolLM2 in float16: a token takes 3 x 64 x 2 B = 384 B of a cache, so that it is 2 tokens (768 B = 3 x 256 B).
    """
    return ALIGNMENT_BYTES // math.gcd(ALIGNMENT_BYTES, num_kv_heads * head_size * element_bytes)
