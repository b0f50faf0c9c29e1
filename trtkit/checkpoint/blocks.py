"""The rows of a target tensor, read from its sources in blocks that fit the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.catalog.architectures.architecture import Arrange
from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.safetensors import Array, TensorInfo


def row_blocks(
    sources: Sequence[TensorInfo], arrange: Arrange, config: ModelConfig
) -> Iterator[tuple[TensorInfo, Array]]:
    """Yield the target's rows in order, each block ``(rows, columns)`` with the source that it is from.

    Every row of a source is read once. A block is valid until the next one is asked for.
    """
    for source in sources:
        blocks = (
            source.panels()
            if arrange is Arrange.TRANSPOSED
            else source.rows(row_order(source.shape[0], arrange, config))
        )
        for block in blocks:
            yield source, block


def row_order(rows: int, arrange: Arrange, config: ModelConfig) -> list[range] | None:
    """Return the rows of a source in the order of the target's; None where it is the same."""
    if arrange is Arrange.SWAPPED:
        return [range(rows // 2, rows), range(rows // 2)]
    if arrange is Arrange.PER_GROUP:
        return list(_grouped(config))
    return None


def _grouped(config: ModelConfig) -> Iterator[range]:
    """Yield the rows of all query heads, then of all K, then of all V.

    With 8 query and 2 KV heads the source has ``q0 q1 q2 q3 k0 v0 q4 q5 q6 q7 k1 v1``.
    """
    size, queries = config.head_size, config.num_heads // config.num_kv_heads
    group = (queries + 2) * size
    for start, stop in ((0, queries), (queries, queries + 1), (queries + 1, queries + 2)):
        for first in range(0, config.num_kv_heads * group, group):
            yield range(first + start * size, first + stop * size)
