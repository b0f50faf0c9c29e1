"""Scales as sources have them, in float32; what no engine can multiply with is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import Array, TensorInfo
from trtkit.checkpoint.storage.storage import Stored
from trtkit.errors import InputError

Floats = npt.NDArray[np.float32]
_HINT = "the checkpoint is damaged, or its quantization failed: download it again, or give the original one"


def read_scale(source: Stored, key: str) -> Floats:
    """Return a part of a layer as float32, which holds every scale exactly.

    Raises:
        InputError: One of them is zero, negative, infinite or NaN.
    """
    info = source.parts[key]
    return checked(info.read(), info, positive=True)


def checked(values: Array, info: TensorInfo, *, positive: bool) -> Floats:
    """Return the values of ``info`` as float32.

    Raises:
        InputError: One of them is zero, infinite or NaN; or negative, where they have to be ``positive``.
    """
    exact = values.astype(np.float32)
    wrong = ~np.isfinite(exact) | ((exact <= 0) if positive else (exact == 0))
    if wrong.any():
        message = f"{info.name} holds {exact[wrong].flat[0]:g}, {int(wrong.sum()):,} of {exact.size:,} scales"
        raise InputError(f"{message} are none", path=info.path, hint=_HINT)
    return exact


def one(value: np.float32 | float) -> Floats:
    """Return a tensor of one element."""
    return np.array([value], np.float32)
