"""Arithmetic on blocks of weights by their bits: the results of numpy and ml_dtypes, several times as fast."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.weight_only import quantize_int8
from trtkit.errors import InputError

Floats = npt.NDArray[np.float32]
Int8s = npt.NDArray[np.int8]
FP8_MAX = 448.0
"""Largest value of E4M3; there is no infinity."""

_EXPONENT = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_HALF = 0x400000
"""Highest bit of float32's mantissa: makes 1.5 * 2**n of 2**n."""
_FP8_MAX_BITS = np.float32(FP8_MAX).view(np.uint32)
WORTH_COMPILING_BYTES = 500_000_000
"""Weights of bfloat16 that compiled kernels are through with sooner by what importing them takes, 0.4 s."""


def kernels_for(source_bytes: int) -> Kernels:
    """Return compiled kernels for so many bytes of weights where numba is installed, else those of numpy."""
    if source_bytes >= WORTH_COMPILING_BYTES:
        with contextlib.suppress(ImportError):  # numba's extra is missing, or numba does not know this numpy
            from trtkit.checkpoint.kernels_fast import FastKernels

            return FastKernels()
    return Kernels()


class Kernels:
    """Functions on blocks that fit the cache. A result is valid until the same function is called again.

    Buffers are kept, because allocating takes longer than the arithmetic: blocks of this size go back to the system.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, npt.NDArray[np.uint8]] = {}
        self._constants: dict[np.uint32, npt.NDArray[np.uint32]] = {}

    def widen(self, values: Array) -> Floats:
        """Return floating-point values as float32; those of float16 have to be finite."""
        wide: Floats = self._buffer("widen", values.shape, np.float32)
        if values.dtype != np.float16:
            np.copyto(wide, values)
            return wide
        # Exponents are biased by 15 and by 127: 2.0**(127 - 15) makes up for it, and for subnormal numbers too.
        bits = wide.view(np.int32)
        np.copyto(bits, values.view(np.int16))
        bits <<= 13
        bits &= ~0x70000000
        wide *= np.float32(2.0**112)
        return wide

    def halved(self, values: Array) -> Floats:
        """Return values as float16 would hold them (nearest, ties to even), still as float32."""
        wide = self.widen(values)
        if values.dtype == np.float16:
            return wide
        if values.dtype != ml_dtypes.bfloat16:
            return self.to_float16_grid(wide)
        # bfloat16 has fewer bits: only what is finer than the smallest float16, 2**-24, is lost.
        wide *= np.float32(2.0**24)
        np.rint(wide, out=wide)
        wide *= np.float32(2.0**-24)
        return wide

    def repeated(self, factors: npt.NDArray[np.float64], rows: int) -> npt.NDArray[np.float64]:
        """Return the factors of :meth:`smoothed` for so many rows: numpy takes longer to repeat them every time."""
        return np.tile(factors, (rows, 1))

    def smoothed(self, values: Array, factors: npt.NDArray[np.float64]) -> Floats:
        """Return values times factors, of which all rows are alike, before and after in what float16 can hold."""
        return self.to_float16_grid(self.product(self.halved(values), factors))

    def smoothed_rows(self, values: Array, factors: npt.NDArray[np.float64]) -> tuple[Floats, Floats]:
        """Return what :meth:`smoothed` does, and the largest magnitude of each row of it."""
        result = self.smoothed(values, factors)
        return result, self.largest(result, axis=1)

    def product(self, values: Floats, factors: npt.NDArray[np.float64]) -> Floats:
        """Multiply values, in place, in float64."""
        # In three steps: numpy multiplies mixed types by way of small buffers, which takes twice as long.
        exact = self._buffer("product", values.shape, np.float64)
        np.copyto(exact, values)
        exact *= factors
        np.copyto(values, exact, casting="same_kind")
        return values

    def amax(self, values: Array, axis: int, *, name: str, path: Path) -> Floats:
        """Return the largest magnitudes along ``axis`` of the values of tensor ``name``; valid for good.

        Raises:
            InputError: There is NaN or infinity among them.
        """
        result = self.largest(values, axis)
        if not np.isfinite(result).all():
            hint = "the checkpoint is damaged: download it again"
            raise InputError(f"{name} holds NaN or infinity", path=path, hint=hint)
        return result

    def largest(self, values: Array, axis: int) -> Floats:
        """Return the largest magnitudes along ``axis``, NaN where there is one; valid for good."""
        # Without their sign bits, floating-point numbers are in the order of the integers with the same bits.
        bits = values.view(f"u{values.itemsize}")
        magnitudes = self._buffer("amax", values.shape, bits.dtype)
        np.bitwise_and(bits, bits.dtype.type((1 << (8 * values.itemsize - 1)) - 1), out=magnitudes)
        result: Floats = magnitudes.max(axis=axis).view(values.dtype).astype(np.float32)
        return result

    def to_float16_grid(self, values: Floats) -> Floats:
        """Round values, in place, to what float16 can hold (nearest, ties to even).

        Beyond 65504 the grid goes on, up to 2**100.
        """
        shift = self._buffer("shift", values.shape, np.uint32)
        np.bitwise_and(values.view(np.uint32), _EXPONENT, out=shift)
        self._shift(shift, smallest=-14, by=13)
        values += shift.view(np.float32)
        values -= shift.view(np.float32)
        return values

    def to_float8(self, values: Floats) -> Array:
        """Return finite values as E4M3 (nearest, ties to even), those beyond 448 as 448."""
        bits = values.view(np.uint32)
        magnitude = self._buffer("magnitude", values.shape, np.uint32)
        np.bitwise_and(bits, _MAGNITUDE, out=magnitude)
        np.minimum(magnitude, self._constant(_FP8_MAX_BITS, values.shape), out=magnitude)
        shift = self._buffer("shift", values.shape, np.uint32)
        np.bitwise_and(magnitude, _EXPONENT, out=shift)
        # Near 1.5 * 2**(e + 20) the unit of float32 is 2**(e - 3), which is E4M3's near 2**e: the sum is rounded to it,
        # and its lowest bits count units.
        self._shift(shift, smallest=-6, by=20)
        np.add(shift.view(np.float32), magnitude.view(np.float32), out=shift.view(np.float32))
        code, part = (self._buffer(name, values.shape, np.uint8) for name in ("code", "part"))
        np.copyto(code, shift, casting="unsafe")
        # The sum's exponent, 8 to each, and the bit of the half; from them to E4M3's exponent, biased by 7, with the
        # first 8 units: 8 * (e + 20 + 127) + 4 - 1132 = 8 * (e + 6), modulo 256.
        shift >>= np.uint32(20)
        np.copyto(part, shift, casting="unsafe")
        code += part
        code -= np.uint8(1132 % 256)
        np.right_shift(bits, np.uint32(24), out=magnitude)
        np.copyto(part, magnitude, casting="unsafe")
        part &= np.uint8(0x80)
        code |= part
        return code.view(ml_dtypes.float8_e4m3fn)

    def divided_to_float8(self, values: Array, divisors: Floats) -> Array:
        """Return finite rows, each divided by its own number, as :meth:`to_float8` does."""
        wide = self.widen(values)
        wide /= divisors[:, None]
        return self.to_float8(wide)

    def scaled_to_int8(self, values: Floats, factors: Floats, *, halves: bool = False) -> Int8s:
        """Return rows, each times its own number, as :meth:`to_int8` does; what becomes of ``values`` is open.

        With ``halves`` products are what float16 can hold before they are rounded.
        """
        values *= factors[:, None]
        if halves:
            values = self.to_float16_grid(values)
        return self.to_int8(values)

    def to_int8(self, values: Floats) -> Int8s:
        """Return values of at most 127.4 as integers (nearest, ties to even); what becomes of ``values`` is open."""
        np.rint(values, out=values)
        result: Int8s = self._buffer("int8", values.shape, np.int8)
        np.copyto(result, values, casting="unsafe")
        return result

    def weight_only(self, values: Array) -> tuple[Int8s, Array]:
        """Return finite rows as :func:`quantize_int8` does."""
        return quantize_int8(values)

    def interleaved(self, quantized: Int8s) -> Int8s:
        """Return rows in the order of tensor cores, two by two, as bytes that count from -128.

        Tiles of 64 columns are of the first and of the second row in turn; of each 16 columns of a tile the first 8
        and the last 8 take turns.
        """
        rows, columns = quantized.shape
        tiles = quantized.reshape(rows // 2, 2, columns // 64, 4, 2, 8).transpose(0, 2, 1, 3, 5, 4)
        laid: Int8s = (np.ascontiguousarray(tiles).view(np.uint8) ^ np.uint8(0x80)).view(np.int8)
        return laid.reshape(rows, columns)

    def _shift(self, exponents: npt.NDArray[np.uint32], *, smallest: int, by: int) -> None:
        """Make, in place, the bits of ``1.5 * 2**(e + by)`` of those of ``2**e``, with e at least ``smallest``."""
        least = self._constant(np.uint32((127 + smallest) << 23), exponents.shape)
        np.maximum(exponents, least, out=exponents)
        exponents += np.uint32((by << 23) | _HALF)

    def _constant(self, value: np.uint32, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
        """Return an array of one value: numpy's minimum and maximum are four times as fast with it as with a scalar."""
        size = math.prod(shape)
        if value not in self._constants or len(self._constants[value]) < size:
            self._constants[value] = np.full(size, value, np.uint32)
        return self._constants[value][:size].reshape(shape)

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return memory of the function ``name``."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if name not in self._buffers or len(self._buffers[name]) < size:
            self._buffers[name] = np.empty(size, np.uint8)
        return self._buffers[name][:size].view(dtype).reshape(shape)
