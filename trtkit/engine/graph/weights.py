"""How a checkpoint's weights become the graph's: in pieces, and with input columns first, as ``MatMul`` wants them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.cast import Vanishing, cast, cast_chunks
from trtkit.checkpoint.kernels import kernels_for
from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.engine.graph.nodes import Pieces
from trtkit.errors import StageError

_PANEL_BYTES = 8 << 20
_TILE = 256
"""Rows that are transposed at once: a column of them touches as many cache lines, 16 KiB."""


def cast_pieces(source: TensorInfo, dtype: str) -> Pieces:
    """Yield a tensor as ``dtype``, in the order in which it is stored."""
    return ((0, values) for values in cast_chunks(source, dtype))


def transposed_pieces(source: TensorInfo, dtype: str) -> Pieces:
    """Yield ``(out, in)`` as ``(in, out)``; floats are cast to ``dtype``, anything else is as it is stored."""
    if source.dtype == dtype:
        yield from ((0, panel) for panel in panels(source.read()))
        return
    vanishing = Vanishing()
    for panel in panels(source.read()):
        values = cast(panel, dtype, name=source.name, path=source.path)
        vanishing.count(panel, values)
        yield 0, values
    vanishing.check(source.name, path=source.path)


def weight_only_pieces(source: TensorInfo, dtype: str) -> Pieces:
    """Quantize ``(out, in)`` by row as TensorRT-LLM's loader does; yield int8 ``(in, out)``, then ``(out,)`` scales.

    Memory: the quantized weight.
    """
    out, width = source.shape
    quantized, scales = np.empty((out, width), np.int8), np.empty(out, np.float32)
    kernels, row = kernels_for(source.nbytes), 0
    for block in source.rows():
        values, scale = kernels.weight_only(block)
        # A row whose scale the data type cannot hold is one of zeros.
        lost = scale == 0
        quantized[row : row + len(block)] = np.where(lost[:, None], 0, values)
        scales[row : row + len(block)] = np.where(lost, 1, scale)
        row += len(block)
    yield from ((0, panel) for panel in panels(quantized))
    yield 1, as_steps(scales, dtype, source.name)


def panels(matrix: Array) -> Iterator[Array]:
    """Yield the rows of the transposed matrix in blocks of ``(columns, rows)``."""
    rows, columns = matrix.shape
    raw = matrix.view(f"u{matrix.itemsize}")  # ml_dtypes' types would be copied one by one
    step = max(1, _PANEL_BYTES // (rows * matrix.itemsize))
    for start in range(0, columns, step):
        part = raw[:, start : start + step]
        panel = np.empty(part.shape[::-1], raw.dtype)
        for row in range(0, rows, _TILE):
            panel[:, row : row + _TILE] = part[row : row + _TILE].T
        yield panel.view(matrix.dtype)


def packed_panels(stored: npt.NDArray[np.uint8]) -> Pieces:
    """Yield INT4 ``(in, out)`` of bytes that hold two output rows, the even one low: transposed they are neighbours."""
    return ((0, panel) for panel in panels(stored))


def as_steps(values: Array, dtype: str, name: str) -> Array:
    """Return steps of quantization as ``dtype``.

    Raises:
        StageError: One would change by more than 1 %, as float16 does to those below 4e-6.
    """
    held = values.astype(numpy_dtype(dtype))
    if (np.abs(held.astype(np.float32) - values) > 0.01 * values).any():
        message = f"{name} has steps of {values.min():.2g} to {values.max():.2g}, which {dtype} cannot hold"
        raise StageError(message, hint="use `dtype: bfloat16`, which has float32's range")
    return held
