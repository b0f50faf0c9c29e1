"""Bytes that the back ends on a CPU hold beside the weights of their files, which are mapped."""

from __future__ import annotations

import math

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.plan.layers import HEAD, LayerFormats
from trtkit.plan.tensors import rules_of, target_shape

_WIDE_BYTES = 8
"""Per element, float32 twice: widened, and packed for the matrix product."""
WIDENED = ("none", "fp8", "fp8-rowwise")
"""Weights that OpenVINO's CPU plugin has no narrow product for with float32 as precision."""


def packed_bytes(model: ModelConfig, weights: str) -> int:
    """Return the size of what ONNX Runtime keeps of matrices beside its mapped file: all float32, as they are packed.

    Narrow weights are widened first, and both forms stay. SmolLM2-135M, computed and measured as anonymous memory
    without the caches, ONNX Runtime 1.32: plain 538 and 519 MB, INT8 weight-only 963 and 974, SmoothQuant 963 and 968.
    """
    head = model.vocab_size * model.hidden_size
    return 4 * head + (4 if weights == "none" else 8) * _linear_elements(model)


def copies_bytes(model: ModelConfig, weights: str, layers: LayerFormats | None = None) -> int:
    """Return the size of all matrices as they are packed for their products, the head in float32.

    SmolLM2-135M, computed and measured as anonymous memory without the KV pool, OpenVINO 2026.4: plain 1076 and 1041
    MB, FP8 1076 and 1063, INT8 weight-only 333 and 318, SmoothQuant 333 and 338, INT4 280 and 277.
    """
    head = model.vocab_size * model.hidden_size
    if layers is None:
        return _WIDE_BYTES * head + _copies(_linear_elements(model), weights)
    shapes = {rule.target.removesuffix(".weight"): target_shape(rule, model) for rule in rules_of(model)}
    return _WIDE_BYTES * head + sum(
        _copies(math.prod(shapes[name]), layers.of(name.format(layer=layer)))
        for layer in range(model.num_layers)
        for name in shapes
        if name.format(layer=layer) in layers.formats and name != HEAD
    )


def _copies(elements: int, weights: str) -> int:
    return _WIDE_BYTES * elements if weights in WIDENED else elements * WEIGHTS[weights].weight_bits // 8


def _linear_elements(model: ModelConfig) -> int:
    shapes = [target_shape(rule, model) for rule in rules_of(model) if rule.is_linear]
    return model.num_layers * sum(math.prod(shape) for shape in shapes)
