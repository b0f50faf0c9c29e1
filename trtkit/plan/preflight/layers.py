"""Layers that trtkit's own back ends take from a checkpoint, and that a conversion would refuse to write."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import ONE_RANK
from trtkit.catalog.schemes import NO_SMOOTHQUANT, misfits, quantizes_in_norms
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.preflight.ranks import WEIGHT_ONLY, untiled
from trtkit.plan.tensors import rules_of
from trtkit.plan.types import Plan

_ON_CPU = ("cpu", "onnx")
_OWN = (*_ON_CPU, "rtx")
_KEY = "quantization.weights"
_TILE = 64
_ROWWISE = "FP8_PER_CHANNEL_PER_TOKEN"


@refuses
def norms_quantize(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Formats that quantize inside of a layer's two norms need just these, and no layers of other names."""
    formats, architecture = plan.quantization, model.architecture
    if plan.backend not in _OWN or not quantizes_in_norms(formats.quant_algo):
        return
    smooths = formats.quant_algo != _ROWWISE
    odd, lacking = misfits(_owners(model))
    if odd or lacking or (smooths and architecture in NO_SMOOTHQUANT):
        why = [f"no place for {name}" for name in odd] + [f"no layer without {name}" for name in lacking]
        message = f"checkpoints have no {formats.weights} layers ({formats.quant_algo}) for {architecture}"
        hint = "set quantization.smoothquant to qdq" if smooths else "use fp8"
        yield Problem(f"{message}: {', '.join(why)}" if why else message, _KEY, hint)


def _owners(model: ModelConfig) -> list[str]:
    """Return the norms and linear layers of a decoder layer; experts are refused elsewhere."""
    names = (
        rule.target.split(".", 3)[-1].rpartition(".")[0]
        for rule in rules_of(model)
        if rule.per_layer and not rule.per_expert and ("norm" in rule.target or rule.is_linear)
    )
    return list(dict.fromkeys(names))


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
