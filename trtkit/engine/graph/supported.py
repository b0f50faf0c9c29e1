"""What no graph can express, with its reason; everything at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.engine.decoder import ACTIVATIONS, FAMILIES, head_size_of, quantization_of
from trtkit.engine.graph.linear import FORMS
from trtkit.engine.graph.spec import GraphSpec
from trtkit.engine.rotary import scaling_kind
from trtkit.errors import ContractError, Problem, Severity

_ALGORITHMS = {
    "W4A8_AWQ": ("INT4 with FP8 is no product that compilers have", "use int4-awq or fp8"),
    "W4A16_GPTQ": ("its weights lie as one family of GPUs wants them", "use int4-awq"),
}
"""Quantization algorithms that could be asked for, why they cannot be had, and what can."""
_ROPES = ("none", "linear", "llama3", "yarn")


def open_supported(folder: Path, spec: GraphSpec) -> TrtllmCheckpoint:
    """Open a checkpoint that a graph can express.

    Raises:
        ContractError: It cannot, or is damaged; with all problems.
    """
    if damage := [problem for problem in verify(folder) if problem.severity is Severity.ERROR]:
        raise ContractError(damage)
    checkpoint = TrtllmCheckpoint.open(folder)
    file = str(folder / CHECKPOINT_CONFIG)
    found = [
        Problem(message, key, hint, file=file)
        for problems in (_model_problems, _quantization_problems, _length_problems)
        for key, message, hint in problems(checkpoint.config, spec)
    ]
    if found:
        raise ContractError(found)
    return checkpoint


_Found = Iterator[tuple[str, str, str]]
"""Key, message and hint."""


def _model_problems(config: Mapping[str, Any], _: GraphSpec) -> _Found:
    architecture = config.get("architecture")
    if architecture not in FAMILIES:
        yield "architecture", f"{architecture} has no graph", f"there is one for {', '.join(FAMILIES)}"
    if config.get("hidden_act", "silu") not in ACTIVATIONS:
        yield (
            "hidden_act",
            f"{config['hidden_act']} has no graph",
            f"there is one for {', '.join(ACTIVATIONS)}",
        )
    if str(config.get("position_embedding_type", "")).startswith("alibi"):
        yield "position_embedding_type", "ALiBi has no graph", "use a model with rotary embeddings"
    if (kind := scaling_kind(config.get("rotary_scaling"))) not in _ROPES:
        yield "rotary_scaling", f"{kind} has no graph", f"there is one for {', '.join(_ROPES)}"
    yield from _rotary_problems(config)
    if int((config.get("mapping") or {}).get("world_size", 1)) != 1:
        message = f"the checkpoint is split over {config['mapping']['world_size']} ranks"
        yield "mapping", message, "convert with tensor_parallel 1 and pipeline_parallel 1"
    if config.get("attn_logit_softcapping") is not None:
        message = "compilers' attention has no cap on scores"
        yield "attn_logit_softcapping", message, "use a model without it, or a back end of TensorRT-LLM"


def _rotary_problems(config: Mapping[str, Any]) -> _Found:
    again, share = "convert the model again with `trtkit convert`", config.get("rotary_pct", 1.0)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        yield "rotary_pct", f"is {share!r}, not a share of a head", again
        return
    rotated = int(head_size_of(config) * share)
    if config.get("rotary_embedding_dim") not in {None, 0, rotated}:
        message = f"is {config['rotary_embedding_dim']}, and rotary_pct says {rotated}"
        yield "rotary_embedding_dim", message, again


def _quantization_problems(config: Mapping[str, Any], _: GraphSpec) -> _Found:
    block = quantization_of(config)
    algo, cache = block.get("quant_algo"), block.get("kv_cache_quant_algo")
    if algo not in FORMS:
        why, hint = _ALGORITHMS.get(
            str(algo), ("it has no graph", "use none, int8-wo, int8-sq, fp8 or int4-awq")
        )
        yield "quantization.quant_algo", f"{algo}: {why}", f"{hint} for quantization.weights"
    elif _has_experts(config) and algo not in {None, "NO_QUANT"}:
        message = f"{algo}: experts have a graph in floating point only"
        yield (
            "quantization.quant_algo",
            message,
            "use `quantization.weights: none`, or a back end of TensorRT-LLM",
        )
    if (config.get("trtkit") or {}).get("layout"):
        message = "weights lie as one family of GPUs wants them"
        yield "trtkit.layout", message, "convert again without a target GPU"
    if cache is not None:
        message = f"{cache}: caches are of the graph's own type, since attention takes no other"
        yield "quantization.kv_cache_quant_algo", message, "use `quantization.kv_cache: auto`"
    if block.get("exclude_modules") is not None:
        message = "only the built-in list (lm_head, embeddings, router) has a graph"
        yield "quantization.exclude_modules", message, "leave it out"


def _has_experts(config: Mapping[str, Any]) -> bool:
    family = FAMILIES.get(config["architecture"])
    return family is not None and family.experts


def _length_problems(config: Mapping[str, Any], spec: GraphSpec) -> _Found:
    capacity, original = spec.capacity_tokens, config.get("original_max_position_embeddings")
    if "longrope_scaling_short_factors" in config and (original is None or capacity > original):
        message = f"LongRoPE changes all angles beyond {original} tokens, and slots hold {capacity}"
        yield "longrope_scaling_short_factors", message, f"lower max_seq_len to {original}"
    learned = str(config.get("position_embedding_type", "")).startswith("learned")
    if learned and capacity > int(config["max_position_embeddings"]):
        message = (
            f"the model has learned {config['max_position_embeddings']} positions, and slots hold {capacity}"
        )
        yield "max_position_embeddings", message, "lower max_seq_len"
