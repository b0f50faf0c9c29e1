"""The weight files of all ranks, written at once: every piece goes to the ranks that hold some of it."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from trtkit.checkpoint.jobs import Target
from trtkit.checkpoint.layout import Shard
from trtkit.checkpoint.safetensors import Array, SafetensorsWriter, TensorSpec, numpy_dtype
from trtkit.conventions import rank_file

if TYPE_CHECKING:
    from typing_extensions import Self


class RankFiles:
    """``rank0.safetensors`` and its siblings in ``folder``."""

    def __init__(self, folder: Path, targets: Iterable[Target], *, tp: int) -> None:
        self._targets = tuple(targets)
        self._tp = tp
        specs: dict[int, list[TensorSpec]] = defaultdict(list)
        for target in self._targets:
            for tp_rank, shape in enumerate(target.declared):
                specs[target.stage * tp + tp_rank].append(TensorSpec(target.name, target.dtype, shape))
        self._writers = {
            rank: SafetensorsWriter(folder / rank_file(rank), specs[rank], rank_metadata(rank, len(specs)))
            for rank in specs
        }
        self._stack = ExitStack()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of all ranks."""
        return sum(writer.nbytes for writer in self._writers.values())

    def __enter__(self) -> Self:
        """Create the files."""
        for writer in self._writers.values():
            self._stack.enter_context(writer)
        for target in self._targets:
            for rank, shard in self._ranks(target):
                self._writers[rank].leave_zero(target.name, _padding_bytes(target, shard))
        return self

    def scatter(self, target: Target, row: int, block: Array) -> int:
        """Write the rows that begin at ``row`` of the whole tensor; return how many bytes that were."""
        return sum(
            _put(self._writers[rank], target.name, shard, row, block) for rank, shard in self._ranks(target)
        )

    def _ranks(self, target: Target) -> list[tuple[int, Shard]]:
        return [(target.stage * self._tp + tp_rank, shard) for tp_rank, shard in enumerate(target.shards)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush to disk; a file with a tensor missing is an error."""
        self._stack.__exit__(kind, error, trace)


def rank_metadata(rank: int, world: int) -> dict[str, str]:
    """Return what a file says about its place: the shapes of all ranks may be the same."""
    return {"rank": str(rank), "world_size": str(world)}


def _put(writer: SafetensorsWriter, name: str, shard: Shard, row: int, block: Array) -> int:
    written, end = 0, row + len(block)
    width_bytes = (shard.shape[-1] if len(shard.shape) > 1 else 1) * block.itemsize
    for span in shard.spans[max(0, bisect_right(shard.spans, row, key=lambda span: span.start) - 1) :]:
        if span.start >= end:
            break
        first, last = max(row, span.start), min(end, span.stop)
        if first < last:
            rows = _columns(block[first - row : last - row], shard)
            written += writer.put(name, (span.local + first - span.start) * width_bytes, rows)
    return written


def _columns(rows: Array, shard: Shard) -> Array:
    if shard.columns is None:
        return rows
    pieces = [rows[:, piece.start : piece.stop] for piece in shard.columns]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


def _padding_bytes(target: Target, shard: Shard) -> int:
    held = sum(span.stop - span.start for span in shard.spans)
    width = shard.shape[-1] if len(shard.shape) > 1 else 1
    rows = 1
    for size in shard.shape[: max(1, len(shard.shape) - 1)]:
        rows *= size
    return (rows - held) * width * numpy_dtype(target.dtype).itemsize
