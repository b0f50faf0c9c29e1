"""Layers that trtkit's own back ends take from a checkpoint, and that a conversion would refuse to write."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import ONE_RANK
from trtkit.catalog.support import QK_NORMS
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.preflight.ranks import WEIGHT_ONLY, untiled
from trtkit.plan.types import Plan

_ON_CPU = ("cpu", "onnx")
_OWN = (*_ON_CPU, "rtx")
_KEY = "quantization.weights"
_TILE = 64
_ROWWISE = "FP8_PER_CHANNEL_PER_TOKEN"


@refuses
def norms_quantize(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Formats that quantize inside of a layer's two norms have no place for norms of queries and keys."""
    formats = plan.quantization
    algorithm = formats.quant_algo or ""
    by_plugin = algorithm.endswith("_PLUGIN")
    if plan.backend in _OWN and model.architecture in QK_NORMS and (by_plugin or algorithm == _ROWWISE):
        message = f"checkpoints have no {formats.weights} layers ({algorithm}) for {model.architecture}"
        yield Problem(message, _KEY, "set quantization.smoothquant to qdq" if by_plugin else "use fp8")


@refuses
def sides_fill_tiles(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Narrow weights are written as TensorRT-LLM's kernels want them, whoever runs them."""
    asked, name = contract.quantization, plan.quantization.weights
    if plan.backend not in _OWN or name not in WEIGHT_ONLY or asked.exclude is not None or asked.overrides:
        return
    tile = max(_TILE, asked.group_size or 0)
    for layer, size in untiled(model, ONE_RANK, tile)[:1]:
        message = (
            f"{layer} has {size} channels, no multiple of {tile}, as checkpoints with {name} weights have"
        )
        yield Problem(message, _KEY, "use fp8, int8-sq or none" + ", or groups of 64" * (tile > _TILE))


@refuses
def narrow_scales_have_16_bits(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Scales of INT4 groups are written as GPUs read them, also for back ends that compute in float32."""
    if plan.backend in _ON_CPU and "int4" in plan.quantization.weights and contract.dtype.value == "float32":
        message = (
            "checkpoints with INT4 weights are written for engines that compute in 16 bits, whoever runs them"
        )
        hint = f"use float16 or bfloat16: the {plan.backend} back end computes in float32 from either"
        yield Problem(message, "model.dtype", hint)


LAYER_CHECKS = (norms_quantize, sides_fill_tiles, narrow_scales_have_16_bits)
