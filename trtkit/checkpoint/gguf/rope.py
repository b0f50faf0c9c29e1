"""Rotary embeddings in GGUF files: settings, and frequencies that are kept as tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trtkit.checkpoint.gguf.file import USE_FOLDER, GgufFile
from trtkit.checkpoint.gguf.weights import read_vector
from trtkit.checkpoint.safetensors import Array
from trtkit.errors import InputError

_DIVISORS = "rope_freqs.weight"
_FACTORS = {"short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}
ROPE_TENSORS = frozenset({_DIVISORS, *_FACTORS.values()})
ROPE_SETTINGS = frozenset({
    "rope.dimension_count", "rope.freq_base", "rope.scaling.attn_factor", "rope.scaling.factor",
    # Whether training went on with the scaling changes nothing now.
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "rope.scaling.type", "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
})  # fmt: skip
_YARN = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
_ATTENTION = "rope.scaling.attn_factor"
_BASE = 10_000.0
# Only ratios of these count: with both bands doubled, a doubled length means the same.
_LLAMA3_BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_LENGTHS = (8192, *(1 << exponent for exponent in range(5, 21)))


def shortest(value: Any) -> Any:
    """Undo the way through float32: 9.999999747378752e-06 was 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def read_rope(file: GgufFile) -> dict[str, Any]:
    """Return ``rope_theta`` and ``rope_scaling`` (null without scaling).

    Raises:
        InputError: Frequencies are scaled in several ways, or by a tensor that no kind of scaling explains.
    """
    base = shortest(file.get("rope.freq_base"))
    base = _BASE if base is None else base
    scalings = [_by_settings(file), _by_divisors(file, base), _by_factors(file)]
    found = [scaling for scaling in scalings if scaling]
    # LongRoPE is named by its type, and its parameters are tensors.
    if len(found) > 1 and found != [{"rope_type": "longrope"}, scalings[2]]:
        kinds = " and ".join(scaling["rope_type"] for scaling in found)
        message = f"rotary embeddings are scaled in more than one way: {kinds}"
        raise InputError(message, path=file.path, hint=USE_FOLDER)
    scaling = found[-1] if found else None
    _check_attention(file, scaling)
    return {"rope_theta": base, "rope_scaling": scaling}


def _check_attention(file: GgufFile, scaling: Mapping[str, Any] | None) -> None:
    """Refuse factors of attention that the kind of scaling has no place for: llama.cpp multiplies by all of them."""
    used = {"longrope": _ATTENTION, "yarn": _YARN["attention_factor"]}.get(
        (scaling or {}).get("rope_type", "")
    )
    for key in {_ATTENTION, _YARN["attention_factor"]} - {used}:
        if file.get(key) not in (None, 1):
            message = f"{file.architecture}.{key} is {file.get(key)}, which cannot be carried over"
            raise InputError(message, path=file.path, hint=USE_FOLDER)


def _by_settings(file: GgufFile) -> dict[str, Any] | None:
    kind, factor = file.get("rope.scaling.type"), file.get("rope.scaling.factor")
    # A factor without a type scales positions evenly.
    kind = kind or ("none" if factor in (None, 0, 1) else "linear")
    if kind == "none":
        return None
    keys = _YARN if kind == "yarn" else {"factor": "rope.scaling.factor"}
    values = {name: shortest(file.get(key)) for name, key in keys.items()}
    return {"rope_type": kind, **{name: value for name, value in values.items() if value is not None}}


def _by_divisors(file: GgufFile, base: float) -> dict[str, Any] | None:
    """Return Llama 3's scaling, which divides every frequency by a number."""
    tensor = file.tensors.get(_DIVISORS)
    if tensor is None:
        return None
    divisors = read_vector(tensor)
    if np.all(divisors == 1):
        return None
    found = find_llama3(divisors, base)
    if found is None:
        message = f"{_DIVISORS}: frequencies are divided in a way that is not Llama 3's"
        raise InputError(message, path=file.path, hint=USE_FOLDER)
    return {"rope_type": "llama3", **found}


def find_llama3(divisors: Array, base: float) -> dict[str, Any] | None:
    """Return the parameters that give these divisors, or None when there are none."""
    factor = shortest(float(divisors.max()))
    for length in _LLAMA3_LENGTHS:
        parameters = {"factor": factor, **_LLAMA3_BANDS, "original_max_position_embeddings": length}
        if np.allclose(divisors, llama3_divisors(parameters, base, len(divisors)), rtol=1e-5, atol=0):
            return parameters
    return None


def llama3_divisors(parameters: Mapping[str, Any], base: float, count: int) -> Array:
    """Return what Llama 3's scaling divides each frequency by; transformers' ``_compute_llama3_parameters``.

    Waves longer than original / low are slowed down by the factor, those shorter than original / high not at all; in
    between the frequency is interpolated.
    """
    factor, low, high = (parameters[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    lengths = 2 * math.pi * base ** (np.arange(count) / count)
    part = (parameters["original_max_position_embeddings"] / lengths - low) / (high - low)
    part = np.clip(part, 0.0, 1.0)
    divisors: Array = 1 / ((1 - part) / factor + part)
    return divisors


def _by_factors(file: GgufFile) -> dict[str, Any] | None:
    """Return LongRoPE's parameters."""
    kept = {f"{side}_factor": file.tensors.get(name) for side, name in _FACTORS.items()}
    if not any(kept.values()):
        return None
    if None in kept.values():
        lacking = [name for name in _FACTORS.values() if name not in file.tensors]
        raise InputError(f"LongRoPE lacks {', '.join(lacking)}", path=file.path, hint=USE_FOLDER)
    factors = {
        name: [shortest(float(factor)) for factor in read_vector(tensor)]
        for name, tensor in kept.items()
        if tensor is not None
    }
    attention = shortest(file.get(_ATTENTION))
    return {"rope_type": "longrope", **factors} | (
        {} if attention is None else {"attention_factor": attention}
    )
