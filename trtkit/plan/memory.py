"""Bytes: weights, buffers, and the KV pool that fits beside them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from trtkit.catalog.architectures.architecture import Split, TensorRule, When
from trtkit.catalog.formats import DEFAULT_GROUP, WEIGHTS, WeightFacts
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.contract.formats import BackendName
from trtkit.contract.models import Contract
from trtkit.plan.kv import slot_unit_tokens
from trtkit.plan.layers import HEAD, LayerFormats
from trtkit.plan.ranks import layers_of_stage, share_of
from trtkit.plan.tensors import rules_of, target_shape
from trtkit.plan.types import EngineLimits, MemoryPlan

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def weights_bytes(
    model: ModelConfig,
    weights: WeightFacts,
    dtype: str,
    ranks: Parallelism = ONE_RANK,
    group_size: int = DEFAULT_GROUP,
    *,
    layers: LayerFormats | None = None,
) -> int:
    """Return the size of the weights of the rank that holds most.

    The linear layers are quantized; embedding, head, norms, biases and routers are not; a tied head is the embedding
    where one rank has both whole. SmolLM2-135M in INT8 weight-only: 106.2 M linear weights at one byte, 155.5 k
    scales at two, one table of 49152 x 576 at two bytes = 163.2 MB. ``layers`` have formats of their own.
    """
    stage, first, last = 0, 0, 0
    sized = partial(_tensor_bytes, model=model, dtype=dtype, ranks=ranks, group=group_size)
    for rule in _held_rules(model, ranks, layers):
        size = _stage_bytes(rule, model, weights, ranks, layers=layers, sized=sized)
        if rule.per_layer:
            stage += size
        elif rule.on_last_stage:
            last += size
        else:
            first += size
    ends = first + last if ranks.pp == 1 else max(first, last)
    return stage + ends


def read_bytes(
    model: ModelConfig,
    weights: WeightFacts,
    dtype: str,
    ranks: Parallelism = ONE_RANK,
    group_size: int = DEFAULT_GROUP,
    *,
    layers: LayerFormats | None = None,
) -> tuple[int, int]:
    """Return what a step reads of the weights of the slowest rank: what it always reads, and all experts.

    Of an embedding only a few rows are read, unless it is the head too.
    """
    always, experts = 0, 0
    is_head = model.tie_word_embeddings and _shares_table(ranks)
    sized = partial(_tensor_bytes, model=model, dtype=dtype, ranks=ranks, group=group_size)
    for rule in _held_rules(model, ranks, layers):
        size = _stage_bytes(rule, model, weights, ranks, layers=layers, sized=sized)
        if rule.per_expert:
            experts += size
        elif rule.per_layer or rule.on_last_stage or (is_head and rule.split is Split.EMBEDDING):
            always += size
    return always, experts


def _stage_bytes(
    rule: TensorRule,
    model: ModelConfig,
    weights: WeightFacts,
    ranks: Parallelism,
    *,
    layers: LayerFormats | None,
    sized: Callable[..., int],
) -> int:
    """Return the size of a rule's tensors on one rank of a stage; layers of pipelines are alike."""
    module = rule.target.removesuffix(".weight")
    count = layers_of_stage(model, ranks) if rule.per_layer else 1
    if layers is None or not (rule.is_linear or (module == HEAD and layers.has_head)):
        return count * sized(rule, weights=weights)
    quantized = replace(rule, quantizable=True)
    return sum(
        sized(quantized, weights=_facts(model, layers.of(module.format(layer=layer))))
        for layer in range(count)
    )


def _facts(model: ModelConfig, name: str) -> WeightFacts:
    """Return a format's facts; a source that has it already decides whether INT4 has zero points or scaled inputs."""
    facts = WEIGHTS[name]
    if model.kept is None or not facts.group_values:
        return facts
    zeros = model.kept.has_zero_point
    return replace(facts, group_values=1 + zeros, scale_per_column=not zeros)


def _held_rules(model: ModelConfig, ranks: Parallelism, layers: LayerFormats | None) -> list[TensorRule]:
    """Return the rules of the tensors that ranks hold: a head that is the embedding is not held twice."""
    shared = _shares_table(ranks) and not (layers and layers.has_head)
    return [rule for rule in rules_of(model) if not (rule.when is When.TIED and shared)]


def _shares_table(ranks: Parallelism) -> bool:
    """Return whether head and embedding are the same tensor on a rank."""
    return ranks.pp == 1 and (ranks.tp == 1 or ranks.parallel_embedding)


def _tensor_bytes(
    rule: TensorRule, *, model: ModelConfig, weights: WeightFacts, dtype: str, ranks: Parallelism, group: int
) -> int:
    whole = rule.split is Split.EMBEDDING and not ranks.parallel_embedding
    shape = target_shape(rule, model if whole else share_of(model, ranks))
    size = DTYPE_BYTES[rule.dtype or dtype]
    if rule.per_expert:
        shape = (model.moe.num_experts // ranks.moe_ep if model.moe else 1, *shape[1:])
    if not rule.is_linear or weights.quant_algo is None:
        return math.prod(shape) * size
    return math.prod(shape) * weights.weight_bits // 8 + _scale_bytes(shape, weights, size, group)


def _scale_bytes(shape: tuple[int, ...], weights: WeightFacts, size: int, group: int) -> int:
    rows, columns = math.prod(shape[:-1]), shape[-1]
    per_row = 4 if weights.float32_scales else size
    groups = weights.group_values * rows * math.ceil(columns / group)
    return rows * per_row * weights.scale_per_row + (groups + columns * weights.scale_per_column) * size


def activation_bytes(
    model: ModelConfig, max_num_tokens: int, max_batch_size: int, element_bytes: int = 4
) -> int:
    """Return an upper bound of one step's buffers: the widest layer's tensors, and the logits in float32.

    Per packed token: residual, normed input, fused qkv, and the tensors of the MLP.
    """
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
    per_token = 2 * model.hidden_size + qkv + _mlp_width(model)
    return element_bytes * max_num_tokens * per_token + 4 * max_batch_size * model.vocab_size


def _mlp_width(model: ModelConfig) -> int:
    """Return the numbers per token: gate, up and product; each chosen expert has an input and an output besides."""
    moe = model.moe
    if moe is None:
        return 3 * model.intermediate_size
    chosen = moe.experts_per_token * (3 * moe.intermediate_size + 2 * model.hidden_size)
    return chosen + 3 * moe.shared_intermediate_size + moe.num_experts


def slot_tokens(limits: EngineLimits) -> int:
    """Return the tokens of one slot's cache, counted in whole blocks as reservations are."""
    return math.ceil(limits.max_seq_len / limits.tokens_per_block) * limits.tokens_per_block


def slot_unit(contract: Contract, model: ModelConfig) -> int:
    """Return the tokens that a slot's length has to be a multiple of; 1 where the back end takes any."""
    if contract.engine.backend is not BackendName.RTX:
        return 1
    return slot_unit_tokens(
        num_kv_heads=model.num_kv_heads,
        head_size=model.head_size,
        element_bytes=DTYPE_BYTES[contract.dtype.value],
    )


def fewer_slots(limits: EngineLimits, memory: MemoryPlan) -> EngineLimits:
    """Return the limits with no more slots than have their caches in the memory that was found."""
    fitting = max(1, memory.kv_tokens // slot_tokens(limits))
    return replace(limits, max_batch_size=min(limits.max_batch_size, fitting))


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
