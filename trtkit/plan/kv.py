"""Bytes of KV cache per token, per back end."""

from __future__ import annotations

from trtkit.plan.model import ModelConfig


def kv_bytes_per_token(backend: str, model: ModelConfig) -> int:
    """Return the KV cache's bytes for one token over all layers.

    The CPU back end keeps keys and values in float32. SmolLM2-135M: 2 x 30 layers x 3 heads x 64 x 4 B = 46 080 B.
    """
    elements = 2 * model.num_layers * model.num_kv_heads * model.head_size
    return elements * _ELEMENT_BYTES[backend]


_ELEMENT_BYTES = {"cpu": 4}
