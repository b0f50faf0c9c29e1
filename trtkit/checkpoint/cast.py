"""Casts between floating-point types that refuse to lose a value to infinity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError

_INFINITY = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
"""Bits of positive infinity: NaN and infinity are at least this, whatever their sign bit."""
_STEP = 31
"""Of so many values one is looked at first: counting all of them would double the time of a cast."""


def cast_chunks(source: TensorInfo, dtype: str) -> Iterator[Array]:
    """Yield a tensor's elements as ``dtype`` in chunks.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with; or most values would
            become zero.
    """
    vanishing = Vanishing()
    for chunk in source.chunks():
        values = cast(chunk, dtype, name=source.name, path=source.path)
        vanishing.count(chunk, values)
        yield values
    vanishing.check(source.name, path=source.path)


def cast(values: Array, dtype: str, *, name: str, path: Path) -> Array:
    """Return the values of tensor ``name`` as ``dtype``, rounded to nearest even; themselves if they are that.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with.
    """
    target = numpy_dtype(dtype)
    if values.dtype == target:
        result = values
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            result = values.astype(target)
    if is_finite(result):
        return result
    if not is_finite(values):
        hint = "the checkpoint is damaged: download it again"
        raise InputError(f"{name} holds NaN or infinity", path=path, hint=hint)
    largest, limit = np.abs(values.astype(np.float64)).max(), float(ml_dtypes.finfo(target).max)
    message = f"{name} holds {largest:g}, and {dtype} ends at {limit:g}"
    wider = "float32" if dtype == "bfloat16" else "bfloat16, which has float32's range"
    raise InputError(message, path=path, hint=f"convert to {wider}")


class Vanishing:
    """Counts the values that a cast makes zero, to refuse it where they are most of a tensor."""

    def __init__(self) -> None:
        self._kept = self._lost = 0

    def count(self, before: Array, after: Array) -> None:
        """Count one block; exactly where most of a sample became zero, else as if nothing had."""
        if after.dtype != np.float16 or before.dtype == np.float16:
            return
        sample = after.reshape(-1)[::_STEP]
        kept = after.size if 2 * _nonzero(sample) >= sample.size else _nonzero(after)
        self._kept += kept
        if kept < after.size:
            self._lost += _nonzero(before) - kept

    def check(self, name: str, *, path: Path) -> None:
        """Say what was counted, at the end of a tensor.

        Raises:
            InputError: Most values are lost.
        """
        kept, lost = self._kept, self._lost
        if lost > kept:
            message = (
                f"{name}: {lost / (kept + lost):.0%} of its values are too small for float16, and become zero"
            )
            raise InputError(message, path=path, hint="convert to bfloat16, which has float32's range")


def _nonzero(values: Array) -> int:
    """Count by the bits, without the sign: of floating-point types numpy counts more slowly."""
    width = 8 * values.itemsize
    return int(np.count_nonzero(values.view(f"u{values.itemsize}") & ((1 << width - 1) - 1)))


def is_finite(values: Array) -> bool:
    """Return whether there is neither NaN nor infinity among floating-point values.

    Two maxima over the bits, once with and once without sign, are several times as fast as ``isfinite``: a plain copy
    stays bound by memory.
    """
    if not values.size:
        return True
    infinity, width = _INFINITY[values.dtype.name], values.itemsize
    signed, unsigned = values.view(f"i{width}"), values.view(f"u{width}")
    return bool(signed.max() < infinity) and bool(unsigned.max() < infinity | 1 << (8 * width - 1))
