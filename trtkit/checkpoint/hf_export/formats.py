"""Which checkpoints have a form on the Hugging Face side, and how ``config.json`` describes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trtkit
from trtkit.catalog.schemes import MIXED
from trtkit.checkpoint.layer_blocks import is_excluded
from trtkit.errors import ContractError, Problem
from trtkit.plan.layers import HEAD

PREQUANT = "prequant_scaling_factor"
_FP8_TENSORS: Mapping[str, Any] = {"dynamic": False, "num_bits": 8, "type": "float"}


@dataclass(frozen=True)
class HfFormat:
    """One algorithm in ModelOpt's form."""

    parts: Mapping[str, str]
    """Suffix of a linear layer's tensor in the TensorRT-LLM checkpoint to its suffix here."""
    weight_dtype: str | None = None
    """Data type of the packed weights; None for the checkpoint's own."""
    groups: Mapping[str, Any] | None = None
    """``config_groups.group_0``, for the algorithms that ModelOpt writes it for."""
    flags: tuple[str, ...] = ()
    """Keys of the ``quantization`` block that go along."""


FORMATS: Mapping[str | None, HfFormat] = {
    None: HfFormat({"weight": "weight"}),
    "FP8": HfFormat(
        {
            "weight": "weight",
            "weights_scaling_factor": "weight_scale",
            "activation_scaling_factor": "input_scale",
        },
        "float8_e4m3fn",
        {"input_activations": _FP8_TENSORS, "weights": _FP8_TENSORS, "targets": ["Linear"]},
    ),
    "FP8_PER_CHANNEL_PER_TOKEN": HfFormat(
        {"weight": "weight", "per_channel_scale": "weight_scale"}, "float8_e4m3fn"
    ),
    "W4A16_AWQ": HfFormat(
        {"weight": "weight", "weights_scaling_factor": "weight_scale", PREQUANT: "pre_quant_scale"},
        "uint8",
        flags=("group_size", "has_zero_point", "pre_quant_scale"),
    ),
}
"""By ``quantization.quant_algo``."""

_AS_IT_IS = (
    "a source that is quantized so already is a Hugging Face folder itself: give that to those programs"
)
_NEAREST = {
    "W8A16": ("there are no INT8 weights on that side", "use weights none"),
    "W8A8": ("there are no INT8 weights on that side", f"convert the original with weights fp8; {_AS_IT_IS}"),
    "W4A16_GPTQ": (
        "its weights are in the layout of one GPU family",
        _AS_IT_IS,
    ),
}
"""Start of an algorithm's name to why it has no form, and what to use instead."""


def find_format(quantization: Mapping[str, Any], *, file: str) -> HfFormat:
    """Return the form of a checkpoint's ``quantization`` block; ``file`` is named in problems.

    Raises:
        ContractError: There is none, or it would lose something that the block asks for.
    """
    if problems := [*_weight_problems(quantization), *_kv_problems(quantization)]:
        raise ContractError([Problem(text, key, hint, file) for text, key, hint in problems])
    return FORMATS[quantization.get("quant_algo")]


def _weight_problems(quantization: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    algorithm, key = quantization.get("quant_algo"), "quantization.quant_algo"
    if algorithm == MIXED:
        hint = "use one format for all layers, or leave some plain"
        return [("layers of several formats cannot be exported: nothing is known of that form", key, hint)]
    patterns = quantization.get("exclude_modules")
    if algorithm is not None and patterns is not None and not is_excluded(HEAD, patterns):
        message = "a quantized head cannot be exported: nothing is known of that form"
        return [(message, "quantization.exclude_modules", "exclude lm_head too")]
    if algorithm not in FORMATS:
        known = (
            "Hugging Face checkpoints have no such form",
            "use weights fp8, fp8-rowwise, int4-awq or none",
        )
        why, hint = next((_NEAREST[name] for name in _NEAREST if str(algorithm).startswith(name)), known)
        return [(f"{algorithm} cannot be exported: {why}", key, hint)]
    if algorithm is None or not FORMATS[algorithm].flags:
        clamp = quantization.get("clamp_val")
        hint = f"convert the original with --export hf, which clamps nothing; {_AS_IT_IS}"
        lost = [("clamp_val", "activations are not clamped on that side", hint)] if clamp is not None else []
    else:
        zeros = quantization.get("has_zero_point")
        lost = [("has_zero_point", "the form has no zero points", _AS_IT_IS)] if zeros else []
    return [
        (
            f"{algorithm} with {name} cannot be exported: {why}",
            f"quantization.{name}",
            hint,
        )
        for name, why, hint in lost
    ]


def _kv_problems(quantization: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    cache, key = quantization.get("kv_cache_quant_algo"), "quantization.kv_cache_quant_algo"
    if cache not in (None, "FP8"):
        return [(f"there is no {cache} KV cache on that side", key, "use kv_cache fp8 or auto")]
    if cache and quantization.get("quant_algo") is None:
        hint = "use weights fp8, or kv_cache auto and choose an FP8 cache where the model is served"
        return [("an FP8 KV cache beside plain weights has no form", key, hint)]
    return []


def quant_configs(
    quantization: Mapping[str, Any], excluded: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of ``hf_quant_config.json`` and of ``quantization_config`` in ``config.json``.

    Args:
        quantization: The block of the TensorRT-LLM checkpoint.
        excluded: Linear modules that are not quantized.
    """
    algorithm, cache = quantization["quant_algo"], quantization.get("kv_cache_quant_algo")
    form = FORMATS[algorithm]
    producer = {"name": "trtkit", "version": trtkit.__version__}
    flags = {name: quantization[name] for name in form.flags if name in quantization}
    names = {"exclude_modules": list(excluded)}
    file = {"quant_algo": algorithm, "kv_cache_quant_algo": cache, **flags, **names}
    block = {
        **({"config_groups": {"group_0": form.groups}} if form.groups else {}),
        "ignore": list(excluded),
        "quant_algo": algorithm,
        **flags,
        **({"kv_cache_scheme": _FP8_TENSORS} if cache else {}),
        "producer": producer,
        # Programs choose their loader by it; the producer only says who wrote the files.
        "quant_method": "modelopt",
    }
    return {"producer": producer, "quantization": file}, block
