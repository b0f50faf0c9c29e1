"""Formats of weights and KV cache on the target."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.support import EXPORTED, NEAREST, RTX_ELSEWHERE, Support
from trtkit.catalog.trtllm import NEWEST
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.gpu_memory import gpu_memory
from trtkit.plan.preflight.ranks import groups_fill_rows, layers_fill_tiles
from trtkit.plan.quantization import quant_plan_of
from trtkit.plan.support import Verdict, kv_verdict, places_of, weights_verdict, works_on
from trtkit.plan.types import Plan, Target

_WEIGHTS = "quantization.weights"
_RANGES = ("int8-sq", "fp8", "w4a8-awq")
_RANGES_SAMPLES, _SEARCH_SAMPLES = 512, 32


@refuses
def formats_run_on_gpu(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A format without kernels on the GPU fails in the builder, hours in, or gives garbage."""
    for key, verdict, place in _verdicts(contract, model, plan):
        if verdict.support is Support.REFUSED:
            nearest = (
                _nearest_weights(contract, model, plan) if key == _WEIGHTS else _nearest_kv(contract, verdict)
            )
            name = _value(contract, key)
            message = f"{contract.engine.backend.value} runs no {name} on {place}: {verdict.reason}"
            none = "none on these GPUs: take others, or another back end"
            yield Problem(message, key, f"nearest that works: {nearest or none}")


def _nearest_kv(contract: Contract, verdict: Verdict) -> str | None:
    """Return the nearest format of the cache; a Hugging Face folder has an FP8 one beside quantized weights only."""
    exported = contract.engine.backend.value in EXPORTED
    plain = WeightFormat.NONE in contract.quantization.chain
    return "auto" if exported and plain and verdict.nearest == "fp8" else verdict.nearest


def _nearest_weights(contract: Contract, model: ModelConfig, plan: Plan) -> str | None:
    """Return the nearest format that runs on all GPUs of the target, divides among its ranks and fits its memory."""
    for name in NEAREST[contract.quantization.weights.value]:
        formats = contract.quantization.only(WeightFormat(name))
        one = contract.model_copy(update={"quantization": formats})
        target = plan.target
        wrong = [
            problem for check in (layers_fill_tiles, groups_fill_rows) for problem in check(one, model, plan)
        ]
        if target and works_on(one, model, target, name) and not wrong and _fits(one, model, plan, target):
            alone = name == "none" and contract.quantization.kv_cache is KvCacheFormat.FP8
            return "none, with quantization.kv_cache auto" if alone and plan.backend in EXPORTED else name
    return None


def _fits(contract: Contract, model: ModelConfig, plan: Plan, target: Target) -> bool:
    """Return whether weights, buffers and a cache that holds one sequence fit."""
    memory = gpu_memory(contract, model, target.gpu, target.ranks, plan.limits)
    return plan.limits.max_seq_len <= memory.kv_tokens * contract.admission.kv_fraction


@warns
def formats_are_proven(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """What is let through and was never seen to work has to be tried first."""
    elsewhere = dict.fromkeys(
        place for _, verdict, place in _verdicts(contract, model, plan) if verdict.reason == RTX_ELSEWHERE
    )
    for place in elsewhere:
        hint = "run build_engine.py of the engine's folder there, and compare the answers: docs/rtx.md"
        yield Problem(f"{place}: {RTX_ELSEWHERE}", "engine.targets", hint)
    for key, verdict, place in _verdicts(contract, model, plan):
        if verdict.support is Support.UNCERTAIN and verdict.reason != RTX_ELSEWHERE:
            message = f"{_value(contract, key)} on {place} is not proven: {verdict.reason}"
            yield Problem(message, key, "compare its answers with those of unquantized weights first")


@refuses
def fallbacks_run_on_gpu(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A format to fall back to, or of single layers, must run where the first one would have."""
    backend, target = contract.engine.backend.value, plan.target
    if target is None:
        return
    line = target.trtllm or NEWEST
    asked = contract.quantization
    keys = dict.fromkeys(asked.overrides.values(), "quantization.overrides")
    for each, key in {**keys, **dict.fromkeys(asked.fallback, "quantization.fallback")}.items():
        algorithm = quant_plan_of(contract.quantization.only(each)).quant_algo
        for place, sm in places_of(target).items():
            verdict = weights_verdict(backend, each.value, sm, line, model.architecture, algorithm=algorithm)
            if verdict.support is Support.REFUSED:
                message = f"{backend} runs no {each.value} weights on {place}: {verdict.reason}"
                yield Problem(message, key, f"leave {each.value} out")


@warns
def fp8_kv_suits_model(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Keys with large biases lose their answers in an FP8 cache."""
    if plan.quantization.kv_cache == "fp8" and model.architecture.startswith("Qwen2"):
        message = (
            f"{model.architecture} was reported to lose its accuracy with an FP8 KV cache (biases of keys)"
        )
        yield Problem(message, "quantization.kv_cache", "let the quality gate decide, or use auto")


@warns
def products_keep_pace_with_memory(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Small weights with 16-bit products only help while a step waits for memory."""
    facts, target = WEIGHTS[plan.quantization.weights], plan.target
    if target is None or facts.compute != "fp16" or facts.quant_algo is None:
        return
    # A weight of b bits is read in b / 8 bytes and multiplied twice (multiply, add) for each request of the batch.
    even = target.gpu.fp16_tflops * 1e3 / target.gpu.bandwidth_gb_per_s * facts.weight_bits / 16
    if plan.zones.decode_slots > even:
        message = f"from {even:.0f} requests on, {facts.quant_algo} is bound by products in 16 bits"
        quick = [name for name in ("fp8", "int8-sq") if works_on(contract, model, target, name)]
        hint = (
            f"for large batches {quick[0]} is faster"
            if quick
            else "plain weights are as fast for large batches"
        )
        yield Problem(message, "quantization.weights", hint)


@warns
def ranges_have_samples(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """ModelOpt recommends 512 samples for ranges of activations, 32 for a search of INT4 weights."""
    asked, formats = contract.quantization.calibration.samples, plan.quantization
    takes_ranges = formats.weights in _RANGES or formats.kv_cache != "auto"
    least = _RANGES_SAMPLES if takes_ranges else _SEARCH_SAMPLES if formats.weights == "int4-awq" else 0
    if asked < least and "samples" in contract.quantization.calibration.model_fields_set:
        message = f"{asked} samples for {formats.weights} weights and a KV cache that is {formats.kv_cache}"
        yield Problem(message, "quantization.calibration.samples", f"{least} or more are recommended")


def _verdicts(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[tuple[str, Verdict, str]]:
    """Yield key, verdict and place, for each GPU that the engine is made for."""
    target, backend = plan.target, contract.engine.backend.value
    formats = contract.quantization
    if target is None:
        return
    line = target.trtllm or NEWEST
    for place, sm in places_of(target).items():
        algorithm = plan.quantization.quant_algo
        weights = weights_verdict(
            backend, formats.weights.value, sm, line, model.architecture, algorithm=algorithm
        )
        yield "quantization.weights", weights, place
        yield "quantization.kv_cache", kv_verdict(backend, formats.kv_cache.value, sm, line), place


def _value(contract: Contract, key: str) -> str:
    quantization = contract.quantization
    if key == "quantization.weights":
        return f"{quantization.weights.value} weights"
    return f"{quantization.kv_cache.value} KV cache"


FORMAT_CHECKS = (
    formats_run_on_gpu,
    formats_are_proven,
    fallbacks_run_on_gpu,
    fp8_kv_suits_model,
    products_keep_pace_with_memory,
    ranges_have_samples,
)
