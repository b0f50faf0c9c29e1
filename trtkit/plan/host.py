"""Memory that calibrating and converting take, from the model's configuration alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from trtkit.catalog.formats import DEFAULT_GROUP, WEIGHTS
from trtkit.catalog.gpus import Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.plan.gpu_memory import RUNTIME_BYTES
from trtkit.plan.layers import known_layers
from trtkit.plan.memory import DTYPE_BYTES, weights_bytes
from trtkit.plan.tensors import rules_of, target_shape
from trtkit.plan.types import QuantPlan

RANKS = (1, 2, 4, 8)
"""GPUs that one machine may have."""
LIBRARIES_BYTES = 800 << 20
"""torch, transformers and a tiny model took 412 to 540 MB with torch's build for CPUs, 790 MB with that for CUDA."""
HEAD_BYTES = 3 * (64 << 20)
"""Of the head, which is read in blocks: one as it is, in the model's data type, and its magnitudes."""
_BLOCK_MB = {"none": 5, "int8-wo": 5, "fp8-rowwise": 9, "fp8": 9, "int8-sq": 17}
"""Buffers of one block of weights, by format; the others have those of ``int8-sq``."""


@dataclass(frozen=True)
class Part:
    """What takes memory."""

    name: str
    nbytes: int


@dataclass(frozen=True)
class Need:
    """Memory of one way to do something, by what takes it."""

    parts: tuple[Part, ...]

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return sum(part.nbytes for part in self.parts)

    def breakdown(self) -> str:
        """Return the parts in one line."""
        return ", ".join(f"{part.name} {gigabytes(part.nbytes)}" for part in self.parts)


def gigabytes(size_bytes: int) -> str:
    """Return a size as people read it: three digits or more."""
    if size_bytes < 1e9:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e10 else f"{size_bytes / 1e9:.2f} GB"


def whole_need(model: ModelConfig, formats: QuantPlan, dtype: str, length: int, batch: int) -> Need:
    """Return what a calibration takes that holds the model whole, as ModelOpt and TensorRT-LLM's scripts do.

    Beside the source there is its quantized copy, the step of ``batch`` x ``length`` tokens, and the largest layers
    that share an input in float32, before and after they are smoothed or searched.
    """
    largest = max(math.prod(shape) for shape in _shared_shapes(model))
    group, layers = _group(model), known_layers(model, formats)
    quantized = weights_bytes(model, WEIGHTS[formats.weights], dtype, group_size=group, layers=layers)
    return Need(
        (
            Part("source copy", weights_bytes(model, WEIGHTS["none"], dtype)),
            Part("quantized copy", quantized),
            Part(f"activations ({batch} x {length} tokens)", step_bytes(model, batch * length)),
            Part("smoothing peak", 2 * 4 * largest),
        )
    )


def layerwise_need(model: ModelConfig, length: int, *, searches_int4: bool) -> Need:
    """Return what ``trtkit calibrate`` takes: one decoder layer, and one sample on its way through it."""
    search = int4_bytes(model) if searches_int4 else 0
    activations = step_bytes(model, length)
    return Need(
        (
            Part("one decoder layer", layer_bytes(model)),
            Part(f"activations (1 x {length} tokens)", activations),
            Part("INT4 search", search),
            Part("head", max(0, HEAD_BYTES - activations - search)),
            Part("libraries", LIBRARIES_BYTES),
        )
    )


def layer_bytes(model: ModelConfig) -> int:
    """Return the size of a decoder layer as it is run."""
    shapes = [target_shape(rule, model) for rule in rules_of(model) if rule.per_layer]
    return _element_bytes(model) * sum(math.prod(shape) for shape in shapes)


def linear_bytes(model: ModelConfig) -> int:
    """Return the size of the source's linear layers."""
    rules = [rule for rule in rules_of(model) if rule.is_linear]
    counts = [
        (model.num_layers if rule.per_layer else 1) * math.prod(target_shape(rule, model)) for rule in rules
    ]
    return DTYPE_BYTES[model.dtype] * sum(counts)


def step_bytes(model: ModelConfig, tokens: int) -> int:
    """Return the buffers of tokens on their way through one decoder layer."""
    inner = model.intermediate_size
    if model.moe:
        chosen = model.moe.intermediate_size * model.moe.experts_per_token
        inner = chosen + model.moe.shared_intermediate_size
    heads = (model.num_heads + 2 * model.num_kv_heads) * model.head_size
    # Per token: some copies of the hidden state, Q, K and V twice, gate, up and their product.
    per_token = 6 * model.hidden_size + 2 * heads + 3 * inner
    # Float32 scores where attention is not fused.
    scores = model.num_heads * tokens**2 * 8 if model.numerics else 0
    return per_token * tokens * _element_bytes(model) + scores


def int4_bytes(model: ModelConfig) -> int:
    """Return what the search for INT4 weights holds of one layer.

    Products of each input, the largest once more, and some float32 copies of the largest weights.
    """
    groups = _shared_shapes(model)
    products = sum(4 * width**2 for _, width in groups)
    return products + max((4 * width * (6 * rows + 2 * width) for rows, width in groups), default=0)


def conversion_need(
    model: ModelConfig, formats: Iterable[str], ranks: Parallelism, program: Iterable[Part]
) -> Need:
    """Return what a conversion takes: the program, one block of weights, and what is known of every tensor.

    Args:
        model: The model.
        formats: Those of the weights that are written.
        ranks: How many files are written at once.
        program: What the interpreter takes with the libraries that this machine has.
    """
    tensors = sum(model.num_layers if rule.per_layer else 1 for rule in rules_of(model))
    block_mb = max(_BLOCK_MB.get(each, _BLOCK_MB["int8-sq"]) for each in formats)
    headers = tensors * (_SOURCE_TENSOR_BYTES + ranks.world * _RANK_TENSOR_BYTES)
    return Need((*program, Part("one block of weights", block_mb * 10**6), Part("headers", headers)))


_SOURCE_TENSOR_BYTES = 4_000
_RANK_TENSOR_BYTES = 2_000


def smallest_node(need: Need, gpus: Iterable[Gpu]) -> tuple[Gpu, int] | None:
    """Return the GPU, and how many of them, with the least memory that holds it; None if not even eight do."""
    fitting = [
        (count * gpu.memory_bytes, count, gpu.name, gpu)
        for gpu in gpus
        for count in RANKS
        if need.total_bytes <= node_bytes(gpu, count)
    ]
    return (min(fitting)[3], min(fitting)[1]) if fitting else None


def node_bytes(gpu: Gpu, count: int) -> int:
    """Return the memory of some GPUs that their runtimes leave."""
    return count * (gpu.memory_bytes - RUNTIME_BYTES)


def _shared_shapes(model: ModelConfig) -> list[tuple[int, int]]:
    """Return rows and columns of the layers that share an input, taken together; experts are left out."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for rule in rules_of(model):
        if rule.per_layer and rule.is_linear and not rule.per_expert:
            name = rule.target.removesuffix(".weight")
            found[name.replace(".gate", ".fc")].append(target_shape(rule, model))
    return [(sum(shape[0] for shape in shapes), shapes[0][-1]) for shapes in found.values()]


def _group(model: ModelConfig) -> int:
    wide = all(columns % DEFAULT_GROUP == 0 for _, columns in _shared_shapes(model))
    return DEFAULT_GROUP if wide else DEFAULT_GROUP // 2


def _element_bytes(model: ModelConfig) -> int:
    """Return the width of what a calibration computes in: bfloat16 as it is, all else in float32."""
    return DTYPE_BYTES["bfloat16" if model.dtype == "bfloat16" else "float32"]
