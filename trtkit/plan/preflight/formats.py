"""Formats of weights and KV cache on the target."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.support import Support
from trtkit.catalog.trtllm import NEWEST
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses, warns
from trtkit.plan.support import Verdict, kv_verdict, weights_verdict
from trtkit.plan.types import Plan, Target

_QK_NORMS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")


@refuses
def formats_run_on_gpu(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A format without kernels on the GPU fails in the builder, hours in, or gives garbage."""
    for key, verdict, place in _verdicts(contract, model, plan):
        if verdict.support is Support.REFUSED:
            nearest = verdict.nearest or "none on this GPU: take another back end"
            name = _value(contract, key)
            message = f"{contract.engine.backend.value} runs no {name} on {place}: {verdict.reason}"
            yield Problem(message, key, f"nearest that works: {nearest}")


@warns
def formats_are_proven(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """What is let through and was never seen to work has to be tried first."""
    for key, verdict, place in _verdicts(contract, model, plan):
        if verdict.support is Support.UNCERTAIN:
            message = f"{_value(contract, key)} on {place} is not proven: {verdict.reason}"
            yield Problem(message, key, "compare its answers with those of unquantized weights first")


@refuses
def fallbacks_run_on_gpu(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """A format to fall back to must run where the first one would have."""
    backend, target = contract.engine.backend.value, plan.target
    if target is None:
        return
    line = target.trtllm or NEWEST
    for each in contract.quantization.fallback:
        for place, sm in _places(target).items():
            verdict = weights_verdict(backend, each.value, sm, line, model.architecture)
            if verdict.support is Support.REFUSED:
                message = f"{backend} runs no {each.value} weights on {place}: {verdict.reason}"
                yield Problem(message, "quantization.fallback", f"leave {each.value} out")


@refuses
def smoothquant_knows_norms(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """The SmoothQuant plugin's attention has no norms of queries and keys."""
    plugin = (plan.quantization.quant_algo or "").endswith("_PLUGIN")
    if contract.engine.backend.value == "tensorrt" and plugin and model.architecture in _QK_NORMS:
        message = f"SmoothQuant's attention has not the query and key norms of {model.architecture}"
        yield Problem(
            message, "quantization.weights", "set quantization.smoothquant to qdq, or use fp8 or int8-wo"
        )


@warns
def fp8_kv_suits_model(_: Contract, model: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Keys with large biases lose their answers in an FP8 cache."""
    if plan.quantization.kv_cache == "fp8" and model.architecture.startswith("Qwen2"):
        message = (
            f"{model.architecture} was reported to lose its accuracy with an FP8 KV cache (biases of keys)"
        )
        yield Problem(message, "quantization.kv_cache", "let the quality gate decide, or use auto")


@warns
def products_keep_pace_with_memory(_: Contract, __: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Small weights with 16-bit products only help while a step waits for memory."""
    facts, target = WEIGHTS[plan.quantization.weights], plan.target
    if target is None or facts.compute != "fp16" or facts.quant_algo is None:
        return
    # A weight of b bits is read in b / 8 bytes and multiplied twice (multiply, add) for each request of the batch.
    even = target.gpu.fp16_tflops * 1e3 / target.gpu.bandwidth_gb_per_s * facts.weight_bits / 16
    if plan.zones.decode_slots > even:
        message = f"from {even:.0f} requests on, {facts.quant_algo} is bound by products in 16 bits"
        instead = "fp8" if target.gpu.fp8_tflops else "int8-sq"
        yield Problem(message, "quantization.weights", f"for large batches {instead} is faster")


def _verdicts(contract: Contract, model: ModelConfig, plan: Plan) -> Iterator[tuple[str, Verdict, str]]:
    """Yield key, verdict and place, for each GPU that the engine is made for."""
    target, backend = plan.target, contract.engine.backend.value
    formats = contract.quantization
    if target is None:
        return
    line = target.trtllm or NEWEST
    for place, sm in _places(target).items():
        weights = weights_verdict(backend, formats.weights.value, sm, line, model.architecture)
        yield "quantization.weights", weights, place
        yield "quantization.kv_cache", kv_verdict(backend, formats.kv_cache.value, sm, line), place


def _places(target: Target) -> dict[str, int]:
    """Return the compute capabilities by what messages call them."""
    others = {f"SM {sm}": sm for sm in target.sms if sm != target.gpu.sm}
    return {target.gpu.name: target.gpu.sm, **others}


def _value(contract: Contract, key: str) -> str:
    quantization = contract.quantization
    if key == "quantization.weights":
        return f"{quantization.weights.value} weights"
    return f"{quantization.kv_cache.value} KV cache"


FORMAT_CHECKS = (
    formats_run_on_gpu,
    formats_are_proven,
    fallbacks_run_on_gpu,
    smoothquant_knows_norms,
    fp8_kv_suits_model,
    products_keep_pace_with_memory,
)
