"""Smoothing: moves outliers of activations into the weights, ``(x / s) (W * s) = x W`` channel by channel.

``s = max(amax(x)**alpha / max(amax(W), 1e-5)**(1 - alpha), 1e-5)``, in float64, where W are all layers that read x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.kernels import Floats, Kernels
from trtkit.checkpoint.safetensors import Array
from trtkit.errors import InputError
from trtkit.quantize.linear import Block, Linear, block_amax

Doubles = npt.NDArray[np.float64]
_SMALLEST = 1e-5
_NOTHING = 1e-30
"""Magnitudes up to this are zero: 127 / 1e-30 is a float32, 127 / 1e-37 is not."""


def smoother(inputs: Floats, weights: Floats, alpha: float) -> Doubles:
    """Return ``s`` from the largest magnitudes of each input channel, of activations and of weights.

    A channel that was never seen stays as it is: 1e-5 would blow up whatever comes through it one day.
    """
    floor = np.maximum(weights.astype(np.float64), _SMALLEST)
    scale = np.maximum(inputs.astype(np.float64) ** alpha / floor ** (1 - alpha), _SMALLEST)
    return np.where(inputs > 0, scale, 1.0)


def column_amax(kernels: Kernels, linears: Sequence[Linear]) -> Floats:
    """Return the largest magnitude of each column of layers that read the same input; reads all of them."""
    largest = np.zeros(linears[0].tensor.target.shape[-1], np.float32)
    for linear in linears:
        for block in linear.blocks():
            np.maximum(largest, block_amax(kernels, block, 0), out=largest)
    return largest


@dataclass(frozen=True)
class Smoothed:
    """Weights times ``s``.

    TensorRT-LLM's converter computes in the data type of the source. For float16 that is done here too, bit for bit;
    bfloat16 has 8 bits, too few for what int8 is made of, and becomes float32.
    """

    kernels: Kernels
    scale: Doubles
    half: bool

    def __call__(self, block: Block) -> Floats:
        """Return a block of them."""
        values = self.kernels.widen(block.values)
        if self.half:
            return self.kernels.to_float16_grid((values * self.scale).astype(np.float32))
        with np.errstate(over="ignore"):  # row_amax refuses it by name
            values *= self.scale.astype(np.float32)
        return values


def row_amax(values: Floats, block: Block) -> Floats:
    """Return the largest magnitude of each row of smoothed values of a block.

    Raises:
        InputError: Smoothing has made infinity of one.
    """
    largest: Floats = np.maximum(values.max(axis=1), -values.min(axis=1))
    if not np.isfinite(largest).all():
        source, hint = block.source, "use a smaller alpha, or look for outliers in the ranges"
        raise InputError(f"smoothing makes weights of {source.name} infinite", path=source.path, hint=hint)
    return largest


def is_half(linears: Sequence[Linear]) -> bool:
    """Return whether all sources are float16."""
    return all(source.dtype == "float16" for linear in linears for source in linear.tensor.plain)


def steps(largest: Floats, *, half: bool) -> tuple[Floats, Floats]:
    """Return how many int8 steps there are to 1, and the size of a step, for rows of the ``largest`` magnitudes.

    Rows of zeros, and of less than float32 can divide by, get steps of 1 and become zeros. With ``half`` the three
    divisions are float16's, as in TensorRT-LLM's converter, but for rows whose steps float16 cannot hold (below 0.002,
    where that writes a scale of zero).
    """
    filled = np.where(largest > _NOTHING, largest, np.float32(127))
    count, size = _steps(filled)
    if half:
        with np.errstate(over="ignore", divide="ignore"):
            halves = [each.astype(np.float32) for each in _steps(filled.astype(np.float16))]
        held = np.isfinite(halves[0]) & (halves[1] > 0) & np.isfinite(filled.astype(np.float16))
        count, size = np.where(held, halves[0], count), np.where(held, halves[1], size)
    return count, size


def _steps(largest: Array) -> tuple[Array, Array]:
    one, top = largest.dtype.type(1), largest.dtype.type(127)
    # PyTorch divides a number by a tensor as the reciprocal times the number.
    count = one / largest * top
    return count, one / count
