"""FP8 with one scale for a layer's weights and one for its input: ``FP8``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.forms.rows import Rows, layer_rows, whole
from trtkit.checkpoint.forms.scales import one, read_scale
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.storage.storage import WEIGHT, Stored
from trtkit.errors import InputError

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_NAN = 0x7F
"""Bits of NaN but for the sign; there is no infinity."""


def per_tensor(tensor: MappedTensor, layout: Layout) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of the layer is made.

    Q, K and V are one layer in the engine: they get the largest of their scales, and those with a smaller one are
    rounded again.
    """
    return {
        "weight": lambda: layer_rows(tensor, layout.config, _requantized(tensor)),
        "weights_scaling_factor": lambda: whole(one(_largest(tensor, "weight_scale"))),
        "activation_scaling_factor": lambda: whole(one(_largest(tensor, "input_scale"))),
    }


def _largest(tensor: MappedTensor, key: str) -> np.float32:
    return max(read_scale(source, key).reshape(-1)[0] for source in tensor.sources)


def _requantized(tensor: MappedTensor) -> Callable[[Stored], Iterator[Array]]:
    merged = _largest(tensor, "weight_scale")

    def blocks(source: Stored) -> Iterator[Array]:
        table = rescaling(read_scale(source, "weight_scale").reshape(-1)[0], merged)
        for block in fp8_blocks(source):
            yield table[block.view(np.uint8)]

    return blocks


def rescaling(scale: np.float32, merged: np.float32) -> npt.NDArray[np.generic]:
    """Return the FP8 value that stands with ``merged`` for what each of the 256 stands for with ``scale``.

    As ``merged`` is not the smaller one, nothing gets larger than 448.
    """
    values = np.arange(256, dtype=np.uint8).view(_FLOAT8).astype(np.float32)
    return (values * scale / merged).astype(_FLOAT8)


def fp8_blocks(source: Stored) -> Iterator[Array]:
    """Yield the rows of FP8 weights.

    Raises:
        InputError: There is a NaN among them.
    """
    info = source.parts[WEIGHT]
    for block in info.rows():
        if ((block.view(np.uint8) & _NAN) == _NAN).any():
            hint = "the checkpoint is damaged: download it again"
            raise InputError(f"{info.name} holds NaN", path=info.path, hint=hint)
        yield block
