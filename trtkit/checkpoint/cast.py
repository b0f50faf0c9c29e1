"""Casts between floating-point types that refuse to lose a value to infinity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError


def cast_chunks(source: TensorInfo, dtype: str) -> Iterator[Array]:
    """Yield a tensor's elements as ``dtype`` in chunks; see :func:`cast`."""
    target = numpy_dtype(dtype)
    for chunk in source.chunks():
        yield chunk if chunk.dtype == target else cast(chunk, dtype, name=source.name, path=source.path)


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
        hint = "the checkpoint is damaged: download it again"
        raise InputError(f"{name} holds NaN or infinity", path=path, hint=hint)
    largest, limit = np.abs(values.astype(np.float64)).max(), float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    message = f"{name} holds {largest:g}, and {dtype} ends at {limit:g}"
    raise InputError(message, path=path, hint="convert to bfloat16, which has float32's range")
