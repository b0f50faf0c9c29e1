"""Back ends that read a Hugging Face folder: settings that theirs have not, and what their exporters refuse."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.llmapi import ARGS, BLOCK_TOKENS
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.support import EXPORTED
from trtkit.catalog.trtllm import LINES, NEWEST
from trtkit.contract.engine import KvCache
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.types import Plan

_POOL = "engine.kv_cache."
_EDGE_HEADS = (64, 128)
"""Head sizes of Edge-LLM's attention plugin."""


@refuses
def formats_can_be_exported(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """What has no form in a Hugging Face folder together is refused before it is calibrated, not when it is written."""
    name, asked = contract.engine.backend.value, contract.quantization
    if name not in EXPORTED:
        return
    if len({each.value for each in asked.formats} - {"none"}) > 1:
        message = f"trtkit writes no layers of several formats for {name}"
        yield Problem(message, "quantization.overrides", "use one format, or none for single layers")
    if WeightFormat.NONE in asked.chain and KvCacheFormat.FP8 in asked.caches:
        key = "kv_cache" if asked.kv_cache is KvCacheFormat.FP8 else "kv_fallback"
        key = key if asked.weights is WeightFormat.NONE else "fallback"
        message = "an FP8 KV cache beside plain weights has no form in a Hugging Face folder"
        yield Problem(
            message, f"quantization.{key}", "quantize the weights to fp8 too, or keep the cache auto"
        )


@refuses
def beams_have_a_backend(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Beam search was planned with engines of TensorRT-LLM only; elsewhere the width would not be passed on."""
    name = contract.engine.backend.value
    if name in EXPORTED and contract.engine.limits.max_beam_width > 1:
        yield Problem(
            f"the {name} back end is not set up for beams", "engine.limits.max_beam_width", "leave it out"
        )


@refuses
def llmapi_has_block_size(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Lines whose ``KvCacheConfig`` has no size of blocks take 32 tokens whatever is asked for."""
    if contract.engine.backend.value != "llmapi" or plan.target is None:
        return
    first, line = ARGS["kv_cache_config"]["tokens_per_block"], plan.target.trtllm or NEWEST
    block = plan.limits.tokens_per_block
    if block != BLOCK_TOKENS and LINES.index(line) < LINES.index(first):
        message = f"LLM() of TensorRT-LLM {line} has blocks of {BLOCK_TOKENS} tokens, not {block}"
        yield Problem(
            message, f"{_POOL}tokens_per_block", f"set it to {BLOCK_TOKENS}, or engine.trtllm to {first}"
        )


@refuses
def vllm_sizes_its_pool(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """To vLLM goes a share of the GPU's memory, and no size of a pool; without chunks a step holds a whole sequence."""
    if contract.engine.backend.value != "vllm":
        return
    cache = contract.engine.kv_cache
    for name in ("max_tokens", "max_bytes"):
        if getattr(cache, name) is not None:
            message = "vLLM sizes its pool by the share of memory alone"
            yield Problem(message, _POOL + name, f"set {_POOL}memory_fraction instead")
    if contract.engine.moe_expert_parallel > 1:
        message = "vLLM's experts are on all GPUs or divided among all of them, never in groups"
        yield Problem(message, "engine.moe_expert_parallel", "leave the key out")
    limits = plan.limits
    if not contract.engine.chunked_context and limits.max_num_tokens < limits.max_seq_len:
        message = f"without chunks vLLM refuses steps of {limits.max_num_tokens} for sequences of {limits.max_seq_len}"
        yield Problem(message, "engine.limits.max_num_tokens", f"at least {limits.max_seq_len}")


@refuses
def edgellm_takes_settings(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Edge-LLM's builder has a cache for each request and no pool: settings of one would have no effect."""
    if contract.engine.backend.value != "edgellm":
        return
    cache, default = contract.engine.kv_cache, KvCache()
    for name in KvCache.model_fields:
        if getattr(cache, name) != getattr(default, name):
            yield Problem("Edge-LLM's builder has no such setting", _POOL + name, "leave the key out")
    if not contract.engine.chunked_context:
        yield Problem("Edge-LLM's builder has no such setting", "engine.chunked_context", "leave the key out")


@refuses
def edgellm_takes_model(contract: Contract, model: ModelConfig, _: Plan) -> Iterator[Problem]:
    """NVIDIA's exporter failed on experts, and its attention has heads of 64 and 128 channels."""
    if contract.engine.backend.value != "edgellm":
        return
    if model.moe is not None:
        yield Problem(
            "Edge-LLM's exporter loads no Mixtral or other experts", "model.source", "use a dense model"
        )
    if model.head_size not in _EDGE_HEADS:
        message = f"Edge-LLM's attention has no heads of {model.head_size}"
        yield Problem(message, "model.source", "use a model with heads of 64 or 128")


EXPORTED_CHECKS = (
    formats_can_be_exported,
    beams_have_a_backend,
    llmapi_has_block_size,
    vllm_sizes_its_pool,
    edgellm_takes_settings,
    edgellm_takes_model,
)
