"""The tensors of an exported folder, each with where its elements come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.schemes import Axis, Part
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array, TensorInfo, TensorSpec, numpy_dtype
from trtkit.errors import InputError

_ROWS_PER_ENTRY = {Axis.OUT: 1, Axis.OUT_PAIRS: 2}
"""Axes that go with the rows of the weight, and how many of these an entry stands for."""


@dataclass(frozen=True)
class HfTensor:
    """A tensor to write."""

    spec: TensorSpec
    read: Callable[[], Iterable[Array]]
    """Gives its elements front to back; a piece is valid until the next one is asked for."""


@dataclass(frozen=True)
class _Place:
    """Where one source of a linear layer lies in the joined one."""

    expert: int | None
    """Which one, in layers that have some."""
    rows: tuple[range, ...]
    """Rows of the joined layer (of that expert), in the order of the source."""


def split_part(
    tensor: MappedTensor, part: Part, info: TensorInfo, config: ModelConfig, *, suffix: str, dtype: str | None
) -> Iterator[HfTensor]:
    """Yield what each source has of one part of a joined linear layer; what belongs to the whole layer goes to all.

    Args:
        tensor: The layer.
        part: Which of its tensors.
        info: That tensor in the TensorRT-LLM checkpoint.
        config: Says how heads are arranged.
        suffix: What takes the place of ``weight`` in the names.
        dtype: How the same bytes are called here; None for the checkpoint's own data type.
    """
    for source, place in zip(tensor.sources, _places(tensor, config), strict=True):
        shape, rows, table = _cut(part, info, place)
        spec = TensorSpec(source.name.removesuffix("weight") + suffix, dtype or info.dtype, shape)
        yield HfTensor(spec, _reader(table, rows, spec.dtype))


def _reader(table: TensorInfo, rows: tuple[range, ...], dtype: str) -> Callable[[], Iterable[Array]]:
    return lambda: (block.view(numpy_dtype(dtype)) for block in table.rows(rows))


def _cut(
    part: Part, info: TensorInfo, place: _Place
) -> tuple[tuple[int, ...], tuple[range, ...], TensorInfo]:
    """Return the shape of a source's piece, its rows, and the tensor as the table that these rows are of."""
    by_expert = part.axes[0] is Axis.EXPERTS and place.expert is not None
    axes = tuple(axis for axis in part.axes if axis is not Axis.EXPERTS)
    inner = info.shape[1:] if by_expert else info.shape
    if axes[0] in _ROWS_PER_ENTRY:
        rows = _entries(place.rows, _ROWS_PER_ENTRY[axes[0]], info)
        shape = (sum(map(len, rows)), *inner[1:])
    else:
        rows = (range(inner[0]),)
        shape = () if axes == (Axis.ONE,) else inner
    first = place.expert * inner[0] if by_expert and place.expert is not None else 0
    table = replace(info, shape=(math.prod(info.shape) // math.prod(inner[1:]), math.prod(inner[1:])))
    return shape, tuple(range(row.start + first, row.stop + first) for row in rows), table


def _entries(rows: tuple[range, ...], per: int, info: TensorInfo) -> tuple[range, ...]:
    if any(edge % per for row in rows for edge in (row.start, row.stop)):
        hint = "export without packed weights: weights fp8, or none"
        raise InputError(f"{info.name} packs rows of two layers into one byte", path=info.path, hint=hint)
    return tuple(range(row.start // per, row.stop // per) for row in rows)


def _places(tensor: MappedTensor, config: ModelConfig) -> Iterator[_Place]:
    rule = tensor.target.rule
    if rule.arrange is Arrange.TRANSPOSED:
        message = f"{tensor.target.name} cannot be exported: no program reads a quantized Conv1D"
        raise InputError(message, hint="export with weights none")
    joined, start = len(rule.sources), 0
    for index, source in enumerate(tensor.sources):
        expert, member = divmod(index, joined)
        start = start if member else 0
        stop = start + source.shape[0]
        rows = tuple(source_order(range(start, stop), rule.arrange, config))
        yield _Place(expert if rule.per_expert else None, rows)
        start = stop


def source_order(rows: range, arrange: Arrange, config: ModelConfig) -> list[range]:
    """Return the target's rows in the order in which the source has them."""
    placed, position = [], rows.start
    for piece in row_order(len(rows), arrange, config) or [range(len(rows))]:
        placed.append((piece.start, range(position, position + len(piece))))
        position += len(piece)
    return [target for _, target in sorted(placed, key=lambda pair: pair[0])]
