"""Casts between floating-point types that refuse to lose a value to infinity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError

_EXPONENTS = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
"""The bits that are all set in NaN and infinity, and in nothing else."""


def cast_chunks(source: TensorInfo, dtype: str) -> Iterator[Array]:
    """Yield a tensor's elements as ``dtype`` in chunks.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with.
    """
    target = numpy_dtype(dtype)
    for chunk in source.chunks():
        if chunk.dtype != target:
            yield cast(chunk, dtype, name=source.name, path=source.path)
        elif _is_finite(chunk):
            yield chunk
        else:
            raise _not_finite(source.name, source.path)


def _is_finite(values: Array) -> bool:
    # Ten times as fast as isfinite is with 16-bit types: a plain copy stays bound by the disk.
    bits, exponent = values.view(f"u{values.itemsize}"), _EXPONENTS[values.dtype.name]
    return bool((bits & bits.dtype.type(exponent)).max() < exponent)


def _not_finite(name: str, path: Path) -> InputError:
    hint = "the checkpoint is damaged: download it again"
    return InputError(f"{name} holds NaN or infinity", path=path, hint=hint)


def cast(values: Array, dtype: str, *, name: str, path: Path) -> Array:
    """Return the values of tensor ``name`` as ``dtype``, rounded to nearest even.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(numpy_dtype(dtype))
    if np.isfinite(result).all():
        return result
    if not np.isfinite(values).all():
        raise _not_finite(name, path)
    largest, limit = np.abs(values.astype(np.float64)).max(), float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    message = f"{name} holds {largest:g}, and {dtype} ends at {limit:g}"
    raise InputError(message, path=path, hint="convert to bfloat16, which has float32's range")
