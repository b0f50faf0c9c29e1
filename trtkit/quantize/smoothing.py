"""Smoothing: moves outliers of activations into the weights, ``(x / s) (W * s) = x W`` channel by channel.

``s = max(amax(x)**alpha / max(amax(W), 1e-5)**(1 - alpha), 1e-5)``, in float64, where W are all layers that read x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.kernels import Floats, Kernels
from trtkit.checkpoint.safetensors import Array, TensorInfo, numpy_dtype
from trtkit.errors import InputError
from trtkit.quantize.linear import Block, Linear, block_amax, block_rows

Alphas = Mapping[str, float]
"""Alpha by the name that layers have inside of a decoder layer, of those that share an input the first one."""
Doubles = npt.NDArray[np.float64]
_SMALLEST = 1e-5
_NORMAL = 2.0**-14
"""The smallest number that float16 holds in full."""
_NOTHING = 1e-30
"""Magnitudes up to this are zero: 127 / 1e-30 is a float32, 127 / 1e-37 is not."""


class SmoothingError(InputError):
    """What an alpha makes of the weights cannot be written; another one may do."""


def smoother(inputs: Floats, weights: Floats, alpha: float) -> Doubles:
    """Return ``s`` from the largest magnitudes of each input channel, of activations and of weights.

    A channel that was never seen stays as it is: 1e-5 would blow up whatever comes through it one day.
    """
    floor = np.maximum(weights.astype(np.float64), _SMALLEST)
    scale = np.maximum(inputs.astype(np.float64) ** alpha / floor ** (1 - alpha), _SMALLEST)
    return np.where(inputs > 0, scale, 1.0)


def alpha_of(alpha: float | Alphas, name: str) -> float:
    """Return the alpha of a layer."""
    return alpha[name.replace(".gate", ".fc")] if isinstance(alpha, Mapping) else alpha


def check_divided(before: Floats, after: Floats, info: TensorInfo, dtype: str) -> None:
    """Refuse smoothing that makes nothing of a norm's weights, or more than ``dtype`` holds.

    Small ones are coarse anyway: float16 holds them in full from 2**-14.

    Raises:
        SmoothingError: It does.
    """
    if ((np.abs(before) >= _NORMAL) & (after == 0)).any():
        message = f"smoothing makes weights of {info.name} zero: the ranges of what follows it are too large"
        raise SmoothingError(message, path=info.path, hint="use a smaller alpha, or record the ranges again")
    limit = float(ml_dtypes.finfo(numpy_dtype(dtype)).max)
    if (np.abs(after) > limit).any():
        message = (
            f"smoothing makes weights of {info.name} {np.abs(after).max():g}, and {dtype} ends at {limit:g}"
        )
        raise SmoothingError(message, path=info.path, hint="use a smaller alpha, or convert to bfloat16")


def column_amax(kernels: Kernels, linears: Sequence[Linear]) -> Floats:
    """Return the largest magnitude of each column of layers that read the same input; reads all of them."""
    largest = np.zeros(linears[0].tensor.target.shape[-1], np.float32)
    for linear in linears:
        for block in linear.blocks():
            np.maximum(largest, block_amax(kernels, block, 0), out=largest)
    return largest


@dataclass(frozen=True)
class Smoothed:
    """Weights times ``s``, before and after in what float16 can hold: TensorRT-LLM's converter computes in that."""

    kernels: Kernels
    scale: Doubles
    """``s`` for each row of a block."""

    @classmethod
    def by(cls, scale: Doubles, kernels: Kernels) -> Smoothed:
        """Smooth by ``s``."""
        return cls(kernels, kernels.repeated(scale, block_rows(len(scale))))

    def __call__(self, block: Block) -> tuple[Floats, Floats]:
        """Return a block of them, and the largest magnitude of each row.

        Raises:
            SmoothingError: Smoothing has made infinity of one.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            values, largest = self.kernels.smoothed_rows(block.values, self.scale[: len(block.values)])
        return values, _finite(largest, block)


def row_amax(kernels: Kernels, values: Floats, block: Block) -> Floats:
    """Return the largest magnitude of each row of smoothed values of a block.

    Raises:
        SmoothingError: Smoothing has made infinity of one.
    """
    return _finite(kernels.largest(values, axis=1), block)


def _finite(largest: Floats, block: Block) -> Floats:
    if not np.isfinite(largest).all():
        source, hint = block.source, "use a smaller alpha, or look for outliers in the ranges"
        raise SmoothingError(
            f"smoothing makes weights of {source.name} infinite", path=source.path, hint=hint
        )
    return largest


def steps(largest: Floats) -> tuple[Floats, Floats]:
    """Return how many int8 steps there are to 1, and the size of a step, for rows of the ``largest`` magnitudes.

    They are divided in float16, as by TensorRT-LLM's converter, but where that cannot hold them (rows below 0.002, for
    which it writes a scale of zero). Rows of zeros get steps of 1, and so do those that float32 cannot divide by.
    """
    filled = np.where(largest > _NOTHING, largest, np.float32(127))
    count, size = _steps(filled)
    with np.errstate(over="ignore", divide="ignore"):
        halves = [
            each.astype(np.float32)
            for each in (filled.astype(np.float16), *_steps(filled.astype(np.float16)))
        ]
    held = np.isfinite(halves).all(axis=0) & (halves[2] > 0)
    return np.where(held, halves[1], count), np.where(held, halves[2], size)


def _steps(largest: Array) -> tuple[Array, Array]:
    one, top = largest.dtype.type(1), largest.dtype.type(127)
    # PyTorch divides a number by a tensor as the reciprocal times the number.
    count = one / largest * top
    return count, one / count
