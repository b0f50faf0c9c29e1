"""The smallest pieces of a graph: constants, and what the untyped binding calls a node."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import opset13 as op

from trtkit.errors import StageError

Array = npt.NDArray[Any]
Node = Any
"""An OpenVINO node or output; the binding is untyped."""

_ELEMENT_TYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "int8": "i8",
    "float8_e4m3fn": "f8e4m3",
}


def constant(array: Array) -> Node:
    """Return a constant of the array's own type, copied: OpenVINO would not keep numpy's memory alive."""
    if array.dtype.name not in _ELEMENT_TYPES:
        hint = f"convert with dtype {', '.join(list(_ELEMENT_TYPES)[:3])}"
        raise StageError(f"tensor of dtype {array.dtype.name} cannot run on the CPU back end", hint=hint)
    # The binding knows no bfloat16 array: hand over integers of the same width and name the type.
    raw = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return _constant(raw, array.shape, _ELEMENT_TYPES[array.dtype.name])


def nibbles(values: npt.NDArray[np.uint8]) -> Node:
    """Return a constant of 4 bits a value, 0 to 15; the last axis is even."""
    return _constant(values[..., 0::2] | values[..., 1::2] << 4, values.shape, "u4")


def ints(values: Any) -> Node:
    """Return an i64 constant."""
    return op.constant(np.asarray(values, dtype=np.int64))


def floats(values: Any) -> Node:
    """Return an f32 constant: norms, biases and scales are small, so they are copied."""
    return op.constant(np.asarray(values).astype(np.float32))


def product(x: Node, weight: Node) -> Node:
    """Return ``x`` times the transpose of ``weight``, which is ``(out, in)``."""
    return op.matmul(x, weight, transpose_a=False, transpose_b=True)


def _constant(raw: Array, shape: tuple[int, ...], element_type: str) -> Node:
    tensor = ov.Tensor(np.ascontiguousarray(raw), list(shape), getattr(ov.Type, element_type))
    return ov.op.Constant(tensor, shared_memory=False)
