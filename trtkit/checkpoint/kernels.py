"""Arithmetic on blocks of weights by their bits: the same results as numpy's, several times as fast.

Blocks that stay in the L2 cache are assumed; results are new arrays.
"""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import Array
from trtkit.errors import InputError

Floats = npt.NDArray[np.float32]
FP8_MAX = 448.0
"""Largest value of E4M3; there is no infinity."""

_EXPONENT = 0x7F800000
_HALF_ULP = 0x400000
"""The highest bit of float32's mantissa: turns 2**n into 1.5 * 2**n."""


def widen(values: Array) -> Floats:
    """Return floating-point values as float32; those of float16 have to be finite."""
    if values.dtype != np.float16:
        return values.astype(np.float32)
    # The exponents are biased by 15 and 127: 2.0**(127 - 15) makes up for it, and for subnormal numbers too.
    bits = values.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= np.int32(~0x70000000)
    wide: Floats = bits.view(np.float32)
    wide *= np.float32(2.0**112)
    return wide


def amax(values: Array, axis: int, *, name: str, path: Path) -> Floats:
    """Return the largest magnitudes along ``axis`` of the values of tensor ``name``.

    Raises:
        InputError: There is NaN or infinity among them.
    """
    # Without their sign bits, floating-point numbers are in the order of the integers with the same bits.
    unsigned = values.view(f"u{values.itemsize}")
    largest = (unsigned & np.array(~(1 << (8 * values.itemsize - 1)), unsigned.dtype)).max(axis=axis)
    result: Floats = largest.view(values.dtype).astype(np.float32)
    if not np.isfinite(result).all():
        hint = "the checkpoint is damaged: download it again"
        raise InputError(f"{name} holds NaN or infinity", path=path, hint=hint)
    return result


def to_float16_grid(values: Floats) -> Floats:
    """Return values rounded to what float16 can hold (nearest, ties to even), still as float32.

    Beyond 65504 the grid goes on without end.
    """
    bits = values.view(np.uint32) & np.uint32(_EXPONENT)
    np.maximum(bits, np.uint32((127 - 14) << 23), out=bits)
    return _rounded(values, _shift(bits, 13))


def to_float8(values: Floats) -> Array:
    """Return finite values as E4M3 (nearest, ties to even), those beyond 448 as 448."""
    bits = values.view(np.uint32)
    exponent = bits & np.uint32(_EXPONENT)
    np.maximum(exponent, np.uint32((127 - 6) << 23), out=exponent)
    # Of 1.5 * 2**(e + 20) float32 holds three bits less than of 2**e: the sum is rounded to units of 2**(e - 3), which
    # it counts in its lowest bits.
    shift = _shift(exponent, 20)
    count = (values + shift.view(np.float32)).view(np.int32)
    count -= shift.view(np.int32)
    np.abs(count, out=count)
    exponent >>= np.uint32(20)
    # 2**e has 8 units and, with the bias of 7, the code 8 * (e + 7); float32's biased exponent is e + 127.
    exponent += count.view(np.uint32)
    exponent -= np.uint32(8 * (127 - 6))
    np.minimum(exponent, np.uint32(0x7E), out=exponent)
    exponent |= (bits >> np.uint32(24)) & np.uint32(0x80)
    return exponent.astype(np.uint8).view(ml_dtypes.float8_e4m3fn)


def _shift(exponent: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    """Return the bits of ``1.5 * 2**(e + by)``."""
    return exponent + np.uint32((by << 23) | _HALF_ULP)


def _rounded(values: Floats, shift: npt.NDArray[np.uint32]) -> Floats:
    wide = shift.view(np.float32)
    result = values + wide
    result -= wide
    return result
