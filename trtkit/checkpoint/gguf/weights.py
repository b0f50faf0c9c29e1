"""The weights of GGUF files: dequantized, and in the order that llama.cpp took them from."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.gguf.file import GgufTensor
from trtkit.checkpoint.safetensors import CHUNK_BYTES, Array, TensorInfo


class Order(enum.Enum):
    """Where the elements of a Hugging Face tensor are in the GGUF file."""

    SAME = "in the same order"
    ROTATED = "both halves of each head's rows are interleaved: row 2 * i + half was half * head_size / 2 + i"
    GROUPED = "all query heads, then all of k, then v, where the source has them KV head by KV head"
    TRANSPOSED = "its rows are columns (Conv1D)"
    ROW = "a matrix of one row is a vector"


KINDS = frozenset({
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
})  # fmt: skip
"""Types that can be dequantized."""
_PLAIN = frozenset({"F32", "F16", "BF16"})
_EXACT = {"F32": "float32", "F16": "float16"}
"""Types that bfloat16 would round."""


def dtype_of(kind: str) -> str:
    """Return the type that a tensor is kept in: its own, and bfloat16 for a quantized one.

    That rounds by 2**-8 of a value at most, about as much as Q8_0, the finest of them, has rounded: by 1 / 254 of the
    largest value of a block.
    """
    return _EXACT.get(kind, "bfloat16")


@dataclass(frozen=True)
class Weight:
    """A Hugging Face tensor, and what it is made of."""

    name: str
    source: GgufTensor
    order: Order = Order.SAME
    expert: int | None = None
    """Which matrix of the source, where that holds one per expert."""
    plus: float = 0.0
    """Added to every element, in float32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that the tensor has in the source's checkpoint."""
        shape = self.source.shape if self.expert is None else self.source.shape[1:]
        if self.order is Order.TRANSPOSED:
            return shape[::-1]
        return (1, *shape) if self.order is Order.ROW and len(shape) == 1 else shape

    @property
    def is_readable(self) -> bool:
        """Return whether its type can be dequantized; vectors are never quantized."""
        return self.source.kind in (_PLAIN if len(self.source.shape) == 1 else KINDS)

    def blocks(self, model: ModelConfig) -> Iterator[Array]:
        """Yield the elements in order, in float32, some rows at a time."""
        blocks = self._panels() if self.order is Order.TRANSPOSED else self._rows(model)
        return (block + np.float32(self.plus) for block in blocks) if self.plus else blocks

    def _rows(self, model: ModelConfig) -> Iterator[Array]:
        raw, head = self.source.raw, model.head_size
        rows = range(raw.shape[0])
        if self.expert is not None:
            count = self.source.shape[1]
            rows = range(self.expert * count, (self.expert + 1) * count)
        if self.order is Order.ROTATED:
            heads = _split(rows, head)
            for block in _dequantized(raw, self.source.kind, heads, head):
                yield block.reshape(head // 2, 2, -1).swapaxes(0, 1).reshape(block.shape)
            return
        ranges = _grouped(rows, model) if self.order is Order.GROUPED else [rows]
        # float32 takes up to 16 times as much as what is read
        columns = self.source.shape[-1] if len(self.source.shape) > 1 else 1
        yield from _dequantized(raw, self.source.kind, ranges, max(1, CHUNK_BYTES // (4 * columns)))

    def _panels(self) -> Iterator[Array]:
        """Yield the rows of the transposed matrix: columns of whole quantization blocks."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        raw = self.source.raw
        count, row_bytes = raw.shape
        _, unit = GGML_QUANT_SIZES[GGMLQuantizationType[self.source.kind]]
        step = max(1, CHUNK_BYTES // (count * unit)) * unit
        matrix = np.memmap(raw.path, np.uint8, "r", raw.offset, raw.shape)
        for start in range(0, row_bytes, step):
            yield dequantize(np.ascontiguousarray(matrix[:, start : start + step]), self.source.kind).T


def dequantize(rows: Array, kind: str) -> Array:
    """Return bytes in rows as rows of float32."""
    from gguf import quants
    from gguf.constants import GGMLQuantizationType

    with np.errstate(all="ignore"):  # values that are not finite are reported where they are written
        values: Array = quants.dequantize(rows, GGMLQuantizationType[kind])
    return values


def read_vector(tensor: GgufTensor) -> Array:
    """Return a vector as a whole, in float32."""
    return np.concatenate([dequantize(block, tensor.kind) for block in tensor.raw.rows()]).reshape(-1)


def _dequantized(raw: TensorInfo, kind: str, ranges: Iterable[range], step: int) -> Iterator[Array]:
    for block in raw.rows(ranges, chunk_bytes=step * raw.shape[1]):
        yield dequantize(block, kind)


def _split(rows: range, size: int) -> list[range]:
    return [range(start, start + size) for start in range(rows.start, rows.stop, size)]


def _grouped(rows: range, model: ModelConfig) -> Sequence[range]:
    """Return, KV head by KV head, the rows of its query heads, of k and of v."""
    size, per_group = model.head_size, model.num_heads // model.num_kv_heads
    heads = _split(rows, size)
    queries, keys = model.num_heads, model.num_kv_heads
    return [
        head
        for group in range(keys)
        for head in (
            *heads[group * per_group : (group + 1) * per_group],
            heads[queries + group],
            heads[queries + keys + group],
        )
    ]
