"""INT8 weight-only quantization, by the formula of TensorRT-LLM's loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def quantize_int8(weight: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """Quantize ``(out, in)`` per output channel; return int8 ``(out, in)`` and scales ``(out,)``.

    The scale is ``amax / 128`` in the weight's dtype, rounding is half away from zero, and 128 itself is clipped to
    127: TensorRT-LLM's ``symmetric_quantize_last_axis_of_batched_matrix``. Rows of zeros get scale 0.
    """
    rows = weight.astype(np.float32)
    scale = np.abs(rows).max(axis=1) / np.float32(128.0)
    divisor = np.where(scale > 0, scale, np.float32(1.0))
    rows /= divisor[:, None]
    # Half away from zero; numpy's own rint goes to even: 0.5 -> 1, -2.5 -> -3.
    rounded = np.copysign(np.floor(np.abs(rows) + np.float32(0.5)), rows)
    return np.clip(rounded, -128, 127).astype(np.int8), scale.astype(weight.dtype)


def dequantize_int8(quantized: npt.NDArray[np.int8], scale: Array) -> npt.NDArray[np.float32]:
    """Return the float32 weights ``(out, in)`` that the engine multiplies with."""
    return quantized.astype(np.float32) * scale.astype(np.float32)[:, None]
