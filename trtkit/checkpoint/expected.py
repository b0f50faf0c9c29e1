"""Which tensors a model has in a TensorRT-LLM checkpoint, before they are divided or quantized."""

from __future__ import annotations

from dataclasses import dataclass

from trtkit.catalog.architectures import ARCHITECTURES, Architecture
from trtkit.catalog.architectures.architecture import TensorRule
from trtkit.catalog.model import ModelConfig
from trtkit.plan.tensors import rules_of, target_shape


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
        for rule in rules_of(config)
        for layer in (range(config.num_layers) if rule.per_layer else (None,))
    ]


def architecture_of(config: ModelConfig) -> Architecture:
    """Return the catalog's entry."""
    return ARCHITECTURES[config.architecture]
