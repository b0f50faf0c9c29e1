"""Whole tensors of a TensorRT-LLM checkpoint, put together again from what its ranks hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from trtkit.checkpoint.jobs import Target
from trtkit.checkpoint.layout import Shard
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.errors import InputError

Places = tuple[slice, ...]


def read_whole(checkpoint: TrtllmCheckpoint, target: Target) -> Array:
    """Return a tensor whole.

    Raises:
        InputError: Ranks that should hold the same elements hold different ones.
    """
    parts = [checkpoint.tensor(target.name, rank) for rank in ranks_of(target)]
    return assemble(parts, target, folder=checkpoint.folder)


def ranks_of(target: Target) -> range:
    """Return the ranks that hold a part of it."""
    return range(target.stage * len(target.shards), (target.stage + 1) * len(target.shards))


def assemble(parts: Sequence[Array], target: Target, *, folder: Path) -> Array:
    """Return the whole of what each rank of the target's stage holds.

    Raises:
        InputError: Ranks that should hold the same elements hold different ones.
    """
    if len(parts) == 1:
        return parts[0]
    whole = np.empty(target.shards[0].whole, parts[0].dtype)
    for part, shard in zip(parts, target.shards, strict=True):
        for place, own in _places(shard):
            whole[place] = part[own]
    for rank, part, shard in zip(ranks_of(target), parts, target.shards, strict=True):
        if any(not _same(whole[place], part[own]) for place, own in _places(shard)):
            message = f"{target.name} of rank {rank} contradicts that of another rank"
            raise InputError(message, path=folder, hint="convert the source again")
    return whole


def _places(shard: Shard) -> Iterator[tuple[Places, Places]]:
    """Yield where blocks of a rank's tensor lie in the whole one and in its own; padding is in none of them."""
    axes = []
    for ranges, size in zip(shard.axes, shard.whole, strict=True):
        starts = itertools.accumulate((len(piece) for piece in ranges), initial=0)
        axes.append(
            [
                (
                    slice(piece.start, min(piece.stop, size)),
                    slice(start, start + min(piece.stop, size) - piece.start),
                )
                for piece, start in zip(ranges, starts, strict=False)
                if piece.start < size
            ]
        )
    for pairs in itertools.product(*axes):
        yield tuple(place for place, _ in pairs), tuple(own for _, own in pairs)


def _same(one: Array, other: Array) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()
