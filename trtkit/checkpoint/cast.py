"""Casts between floating-point types that refuse to lose a value to infinity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import ml_dtypes
import numpy as np

from trtkit.checkpoint.safetensors import Array, numpy_dtype
from trtkit.errors import InputError


def cast_chunks(chunks: Iterable[Array], dtype: str, *, name: str) -> Iterator[Array]:
    """Yield every chunk as ``dtype``, rounded to nearest even.

    Raises:
        InputError: A value is outside of the range of ``dtype``, or was not finite to begin with.
    """
    target = numpy_dtype(dtype)
    for chunk in chunks:
        if chunk.dtype == target:
            yield chunk
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            cast = chunk.astype(target)
        if not np.isfinite(cast).all():
            raise _out_of_range(chunk, dtype, name)
        yield cast


def _out_of_range(chunk: Array, dtype: str, name: str) -> InputError:
    values = chunk.astype(np.float64)
    if not np.isfinite(values).all():
        return InputError(
            f"{name} holds NaN or infinity", hint="the checkpoint is damaged: download it again"
        )
    largest, limit = np.abs(values).max(), float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    message = f"{name} holds {largest:g}, and {dtype} ends at {limit:g}"
    return InputError(message, hint="convert to bfloat16, which has float32's range")
