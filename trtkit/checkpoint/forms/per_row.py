"""FP8 and INT8 with one scale per output row and activations quantized token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from trtkit.checkpoint.forms.per_tensor import fp8_blocks
from trtkit.checkpoint.forms.rows import Rows, layer_array, layer_rows, whole
from trtkit.checkpoint.forms.scales import Floats, read_scale
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.storage.storage import WEIGHT, Stored


def fp8_rows(tensor: MappedTensor, layout: Layout) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of an ``FP8_PER_CHANNEL_PER_TOKEN`` layer is made."""
    return {
        "weight": lambda: layer_rows(tensor, layout.config, fp8_blocks),
        "per_channel_scale": lambda: whole(_row_scales(tensor, layout)),
    }


def int8_rows(tensor: MappedTensor, layout: Layout) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of a ``W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN`` layer is made.

    Nothing was smoothed, or the weights and norms of the source are what came of it: the engine divides by 1.
    """
    return {
        "weight": lambda: layer_rows(tensor, layout.config, _int8_blocks),
        "per_channel_scale": lambda: whole(_row_scales(tensor, layout).reshape(1, -1)),
        "smoother": lambda: whole(np.ones((1, tensor.target.shape[-1]), np.float32)),
    }


def _row_scales(tensor: MappedTensor, layout: Layout) -> Floats:
    return layer_array(tensor, layout.config, _scales_of)


def _scales_of(source: Stored) -> Array:
    """Return one scale per row, also where one stands for all of them."""
    return np.broadcast_to(read_scale(source, "weight_scale").reshape(-1), (source.shape[0],))


def _int8_blocks(source: Stored) -> Iterator[Array]:
    return source.parts[WEIGHT].rows()
