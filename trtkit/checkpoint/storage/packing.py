"""INT4 weights as tools pack them, read as codes from -8 to 7 in blocks of output rows.

All blocks but the last one have a multiple of 8 rows, so that pairs and quadruples of rows are never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import CHUNK_BYTES, PANEL_BYTES, Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError

Codes = npt.NDArray[np.int8]
Parts = Mapping[str, TensorInfo]

_IN_ORDER = (0, 1, 2, 3, 4, 5, 6, 7)
_ROWS = 8
_MIDDLE = 8
"""The code 0, in the unsigned form in which all but ModelOpt store it."""


class Packing(Protocol):
    """How one tool packs a layer."""

    def codes(self, parts: Parts) -> Iterator[Codes]:
        """Yield ``(rows, in)`` front to back."""

    def scales(self, parts: Parts) -> Array:
        """Return ``(out, groups)`` in the source's data type."""

    def zeros(self, parts: Parts) -> Codes | None:
        """Return the codes that stand for 0, ``(out, groups)``; None where that is always code 0."""


@dataclass(frozen=True)
class GptqPacking:
    """AutoGPTQ: ``qweight (in/8, out)``, ``qzeros (groups, out/8)`` and ``scales (groups, out)``; low nibbles first."""

    zero_offset: int = 1
    """What was subtracted from the zero points before they were stored: 1, or 0 in format ``gptq_v2``."""
    group_size: int = 128

    def codes(self, parts: Parts) -> Iterator[Codes]:
        """Transpose panel by panel.

        Raises:
            InputError: ``g_idx`` gives the columns other groups than their places do.
        """
        self._check_groups(parts)
        for panel in _panels(parts["qweight"]):
            yield _nibbles(panel, _IN_ORDER) - np.int8(_MIDDLE)

    def scales(self, parts: Parts) -> Array:
        """Transpose."""
        return parts["scales"].read().T

    def zeros(self, parts: Parts) -> Codes:
        """Add what was subtracted.

        Raises:
            InputError: A zero point is 0 or 16, depending on who reads it.
        """
        info = parts["qzeros"]
        stored = _nibbles(info.read(), _IN_ORDER)
        if self.zero_offset and (stored == 15).any():
            message = f"{info.name} holds 15, which some tools read as a zero point of 16 and others as 0"
            raise InputError(message, path=info.path, hint="save the model in the format gptq_v2")
        return (stored + np.int8(self.zero_offset - _MIDDLE)).T

    def _check_groups(self, parts: Parts) -> None:
        if "g_idx" not in parts:
            return
        info = parts["g_idx"]
        places = np.arange(info.shape[0]) // self.group_size
        if not np.array_equal(info.read(), places):
            message = f"{info.name} orders columns by activation, and engines know groups of neighbours only"
            raise InputError(message, path=info.path, hint="quantize again with desc_act: false")


@dataclass(frozen=True)
class AwqPacking:
    """AutoAWQ's GEMM form: ``qweight (in, out/8)``, ``qzeros (groups, out/8)`` and ``scales (groups, out)``."""

    # The nibbles of one int32, from the lowest, are output columns 0 2 4 6 1 3 5 7: column 1 is the fifth one.
    order: tuple[int, ...] = (0, 4, 1, 5, 2, 6, 3, 7)

    def codes(self, parts: Parts) -> Iterator[Codes]:
        """Transpose panel by panel."""
        for panel in _panels(parts["qweight"], unit=1):
            words = panel.view(np.uint32)
            rows = np.empty((len(panel), 8, panel.shape[1]), np.int8)
            for place, nibble in enumerate(self.order):
                rows[:, place] = (words >> np.uint32(4 * nibble)) & np.uint32(15)
            yield rows.reshape(-1, panel.shape[1]) - np.int8(_MIDDLE)

    def scales(self, parts: Parts) -> Array:
        """Transpose."""
        return parts["scales"].read().T

    def zeros(self, parts: Parts) -> Codes:
        """Unpack and transpose."""
        return (_nibbles(parts["qzeros"].read(), self.order) - np.int8(_MIDDLE)).T


