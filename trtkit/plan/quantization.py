"""The contract's formats in TensorRT-LLM's terms, and settings that nothing would use."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import KV_CACHE, SMOOTHQUANT, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract, Quantization
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.types import Plan, QuantPlan


def quant_plan_of(asked: Quantization) -> QuantPlan:
    """Return the contract's formats with their settings."""
    algorithm = WEIGHTS[asked.weights.value].quant_algo
    if asked.weights.is_smoothed and asked.smoothquant:
        algorithm = SMOOTHQUANT[asked.smoothquant]
    return QuantPlan(
        asked.weights.value,
        asked.kv_cache.value,
        algorithm,
        KV_CACHE[asked.kv_cache.value],
        smoothquant=asked.smoothquant,
        alpha=asked.alpha,
        group_size=asked.group_size,
        kv_scale=asked.kv_scale,
    )


@refuses
def settings_have_a_user(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """A setting of a format that is not built would silently have no effect."""
    asked = contract.quantization
    formats = ", ".join(each.value for each in asked.chain)
    is_smoothed = any(each.is_smoothed for each in asked.chain)
    for name, user in {
        "smoothquant": is_smoothed,
        "alpha": is_smoothed,
        "group_size": any(each.has_groups for each in asked.chain),
    }.items():
        if getattr(asked, name) is not None and not user:
            message = f"none of the formats ({formats}) has a use for it"
            yield Problem(message, f"quantization.{name}", "leave the key out")
    if asked.kv_scale is not None and asked.kv_cache is not KvCacheFormat.INT8:
        message = f"a KV cache that is {asked.kv_cache.value} has no such choice"
        yield Problem(message, "quantization.kv_scale", "leave the key out, or use an int8 KV cache")


@refuses
def group_size_has_kernel(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """INT4 kernels take groups of 64 and 128 channels, those with FP8 activations of 128 only."""
    size = contract.quantization.group_size
    for each in contract.quantization.chain if size is not None else ():
        known = (128,) if each is WeightFormat.W4A8_AWQ else (64, 128)
        if each.has_groups and size not in known:
            message = f"no kernel of {each.value} has groups of {size} channels"
            yield Problem(message, "quantization.group_size", f"use {' or '.join(map(str, known))}")
