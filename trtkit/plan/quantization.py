"""The contract's formats in TensorRT-LLM's terms, and settings that nothing would use."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import BACKENDS, KV_CACHE, SMOOTHQUANT, WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.schemes import PARTIAL
from trtkit.contract.formats import BackendName, DType, KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract
from trtkit.contract.quantization import Calibration, Quantization
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.layers import (
    algorithm_of,
    head_warnings,
    known_layers,
    layer_problems,
    uneven_branches,
    uneven_stages,
)
from trtkit.plan.types import Plan, QuantPlan

_BY_LAYER = ("cpu", "tensorrt")
"""Back ends whose layers may have formats of their own."""


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
        exclude=None if asked.exclude is None else tuple(asked.exclude),
        overrides=tuple((pattern, name.value) for pattern, name in asked.overrides.items()),
    )


@refuses
def settings_have_a_user(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A setting of a format that is not built would silently have no effect."""
    asked = contract.quantization
    every = (*asked.chain, *asked.formats)
    formats = ", ".join(each.value for each in dict.fromkeys(every))
    is_smoothed = any(each.is_smoothed for each in every)
    for name, user in {
        "smoothquant": is_smoothed,
        "alpha": is_smoothed,
        "group_size": any(each.has_groups for each in every),
        "exclude": any(each is not WeightFormat.NONE for each in every),
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
    on_cpu = contract.engine.backend is not BackendName.RTX or contract.dtype is not DType.BFLOAT16
    if asked.gate and "engine" in (judged or ("engine",)) and not on_cpu:
        message = "the graph computes in bfloat16, for which ONNX Runtime has no kernels on a CPU"
        yield Problem(message, "quantization.gate.on", "use [checkpoint], or `model.dtype: float16`")


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
    asked = contract.quantization
    for each in dict.fromkeys((*asked.chain, *asked.formats)) if size is not None else ():
        known = (128,) if each is WeightFormat.W4A8_AWQ else (64, 128)
        if each.has_groups and size not in known:
            message = f"no kernel of {each.value} has groups of {size} channels"
            yield Problem(message, "quantization.group_size", f"use {' or '.join(map(str, known))}")


@refuses
def source_has_the_formats(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A source that is quantized already is taken over as it is: nothing makes another format of it."""
    yield from kept_problems(contract, model)


def kept_problems(contract: Contract, model: ModelConfig) -> Iterator[Problem]:
    """Yield what a contract asks for that a quantized source does not have."""
    asked, kept = contract.quantization, model.kept
    if kept is None:
        return
    original = "or give the checkpoint that the source was quantized from"
    for each in asked.chain:
        if each.value not in kept.weights:
            message = f"{each.value} is asked for, and the source has {kept.weights[0]} ({kept.method})"
            yield Problem(message, "quantization.weights", f"set it to {kept.weights[0]}, {original}")
    for cache in asked.caches:
        if cache.value not in {KvCacheFormat.AUTO.value, kept.kv_cache}:
            has = "none" if kept.kv_cache == KvCacheFormat.AUTO.value else f"those of {kept.kv_cache}"
            message = f"{cache.value} is asked for, and of scales for the KV cache the source has {has}"
            yield Problem(message, "quantization.kv_cache", f"set it to {kept.kv_cache}, {original}")
    for name in ("exclude", "overrides", "smoothquant", "alpha", "kv_scale", "group_size"):
        if getattr(asked, name) not in (None, {}):
            message = f"the source is quantized already ({kept.method}), and nothing would use it"
            yield Problem(message, f"quantization.{name}", f"leave the key out, {original}")


@refuses
def source_left_plain_what_it_may(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Layers that a quantized source has left plain stay so, where engines can have that."""
    kept, engine, key = model.kept, contract.engine, "model.source"
    formats = known_layers(model, plan.quantization)
    if kept is None or not kept.plain or formats is None:
        return
    left, backend = f"the source has left {min(kept.plain)} plain", engine.backend.value
    if BACKENDS[backend].cache_per_slot:
        message = f"{left}, and {backend} engines have one format for all layers"
        yield Problem(message, key, f"use engine.backend: {' or '.join(_BY_LAYER)}")
    elif algorithm_of(kept.weights[0]) not in PARTIAL:
        message = f"{left}, and {kept.weights[0]} engines quantize every layer or none"
        yield Problem(message, key, "quantize again without ignoring it")
    yield from uneven_branches(key, formats)
    yield from uneven_stages(key, formats, engine.pipeline_parallel)


@refuses
def layers_have_their_formats(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """A pattern that matches no layer would silently have no effect, and some mixtures have no engine."""
    yield from by_layer_problems(contract, model)


def by_layer_problems(contract: Contract, model: ModelConfig) -> Iterator[Problem]:
    """Yield what is wrong with formats of single layers."""
    asked, backend = contract.quantization, contract.engine.backend.value
    if asked.exclude is None and not asked.overrides:
        return
    key = "quantization.overrides" if asked.overrides else "quantization.exclude"
    if backend not in _BY_LAYER:
        message = f"{backend} engines have one format for all layers"
        yield Problem(message, key, f"use engine.backend: {' or '.join(_BY_LAYER)}, or leave the key out")
        return
    found = [
        each for weights in asked.chain for each in layer_problems(model, quant_plan_of(asked.only(weights)))
    ]
    yield from dict.fromkeys(found)


@warns
def mixtures_are_new(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Engines whose layers have several formats were not run on a GPU, and some releases cannot load them."""
    found = known_layers(model, plan.quantization)
    if contract.engine.backend.value == "tensorrt" and found and len(found.quantized) > 1:
        message = "TensorRT-LLM of mid-2025 cannot load layers of several formats, and none has been run here"
        yield Problem(message, "quantization.overrides", "compare an answer before you serve it")


@warns
def heads_are_quantized_on_purpose(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A list of layers that stay plain replaces the default, so that one for something else quantizes the head."""
    yield from head_warnings(model, plan.quantization)