@dataclass(frozen=True)
class CompressedPacking:
    """compressed-tensors: ``weight_packed (out, in/8)``, ``weight_scale (out, groups)``, low nibbles first.

    Asymmetric: ``weight_zero_point (out/8, groups)``, packed along the rows.
    """

    symmetric: bool = True

    def codes(self, parts: Parts) -> Iterator[Codes]:
        """Unpack row by row.

        Raises:
            InputError: ``weight_shape`` contradicts the packed weights.
        """
        _check_shape(parts)
        for block in _blocks(parts["weight_packed"]):
            yield _nibbles(block, _IN_ORDER) - np.int8(_MIDDLE)

    def scales(self, parts: Parts) -> Array:
        """Return them as they are."""
        return parts["weight_scale"].read()

    def zeros(self, parts: Parts) -> Codes | None:
        """Unpack along the rows."""
        if self.symmetric:
            return None
        packed = parts["weight_zero_point"].read()
        return (_nibbles(np.ascontiguousarray(packed.T), _IN_ORDER) - np.int8(_MIDDLE)).T


@dataclass(frozen=True)
class ModelOptPacking:
    """ModelOpt: ``weight (out/2, in)`` and ``weight_scale (out, groups)``.

    The even row is in the low nibble; codes are two's complement.
    """

    def codes(self, parts: Parts) -> Iterator[Codes]:
        """Take the pairs of rows apart."""
        for block in _blocks(parts["weight"]):
            pairs = block.view(np.int8)
            codes = np.empty((2 * len(pairs), pairs.shape[1]), np.int8)
            # Arithmetic shifts spread the sign of each half.
            np.right_shift(pairs << 4, 4, out=codes[0::2])
            np.right_shift(pairs, 4, out=codes[1::2])
            yield codes

    def scales(self, parts: Parts) -> Array:
        """Return them as they are."""
        return parts["weight_scale"].read()

    def zeros(self, parts: Parts) -> None:  # noqa: ARG002
        """Return nothing: it is symmetric."""
        return


def _nibbles(words: Array, order: Sequence[int]) -> Codes:
    """Return the 8 nibbles of each int32 along the last axis; the ``order[i]``-th lowest one comes ``i``-th."""
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    found = np.empty((*unsigned.shape, 8), np.int8)
    for place, nibble in enumerate(order):
        found[..., place] = (unsigned >> np.uint32(4 * nibble)) & np.uint32(15)
    return found.reshape(*unsigned.shape[:-1], -1)


def _panels(info: TensorInfo, unit: int = _ROWS) -> Iterator[Array]:
    """Yield the transposed matrix in blocks of a multiple of ``unit`` rows, whose codes stay in the cache."""
    row_bytes = info.shape[0] * numpy_dtype(info.dtype).itemsize
    panel_rows = max(unit, PANEL_BYTES // max(1, row_bytes) // unit * unit)
    # Every int32 becomes 8 codes of a byte each.
    rows = max(unit, CHUNK_BYTES // 2 // max(1, row_bytes) // unit * unit)
    for panel in info.panels(panel_rows * row_bytes):
        yield from (panel[start : start + rows] for start in range(0, len(panel), rows))


def _blocks(info: TensorInfo) -> Iterator[Array]:
    """Yield the rows in blocks of a multiple of 8."""
    row_bytes = info.shape[1] * numpy_dtype(info.dtype).itemsize
    rows = max(_ROWS, CHUNK_BYTES // 2 // max(1, row_bytes) // _ROWS * _ROWS)
    return info.rows(chunk_bytes=rows * row_bytes)


def _check_shape(parts: Parts) -> None:
    if "weight_shape" not in parts:
        return
    info, packed = parts["weight_shape"], parts["weight_packed"].shape
    if tuple(info.read().tolist()) != (packed[0], packed[1] * 8):
        message = (
            f"{info.name} says {info.read().tolist()}, the packed weights are {packed[0]} x {packed[1] * 8}"
        )
        raise InputError(message, path=info.path, hint="download the checkpoint again")
