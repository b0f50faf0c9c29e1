"""The contract's formats in TensorRT-LLM's terms, and settings that nothing would use."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import KV_CACHE, SMOOTHQUANT, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Calibration, Contract, Quantization
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
def settings_have_a_user(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
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
    if asked.kv_scale is not None and KvCacheFormat.INT8 not in asked.caches:
        message = f"a KV cache that is {asked.kv_cache.value} has no such choice"
        yield Problem(message, "quantization.kv_scale", "leave the key out, or use an int8 KV cache")
    yield from _calibration_problems(asked, model)
    judged = asked.gate.on if asked.gate else None
    if "engine" in (judged or ()) and not contract.engine.backend.shows_logits:
        message = f"what {contract.engine.backend.value} builds does not run here for a whole text"
        yield Problem(message, "quantization.gate.on", "use [checkpoint]")


def _calibration_problems(asked: Quantization, model: ModelConfig) -> Iterator[Problem]:
    calibration, key = asked.calibration, "quantization.calibration"
    if calibration != Calibration() and not asked.takes_ranges:
        formats = ", ".join(each.value for each in asked.chain)
        message = f"none of the formats ({formats}), nor a KV cache that is auto, has a use for it"
        yield Problem(message, key, "leave the key out")
        return
    if calibration.unreached == "borrow" and not model.moe:
        message = f"{model.architecture} has no experts that could borrow ranges"
        yield Problem(message, f"{key}.unreached", "leave the key out")
    if calibration.column != Calibration().column and calibration.data is None:
        yield Problem("the built-in text has no fields", f"{key}.column", "leave the key out, or name data")


@refuses
def group_size_has_kernel(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """INT4 kernels take groups of 64 and 128 channels, those with FP8 activations of 128 only."""
    size = contract.quantization.group_size
    for each in contract.quantization.chain if size is not None else ():
        known = (128,) if each is WeightFormat.W4A8_AWQ else (64, 128)
        if each.has_groups and size not in known:
            message = f"no kernel of {each.value} has groups of {size} channels"
            yield Problem(message, "quantization.group_size", f"use {' or '.join(map(str, known))}")
