"""Rotary tables: how far each pair of a head's features turns per position."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def inverse_frequencies(rotated: int, base: float, scaling: Mapping[str, Any] | None) -> Array:
    """Return the angle per position of each of ``rotated / 2`` pairs, scaled as linear, llama3 or yarn say."""
    inverse: Array = base ** (-np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    kind = scaling_kind(scaling)
    if scaling is None or kind == "none":
        return inverse
    if kind == "linear":
        return inverse / float(scaling["factor"])
    return _yarn(inverse, base, scaling) if kind == "yarn" else _llama3(inverse, scaling)


def scaling_kind(scaling: Mapping[str, Any] | None) -> str:
    """Return the kind of rotary scaling by TensorRT-LLM's rule (``type`` before ``rope_type``)."""
    if not scaling:
        return "none"
    kind = str(scaling.get("type") or scaling.get("rope_type") or "none")
    return "none" if kind == "default" else kind


def yarn_scale(scaling: Mapping[str, Any]) -> float:
    """Return the factor of all cosines and sines: stretched by 4 it is 0.1 ln 4 + 1 = 1.14."""
    factor = float(scaling["factor"])

    def attenuation(mscale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

    one, other = scaling.get("mscale", 1.0), scaling.get("mscale_all_dim", 0.0)
    return attenuation(float(one)) / attenuation(float(other))


def longrope_scale(longest_tokens: float, original_tokens: float) -> float:
    """Return the factor of all cosines and sines: 128k positions of 4k are sqrt(1 + ln 32 / ln 4096) = 1.19."""
    ratio = longest_tokens / original_tokens
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original_tokens))


def _llama3(inverse: Array, scaling: Mapping[str, Any]) -> Array:
    """Stretch long wavelengths by ``factor``, keep short ones, blend between (Llama 3.1)."""
    factor = float(scaling.get("factor", 8.0))
    low = float(scaling.get("low_freq_factor", 1.0))
    high = float(scaling.get("high_freq_factor", 4.0))
    original = float(scaling.get("original_max_position_embeddings", 8192))
    # Turns within the original context: 8192 * inverse / 2 pi. At most `low`: stretched; at least `high`: kept.
    turns = original * inverse / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray(inverse * (blend + (1.0 - blend) / factor))


def _yarn(inverse: Array, base: float, scaling: Mapping[str, Any]) -> Array:
    """Stretch pairs that turn less than ``beta_slow`` times in the original context, keep those above ``beta_fast``."""
    original = float(scaling.get("original_max_position_embeddings", 4096))
    rotated = 2 * len(inverse)

    def pair(turns: float) -> float:
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(pair(float(scaling.get("beta_fast", 32)))), 0)
    last = min(math.ceil(pair(float(scaling.get("beta_slow", 1)))), rotated - 1)
    width = last - first if last > first else 0.001
    stretched = np.clip((np.arange(len(inverse)) - first) / width, 0.0, 1.0)
    return np.asarray(inverse * (stretched / float(scaling["factor"]) + 1.0 - stretched))
