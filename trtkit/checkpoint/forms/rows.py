"""Rows of a quantized layer's parts: read from its sources, put where the target has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.blocks import row_order
from trtkit.checkpoint.jobs import Piece, Target
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.storage.storage import Stored

Rows = Iterator[tuple[int, Array]]
"""Rows of the whole target, and the number of the first one."""


@dataclass(frozen=True)
class Made:
    """Makes one target of what a function yields."""

    target: Target
    rows: Callable[[], Rows]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The one tensor."""
        return (self.target,)

    def run(self) -> Iterator[Piece]:
        """Yield the function's rows.

        Raises:
            InputError: The source holds what no engine can honour.
        """
        for row, block in self.rows():
            yield self.target, row, block


def whole(values: Array) -> Rows:
    """Yield a tensor at once; a vector as the rows of one column."""
    yield 0, values if values.ndim > 1 else values.reshape(-1, 1)


def layer_rows(
    tensor: MappedTensor, config: ModelConfig, blocks: Callable[[Stored], Iterable[Array]]
) -> Rows:
    """Yield the blocks of every source where the target has them."""
    start = 0
    for source in tensor.sources:
        count = source.shape[0]
        order = row_order(count, tensor.target.rule.arrange, config) or [range(count)]
        yield from placed(blocks(source), order, start)
        start += count


def layer_array(tensor: MappedTensor, config: ModelConfig, read: Callable[[Stored], Array]) -> Array:
    """Return what ``read`` gives for every source, ``(out, ...)``, in the order of the target's rows."""
    arrays = []
    for source in tensor.sources:
        values, order = read(source), row_order(source.shape[0], tensor.target.rule.arrange, config)
        arrays += [values] if order is None else [values[part.start : part.stop] for part in order]
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def placed(blocks: Iterable[Array], order: list[range], start: int) -> Rows:
    """Yield consecutive blocks of a source, cut and moved: its rows come in ``order`` from ``start`` on."""
    first = 0
    for block in blocks:
        target = start
        for part in order:
            low, high = max(first, part.start), min(first + len(block), part.stop)
            if low < high:
                yield target + low - part.start, block[low - first : high - first]
            target += len(part)
        first += len(block)
