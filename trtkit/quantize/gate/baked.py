"""Weights out of the layout of one family of GPUs: the way back of what ``--target-sm`` writes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import Array
from trtkit.errors import InputError

Codes = npt.NDArray[np.int8]
_TILE = 64
_LANES = np.arange(32).reshape(4, 4, 2).transpose(1, 0, 2).reshape(-1)
_REGISTER = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def unbaked_int8(weight: Array, layout: str) -> Codes:
    """Return the codes ``(out, in)`` of a weight that is declared as ``(in, out)``.

    Raises:
        InputError: The layout is not known.
    """
    columns, rows = weight.shape
    if layout == "transposed":
        return weight.reshape(rows, columns)
    _check(layout)
    laid = (weight.view(np.uint8) ^ np.uint8(0x80)).view(np.int8)
    tiles = laid.reshape(rows // 2, columns // _TILE, 2, 4, 8, 2).transpose(0, 2, 1, 3, 5, 4)
    return np.ascontiguousarray(tiles).reshape(rows, columns)


def unbaked_int4(weight: Array, layout: str) -> Codes:
    """Return the codes ``(out, in)``, from -8 to 7, of a weight that is declared as ``(in, out / 4)``.

    Raises:
        InputError: The layout is not known.
    """
    columns, rows = weight.shape[0], weight.shape[1] * 4
    packed = np.ascontiguousarray(weight).view(np.uint8).reshape(-1)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1)
    if layout == "transposed":
        signed: Codes = (nibbles.astype(np.int8) ^ np.int8(8)) - np.int8(8)
        return signed.reshape(rows, columns)
    _check(layout)
    straight = np.empty((nibbles.size // 8, 8), np.uint8)
    straight[:, _REGISTER] = nibbles.reshape(-1, 8)
    tiles = straight.reshape(rows // 4, columns // _TILE, 4, _TILE).transpose(0, 2, 1, 3)
    lanes = np.empty((rows, columns // 32, 32), np.uint8)
    lanes[:, :, _LANES] = tiles.reshape(rows, columns // 32, 32)
    codes: Codes = lanes.reshape(rows, columns).astype(np.int8) - np.int8(8)
    return codes


def _check(layout: str) -> None:
    if layout != "interleaved":
        raise InputError(f"the layout {layout!r} of weights is not known", hint="convert for no --target-sm")
