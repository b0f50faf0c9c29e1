"""The tensors that a model's architecture gives it, by rule; what is there and how large it is, whole."""

from __future__ import annotations

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.architectures.architecture import Arrange, Dim, Source, TensorRule, When
from trtkit.catalog.model import ModelConfig


def rules_of(config: ModelConfig) -> list[TensorRule]:
    """Return the rules of the tensors that the model has."""
    present = {
        When.ALWAYS: True,
        When.ATTN_BIAS: config.attn_bias,
        When.MLP_BIAS: config.mlp_bias,
        When.SHARED_EXPERT: config.moe is not None and config.moe.shared_intermediate_size > 0,
        When.TIED: config.tie_word_embeddings,
        When.UNTIED: not config.tie_word_embeddings,
    }
    rules = ARCHITECTURES[config.architecture].tensors
    return [rule for rule in rules if present[rule.when] and rule.only.items() <= config.numerics.items()]


def source_shape(source: Source, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of a source tensor."""
    sizes = _sizes(config)
    return tuple(sizes[dim] for dim in source.shape)


def target_shape(rule: TensorRule, config: ModelConfig) -> tuple[int, ...]:
    """Return the shape of a rule's tensor, whole."""
    shapes = [source_shape(source, config) for source in rule.sources]
    if rule.arrange is Arrange.TRANSPOSED:
        shapes = [shape[::-1] for shape in shapes]
    stacked = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return (config.moe.num_experts, *stacked) if config.moe and rule.per_expert else stacked


def _sizes(config: ModelConfig) -> dict[Dim, int]:
    q, kv, moe = config.num_heads * config.head_size, config.num_kv_heads * config.head_size, config.moe
    return {
        Dim.ONE: 1,
        Dim.HIDDEN: config.hidden_size,
        Dim.HEAD: config.head_size,
        Dim.Q: q,
        Dim.KV: kv,
        Dim.QKV: q + 2 * kv,
        Dim.INTERMEDIATE: config.intermediate_size,
        Dim.GATE_UP: 2 * config.intermediate_size,
        Dim.EXPERTS: moe.num_experts if moe else 0,
        Dim.EXPERT_INTERMEDIATE: moe.intermediate_size if moe else 0,
        Dim.SHARED_INTERMEDIATE: moe.shared_intermediate_size if moe else 0,
        Dim.VOCAB: config.vocab_size,
        Dim.POSITIONS: config.max_position_embeddings,
    }
