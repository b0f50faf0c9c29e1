"""Whether the scales of a checkpoint can be multiplied with: they are read, weights are not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo
from trtkit.errors import Problem

_POSITIVE = (
    "weights_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor", "per_channel_scale",
    "act_scale", "smoother", "scale_to_int", "quantization_scaling_factor", "kv_cache_scaling_factor",
)  # fmt: skip
_FACTORS = ("prequant_scaling_factor",)
_FINITE = ("zero", "clamp_val")
_HINT = "convert the source again; what it was made of may be damaged"


def scale_problems(tensors: Mapping[str, TensorInfo]) -> Iterator[Problem]:
    """Yield the scales that are not finite, or not greater than zero."""
    for name, info in tensors.items():
        kind = name.rpartition(".")[2]
        if kind not in (*_POSITIVE, *_FACTORS, *_FINITE):
            continue
        wrong = next((values for chunk in info.chunks() if (values := _wrong(kind, chunk)).size), None)
        if wrong is not None:
            limit = "finite" if kind in _FINITE else "finite and greater than 0"
            yield Problem(f"holds {wrong[0]:g}, and has to be {limit}", key=name, hint=_HINT)


def _wrong(kind: str, chunk: Array) -> Array:
    """Return the values that cannot be."""
    values = chunk.reshape(-1).astype(np.float32)
    fine = np.isfinite(values)
    if kind in _POSITIVE:
        fine &= values > 0
    elif kind in _FACTORS:
        fine &= values != 0
    return values[~fine]
