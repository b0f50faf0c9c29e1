"""How a checkpoint's weights become the graph's: in pieces, while they are written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trtkit.checkpoint.cast import cast, cast_chunks
from trtkit.checkpoint.kernels import kernels_for
from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.engine.graph.nodes import Pieces
from trtkit.engine.tensors import FLOATS
from trtkit.errors import InputError, StageError


def stored_pieces(source: TensorInfo, dtype: str) -> Pieces:
    """Yield a tensor in the order in which it is stored; floats are cast to ``dtype``, anything else stays."""
    if source.dtype in FLOATS:
        chunks = cast_chunks(source, dtype)
    else:
        chunks = _fp8_chunks(source) if source.dtype == "float8_e4m3fn" else source.chunks()
    return ((0, values) for values in chunks)


def _fp8_chunks(source: TensorInfo) -> Iterator[Array]:
    """Yield FP8 values; raise :class:`InputError` where one is NaN. There is no infinity."""
    for values in source.chunks():
        if (values.view(np.uint8) & 0x7F == 0x7F).any():
            hint = "the checkpoint is damaged: convert the model again"
            raise InputError(f"{source.name} holds NaN", path=source.path, hint=hint)
        yield values


def weight_only_pieces(source: TensorInfo, dtype: str) -> Pieces:
    """Quantize ``(out, in)`` by row as TensorRT-LLM's loader does; yield int8, and ``(out,)`` scales.

    Raises:
        InputError: A weight is not finite.
    """
    kernels = kernels_for(source.nbytes)
    for block in source.rows():
        finite = cast(block, source.dtype, name=source.name, path=source.path)
        values, scales = kernels.weight_only(finite)
        steps = scales.astype(np.float32)
        # A row whose scale the data type cannot hold is one of zeros.
        lost = steps == 0
        values[lost], steps[lost] = 0, 1
        yield 0, values
        yield 1, as_steps(steps, dtype, source.name)


def int4_pieces(source: TensorInfo) -> Pieces:
    """Yield INT4 ``(out, in)``, neighbours in a row to a byte; stored bytes hold two output rows, the even one low."""
    for block in source.rows():
        pairs = block.view("<u2")  # of columns: bits 0 and 8 on are the even row's, 4 and 12 on the odd one's
        rows = np.empty((len(pairs), 2, pairs.shape[1]), np.uint8)
        rows[:, 0] = pairs & 0x0F | pairs >> 4 & 0xF0
        rows[:, 1] = pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
        yield 0, rows


def as_steps(values: Array, dtype: str, name: str) -> Array:
    """Return steps of quantization as ``dtype``.

    Raises:
        StageError: One would change by more than 1 %, as float16 does to those below 4e-6.
    """
    with np.errstate(over="ignore"):
        held = values.astype(numpy_dtype(dtype))
    if (np.abs(held.astype(np.float32) - values) > 0.01 * values).any():
        message = f"{name} has steps of {values.min():.2g} to {values.max():.2g}, which {dtype} cannot hold"
        raise StageError(message, hint="use `dtype: bfloat16`, which has float32's range")
    return held
