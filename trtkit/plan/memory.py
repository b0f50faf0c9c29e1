"""Bytes: weights, buffers, and the KV pool that fits beside them."""

from __future__ import annotations

import math

from trtkit.catalog.formats import WeightFacts
from trtkit.catalog.model import ModelConfig

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def linear_shapes(model: ModelConfig) -> list[tuple[int, int]]:
    """Return (out, in) of the linear layers of one decoder layer, fused as TensorRT-LLM stores them."""
    attention = model.num_heads * model.head_size
    qkv = attention + 2 * model.num_kv_heads * model.head_size
    hidden, inner = model.hidden_size, model.intermediate_size
    return [(qkv, hidden), (hidden, attention), (inner, hidden), (inner, hidden), (hidden, inner)]


def weights_bytes(model: ModelConfig, weights: WeightFacts, dtype: str) -> int:
    """Return the size of all weights in the engine.

    The linear layers are quantized; embedding, head and norms stay in ``dtype``; a tied head is the embedding.
    SmolLM2-135M in INT8 weight-only: 106.2 M linear weights at one byte, 155.5 k scales at two, one table of
    49152 x 576 at two bytes = 163.2 MB.
    """
    size = DTYPE_BYTES[dtype]
    linears = linear_shapes(model)
    per_layer = sum(out * width for out, width in linears) * weights.weight_bits // 8
    if weights.scale_per_row:
        per_layer += sum(out for out, _ in linears) * size
    per_layer += 2 * model.hidden_size * size
    tables = (1 if model.tie_word_embeddings else 2) * model.vocab_size * model.hidden_size * size
    return model.num_layers * per_layer + tables + model.hidden_size * size


def activation_bytes(model: ModelConfig, max_num_tokens: int, max_batch_size: int) -> int:
    """Return an upper bound of one step's buffers in float32: the widest layer's tensors, and the logits.

    Per packed token: residual, normed input, fused qkv, and gate, up and product of the MLP.
    """
    qkv = linear_shapes(model)[0][0]
    per_token = 2 * model.hidden_size + qkv + 3 * model.intermediate_size
    return 4 * (max_num_tokens * per_token + max_batch_size * model.vocab_size)


def kv_pool_tokens(
    *,
    wanted_tokens: int,
    bytes_per_token: int,
    free_bytes: int | None,
    fraction: float,
    tokens_per_block: int,
) -> int:
    """Return the size of the KV pool in tokens, a whole number of blocks.

    The pool is what is wanted, or ``fraction`` of the memory that weights and buffers leave, whichever is less
    (TensorRT-LLM's rule: min of ``max_tokens`` and ``free_gpu_memory_fraction``).
    """
    if free_bytes is not None:
        wanted_tokens = min(wanted_tokens, math.floor(fraction * max(free_bytes, 0) / bytes_per_token))
    return wanted_tokens // tokens_per_block * tokens_per_block
