"""The paged KV cache as OpenVINO's CPU plugin lays it out."""

from __future__ import annotations

BLOCK_TOKENS = 32
"""Tokens per block: fixed by the CPU plugin's paged attention."""


def kv_cache_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int) -> int:
    """Return the bytes that one token takes in the pool, all layers together, keys and values.

    The pool holds f16 (see :mod:`trtkit.engine.cpu.precision`): per layer two tensors of shape
    ``(blocks, num_kv_heads, 32, head_size)`` without padding or scales. Measured on SmolLM2-135M from the pool's
    size: 30 layers * 2 * 3 heads * 64 * 2 bytes = 23 040.
    """
    return num_layers * 2 * num_kv_heads * head_size * 2


def blocks_for(num_tokens: int) -> int:
    """Return how many blocks hold this many tokens of one sequence."""
    return -(-num_tokens // BLOCK_TOKENS)
