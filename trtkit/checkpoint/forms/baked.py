"""INT4 weights in the layout of one GPU family: ``W4A16_GPTQ``, which loaders take as it is.

The rules are those of TensorRT-LLM's ``preprocess_weights_for_mixed_gemm``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

import numpy as np

from trtkit.checkpoint.forms.int4 import group_scales, group_zeros, rounded
from trtkit.checkpoint.forms.rows import Rows, layer_rows, whole
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.layout import Ranges, Shard
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array, numpy_dtype
from trtkit.checkpoint.storage.packing import Codes, Packing

_TILE = 64


class BakedLayout(str, enum.Enum):
    """Layouts of INT4 weights; each is the memory of a tensor that the engine declares as ``(in, out / 4)``."""

    INTERLEAVED = "interleaved"
    """SM 75 to 89: tiles of 4 output rows by 64 input columns, codes from 0 to 15."""
    TRANSPOSED = "transposed"
    """SM 90 with TensorRT-LLM 0.17: output rows one after another, two's complement."""

    @classmethod
    def of(cls, target_sm: int, trtllm_version: str | None) -> BakedLayout | None:
        """Return the layout of a GPU family; None where there is none that is known."""
        if 75 <= target_sm <= 89:
            return cls.INTERLEAVED
        is_0_17 = (trtllm_version or "").split(".")[:2] == ["0", "17"]
        return cls.TRANSPOSED if target_sm == 90 and is_0_17 else None

    def shard(self, weight: Shard) -> Shard:
        """Return the memory that belongs to a shard of the weight: each element holds 4 codes."""
        out, width = weight.axes
        if self is BakedLayout.TRANSPOSED:
            return Shard((weight.whole[0], weight.whole[1] // 4), (out, _divided(width, 4)))
        sizes = (weight.whole[0] // 4, weight.whole[1] // _TILE, _TILE)
        return Shard(sizes, (_divided(out, 4), _divided(width, _TILE), (range(_TILE),)))

    def bake(self, row: int, codes: Codes) -> tuple[int, Array]:
        """Return where the memory of ``codes``, rows from ``row`` on, begins, and its bytes in rows."""
        if self is BakedLayout.TRANSPOSED:
            return row, _halves(codes.view(np.uint8) & np.uint8(0xF))
        tiles = codes.shape[1] // _TILE
        return row // 4 * tiles, interleaved(codes)


def interleaved(codes: Codes) -> Array:
    """Return the bytes of tiles of 4 rows by 64 columns, ``(rows / 4 * columns / 64, 128)``.

    Of 32 columns those at 0 1 8 9 16 17 24 25 come first, for one lane of a tensor core reads them at once; then
    those at 2 3 10 11 ... The 8 codes of an int32 are then in the order 0 2 4 6 1 3 5 7. Together: column
    ``16 a + 8 b + c`` is in nibble ``b`` of byte ``2 c + a``.
    """
    rows, columns = codes.shape
    unsigned = (codes + np.int8(8)).view(np.uint8)
    split = unsigned.reshape(rows // 4, 4, columns // _TILE, 2, 2, 2, 8)
    packed = split[..., 0, :] | (split[..., 1, :] << 4)
    return packed.transpose(0, 2, 1, 3, 5, 4).reshape(-1, 4 * _TILE // 2)


def baked_int4(
    tensor: MappedTensor, layout: Layout, packing: Packing, baked: BakedLayout
) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of the layer is made."""
    first = tensor.sources[0]
    return {
        "weight": lambda: _weight(tensor, layout, packing, baked),
        "weights_scaling_factor": lambda: whole(
            np.ascontiguousarray(rounded(group_scales(tensor, layout, packing), layout, first).T)
        ),
        "zero": lambda: whole(group_zeros(tensor, layout, packing)),
    }


def _weight(tensor: MappedTensor, layout: Layout, packing: Packing, baked: BakedLayout) -> Rows:
    for row, codes in layer_rows(tensor, layout.config, lambda source: packing.codes(source.parts)):
        place, data = baked.bake(row, codes)
        yield place, data.view(numpy_dtype(layout.dtype))


def _halves(nibbles: Array) -> Array:
    packed: Array = nibbles[..., 0::2] | (nibbles[..., 1::2] << 4)
    return packed


def _divided(ranges: Ranges, by: int) -> Ranges:
    return tuple(range(piece.start // by, piece.stop // by) for piece in ranges)
