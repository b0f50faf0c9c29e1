"""Which tensors a model has in a TensorRT-LLM checkpoint, before they are divided or quantized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trtkit.catalog.architectures import ARCHITECTURES, Architecture
from trtkit.catalog.architectures.architecture import Arrange, Dim, Source, TensorRule, When
from trtkit.catalog.model import ModelConfig


@dataclass(frozen=True)
class ExpectedTensor:
    """A tensor of the model as TensorRT-LLM names it, whole: neither divided among ranks nor quantized."""

    name: str
    shape: tuple[int, ...]
    """Of an expert's tensor with the number of experts in front."""
    rule: TensorRule
    layer: int | None


def expected_tensors(config: ModelConfig) -> list[ExpectedTensor]:
    """Return every tensor of the target, with its shape."""
    return [
        ExpectedTensor(rule.target.format(layer=layer), target_shape(rule, config), rule, layer)
        for rule, layer in _rules(config)
    ]


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the catalog's entry."""
    return ARCHITECTURES[config.architecture]


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


def _rules(config: ModelConfig) -> Iterator[tuple[TensorRule, int | None]]:
    present = {
        When.ALWAYS: True,
        When.ATTN_BIAS: config.attn_bias,
        When.MLP_BIAS: config.mlp_bias,
        When.SHARED_EXPERT: config.moe is not None and config.moe.shared_intermediate_size > 0,
        When.TIED: config.tie_word_embeddings,
        When.UNTIED: not config.tie_word_embeddings,
    }
    for rule in architecture_of(config).tensors:
        if present[rule.when] and rule.only.items() <= config.numerics.items():
            for layer in range(config.num_layers) if rule.per_layer else (None,):
                yield rule, layer
