"""The same arithmetic compiled by numba: one pass over memory for each function, where numpy takes up to nine.

To import this is to import numba, which takes 0.3 s. What is compiled is kept next to this file, or in the user's
cache; the first conversion takes a second more, and so does each one where neither folder can be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numba
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.kernels import FP8_MAX, Floats, Int8s, Kernels
from trtkit.checkpoint.safetensors import Array

# Every step is cast: to numba the sum of two uint32 is a uint64, and half as many of them fit a register.
_f32, _u32 = np.float32, np.uint32
_EXPONENT, _MAGNITUDE = _u32(0x7F800000), _u32(0x7FFFFFFF)
_LEAST_FLOAT16, _LEAST_FLOAT8 = _u32((127 - 14) << 23), _u32((127 - 6) << 23)
_UP_13, _UP_20 = _u32((13 << 23) | 0x400000), _u32((20 << 23) | 0x400000)
"""From the bits of 2**e to those of 1.5 * 2**(e + 13): there, float32 is as coarse as float16 is near 2**e."""


class FastKernels(Kernels):
    """Compiled kernels; their bytes are those of the plain ones."""

    def repeated(self, factors: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
        """Repeat without copies: one row is read."""
        return np.broadcast_to(factors, (rows, len(factors)))

    def smoothed(self, values: Array, factors: npt.NDArray[np.float64]) -> Floats:
        """Round, multiply and round in one pass over bfloat16."""
        return self.smoothed_rows(values, factors)[0]

    def smoothed_rows(self, values: Array, factors: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
        """Compare in the pass that smooths."""
        largest = np.zeros(len(values), np.uint32)
        if values.dtype == ml_dtypes.bfloat16:
            result: Floats = self._buffer("widen", values.shape, np.float32)
            _smooth_bfloat16(np.ascontiguousarray(values).view(np.uint16), factors[0], result, largest)
        else:
            result = self.halved(values)
            _smooth(result, factors[0], largest)
        return result, largest.view(np.float32)

    def largest(self, values: Array, axis: int) -> Floats:
        """Compare bits without writing them down."""
        if values.ndim != 2:
            return super().largest(values, axis)
        bits = np.ascontiguousarray(values).view(f"u{values.itemsize}")
        result = np.zeros(bits.shape[1 - axis], bits.dtype)
        find = _largest_of_rows if axis else _largest_of_columns
        find(bits, bits.dtype.type((1 << (8 * values.itemsize - 1)) - 1), result)
        return result.view(values.dtype).astype(np.float32)

    def to_float16_grid(self, values: Floats) -> Floats:
        """Round in place."""
        if not values.flags.c_contiguous:
            return super().to_float16_grid(values)
        _round_to_float16(values.reshape(-1))
        return values

    def to_float8(self, values: Floats) -> Array:
        """Encode without temporaries."""
        codes = self._buffer("code", values.shape, np.uint8)
        _encode_float8(_flat(values), codes.reshape(-1))
        return codes.view(ml_dtypes.float8_e4m3fn)

    def divided_to_float8(self, values: Array, divisors: Floats) -> Array:
        """Widen, divide and encode bfloat16 in one pass."""
        if values.dtype != ml_dtypes.bfloat16:
            return super().divided_to_float8(values, divisors)
        codes = self._buffer("code", values.shape, np.uint8)
        _divide_to_float8(np.ascontiguousarray(values).view(np.uint16), divisors, codes)
        return codes.view(ml_dtypes.float8_e4m3fn)

    def scaled_to_int8(self, values: Floats, factors: Floats, *, halves: bool = False) -> Int8s:
        """Multiply, round and narrow at once."""
        result: Int8s = self._buffer("int8", values.shape, np.int8)
        (_scale_to_int8_by_halves if halves else _scale_to_int8)(values, factors, result)
        return result

    def to_int8(self, values: Floats) -> Int8s:
        """Round and narrow at once."""
        result: Int8s = self._buffer("int8", values.shape, np.int8)
        _round_to_int8(_flat(values), result.reshape(-1))
        return result

    def weight_only(self, values: Array) -> tuple[Int8s, Array]:
        """Divide, round and clip at once."""
        wide = self.widen(values)
        scale = self.largest(values, axis=1) / np.float32(128)
        result: Int8s = self._buffer("int8", values.shape, np.int8)
        _round_halves_away(wide, np.where(scale > 0, scale, np.float32(1)), result)
        return result, scale.astype(values.dtype)

    def interleaved(self, quantized: Int8s) -> Int8s:
        """Move each byte once."""
        result: Int8s = self._buffer("interleaved", quantized.shape, np.int8)
        _interleave(np.ascontiguousarray(quantized).view(np.uint8), result.reshape(-1).view(np.uint16))
        return result


def _flat(values: Array) -> Array:
    return np.ascontiguousarray(values).reshape(-1)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Python's error for a division by zero, where divisors are known not to be, keeps loops from being vectors.
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # there is no folder for it
        compiled = numba.njit(error_model="numpy")(function)
    return compiled


@_compiled
def _to_float16(value: Any) -> Any:
    exponent = _u32(_f32(value).view(_u32) & _EXPONENT)
    exponent = max(_LEAST_FLOAT16, exponent)
    coarse = _u32(exponent + _UP_13).view(_f32)
    return (value + coarse) - coarse


@_compiled
def _round_to_float16(values: Floats) -> None:
    for i in range(values.size):
        values[i] = _to_float16(values[i])


@_compiled
def _smooth(values: Floats, factors: npt.NDArray[np.float64], largest: npt.NDArray[np.uint32]) -> None:
    for row in range(len(values)):
        most = _u32(0)
        for i in range(values.shape[1]):
            value = _to_float16(_f32(values[row, i] * factors[i]))
            values[row, i] = value
            most = max(most, _u32(_f32(value).view(_u32) & _MAGNITUDE))
        largest[row] = most


@_compiled
def _smooth_bfloat16(
    bits: npt.NDArray[np.uint16],
    factors: npt.NDArray[np.float64],
    result: Floats,
    largest: npt.NDArray[np.uint32],
) -> None:
    for row in range(len(bits)):
        most = _u32(0)
        for i in range(bits.shape[1]):
            value = _u32(_u32(bits[row, i]) << _u32(16)).view(_f32)
            value = np.rint(value * _f32(2.0**24)) * _f32(2.0**-24)
            value = _to_float16(_f32(value * factors[i]))
            result[row, i] = value
            most = max(most, _u32(_f32(value).view(_u32) & _MAGNITUDE))
        largest[row] = most


@_compiled
def _largest_of_rows(bits: Array, magnitude: Any, result: Array) -> None:
    for row in range(len(bits)):
        largest = bits.dtype.type(0)
        for i in range(bits.shape[1]):
            largest = max(largest, bits.dtype.type(bits[row, i] & magnitude))
        result[row] = largest


@_compiled
def _largest_of_columns(bits: Array, magnitude: Any, result: Array) -> None:
    for row in range(len(bits)):
        for i in range(bits.shape[1]):
            result[i] = max(result[i], bits.dtype.type(bits[row, i] & magnitude))


@_compiled
def _to_float8(value: Any) -> Any:
    bits = _f32(value).view(_u32)
    magnitude = _u32(bits & _MAGNITUDE).view(_f32)
    magnitude = min(_f32(FP8_MAX), magnitude)
    exponent = _u32(_f32(magnitude).view(_u32) & _EXPONENT)
    exponent = max(_LEAST_FLOAT8, exponent)
    total = _f32(_u32(exponent + _UP_20).view(_f32) + magnitude).view(_u32)
    code = _u32(total + (total >> _u32(20)) - _u32(1132)) & _u32(0xFF)
    return np.uint8(code | (bits >> _u32(24)) & _u32(0x80))


@_compiled
def _encode_float8(values: Floats, codes: npt.NDArray[np.uint8]) -> None:
    for i in range(values.size):
        codes[i] = _to_float8(values[i])


@_compiled
def _divide_to_float8(bits: npt.NDArray[np.uint16], divisors: Floats, codes: npt.NDArray[np.uint8]) -> None:
    for row in range(len(bits)):
        divisor = divisors[row]
        for i in range(bits.shape[1]):
            codes[row, i] = _to_float8(_f32(_u32(_u32(bits[row, i]) << _u32(16)).view(_f32) / divisor))


@_compiled
def _round_to_int8(values: Floats, result: Int8s) -> None:
    for i in range(values.size):
        result[i] = np.int8(np.rint(values[i]))


@_compiled
def _scale_to_int8(values: Floats, factors: Floats, result: Int8s) -> None:
    for row in range(len(values)):
        factor = factors[row]
        for i in range(values.shape[1]):
            result[row, i] = np.int8(np.rint(_f32(values[row, i] * factor)))


@_compiled
def _scale_to_int8_by_halves(values: Floats, factors: Floats, result: Int8s) -> None:
    for row in range(len(values)):
        factor = factors[row]
        for i in range(values.shape[1]):
            result[row, i] = np.int8(np.rint(_to_float16(_f32(values[row, i] * factor))))


@_compiled
def _round_halves_away(values: Floats, divisors: Floats, result: Int8s) -> None:
    for row in range(len(values)):
        divisor = divisors[row]
        for column in range(values.shape[1]):
            ratio = _f32(values[row, column] / divisor)
            steps = np.int32(_f32(ratio + np.copysign(_f32(0.5), ratio)))
            result[row, column] = np.int8(max(np.int32(-128), min(np.int32(127), steps)))


@_compiled
def _interleave(rows: npt.NDArray[np.uint8], result: npt.NDArray[np.uint16]) -> None:
    count, columns = rows.shape
    target = 0
    for pair in range(0, count, 2):
        for tile in range(0, columns, 64):
            for row in range(pair, pair + 2):
                for start in range(tile, tile + 64, 16):
                    for i in range(8):
                        first, second = np.uint16(rows[row, start + i]), np.uint16(rows[row, start + 8 + i])
                        result[target + i] = first ^ np.uint16(second << np.uint16(8)) ^ np.uint16(0x8080)
                    target += 8
