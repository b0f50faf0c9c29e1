"""Casts between floating-point types that refuse to lose a value to infinity."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError


def cast_chunks(source: TensorInfo, dtype: str) -> Iterator[Array]:
    """Yield a tensor's elements as ``dtype``, rounded to nearest even, in chunks.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with.
    """
    target = numpy_dtype(dtype)
    for chunk in source.chunks():
        if chunk.dtype == target:
            yield chunk
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            cast = chunk.astype(target)
        if not np.isfinite(cast).all():
            raise _out_of_range(chunk, dtype, source)
        yield cast


def _out_of_range(chunk: Array, dtype: str, source: TensorInfo) -> InputError:
    values = chunk.astype(np.float64)
    if not np.isfinite(values).all():
        hint = "the checkpoint is damaged: download it again"
        return InputError(f"{source.name} holds NaN or infinity", path=source.path, hint=hint)
    largest, limit = np.abs(values).max(), float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    message = f"{source.name} holds {largest:g}, and {dtype} ends at {limit:g}"
    return InputError(message, path=source.path, hint="convert to bfloat16, which has float32's range")
