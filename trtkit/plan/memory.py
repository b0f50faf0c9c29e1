"""Bytes: weights, buffers, and the KV pool that fits beside them."""

from __future__ import annotations

import math

from trtkit.catalog.architectures.architecture import TensorRule, When
from trtkit.catalog.formats import WeightFacts
from trtkit.catalog.model import ModelConfig
from trtkit.plan.tensors import rules_of, target_shape

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def weights_bytes(model: ModelConfig, weights: WeightFacts, dtype: str) -> int:
    """Return the size of all weights in the engine.

    The linear layers are quantized; embedding, head, norms, biases and routers are not; a tied head is the embedding.
    SmolLM2-135M in INT8 weight-only: 106.2 M linear weights at one byte, 155.5 k scales at two, one table of
    49152 x 576 at two bytes = 163.2 MB.
    """
    rules = [rule for rule in rules_of(model) if rule.when is not When.TIED]
    return sum(
        _tensor_bytes(rule, model, weights, dtype) * (model.num_layers if rule.per_layer else 1)
        for rule in rules
    )


def _tensor_bytes(rule: TensorRule, model: ModelConfig, weights: WeightFacts, dtype: str) -> int:
    shape, size = target_shape(rule, model), DTYPE_BYTES[rule.dtype or dtype]
    if not rule.is_linear or weights.quant_algo is None:
        return math.prod(shape) * size
    scales = math.prod(shape[:-1]) * size if weights.scale_per_row else 0
    return math.prod(shape) * weights.weight_bits // 8 + scales


def activation_bytes(model: ModelConfig, max_num_tokens: int, max_batch_size: int) -> int:
    """Return an upper bound of one step's buffers in float32: the widest layer's tensors, and the logits.

    Per packed token: residual, normed input, fused qkv, and the tensors of the MLP.
    """
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
    per_token = 2 * model.hidden_size + qkv + _mlp_width(model)
    return 4 * (max_num_tokens * per_token + max_batch_size * model.vocab_size)


def _mlp_width(model: ModelConfig) -> int:
    """Return the numbers per token: gate, up and product; each chosen expert has an input and an output besides."""
    moe = model.moe
    if moe is None:
        return 3 * model.intermediate_size
    chosen = moe.experts_per_token * (3 * moe.intermediate_size + 2 * model.hidden_size)
    return chosen + 3 * moe.shared_intermediate_size + moe.num_experts


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
