"""Bytes of KV cache per token, per back end."""

from __future__ import annotations

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
