"""FP8 with one scale for a layer's weights and one for its input: ``FP8``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

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

_ONE_SCALE = (
    "quantize again with one scale for layers that are joined (Q, K and V), or with scales per channel"
)
_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_SUBNORMAL = 448 * 2**6
"""The largest FP8 value by the smallest one with all 3 bits behind the leading one, 2**-6."""
_NAN = 0x7F
"""Bits of NaN but for the sign; there is no infinity."""


def per_tensor(tensor: MappedTensor, layout: Layout) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of the layer is made.

    Sources that are one layer in the engine (Q, K and V; two branches of an expert) get the largest of their scales,
    and those with a smaller one are rounded again. Experts share the scale of what goes in.
    """
    return {
        "weight": lambda: layer_rows(tensor, layout.config, _requantized(tensor)),
        "weights_scaling_factor": lambda: whole(
            np.array([_largest(group, "weight_scale") for group in _layers(tensor)], np.float32)
        ),
        "activation_scaling_factor": lambda: whole(one(_largest(tensor.sources, "input_scale"))),
    }


def _layers(tensor: MappedTensor) -> list[Sequence[Stored]]:
    """Return the sources of each expert; all together where there are none."""
    count = tensor.target.shape[0] if tensor.target.rule.per_expert else 1
    size = len(tensor.sources) // count
    return [tensor.sources[start : start + size] for start in range(0, len(tensor.sources), size)]


def _largest(sources: Sequence[Stored], key: str) -> np.float32:
    return max(read_scale(source, key).reshape(-1)[0] for source in sources)


def _requantized(tensor: MappedTensor) -> Callable[[Stored], Iterator[Array]]:
    merged = {source.name: _largest(group, "weight_scale") for group in _layers(tensor) for source in group}

    def blocks(source: Stored) -> Iterator[Array]:
        scale = read_scale(source, "weight_scale").reshape(-1)[0]
        if float(merged[source.name]) / float(scale) > _SUBNORMAL:
            info = source.parts["weight_scale"]
            message = f"{info.name} is {scale:g}, and its layer has one scale of {merged[source.name]:g} in the engine"
            raise InputError(f"{message}: too little would be left", path=info.path, hint=_ONE_SCALE)
        table = rescaling(scale, merged[source.name])
        for block in fp8_blocks(source):
            yield block if scale == merged[source.name] else table[block.view(np.uint8)]

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
