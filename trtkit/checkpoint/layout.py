"""Which part of a whole tensor each rank of tensor parallelism holds.

A tensor is cut along its axes: on each axis a rank holds some ranges, in order. A range that reaches beyond the end
of the axis stands for zeros (the padded vocabulary).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from trtkit.catalog.architectures.architecture import Split, TensorRule
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.schemes import Axis

Ranges = tuple[range, ...]


@dataclass(frozen=True)
class Span:
    """Consecutive rows of the whole tensor, and where they begin in the rank's own."""

    start: int
    stop: int
    local: int


@dataclass(frozen=True)
class Shard:
    """One rank's part of a tensor of ``whole`` shape."""

    whole: tuple[int, ...]
    axes: tuple[Ranges, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the rank's tensor."""
        return tuple(sum(piece.stop - piece.start for piece in ranges) for ranges in self.axes)

    @cached_property
    def columns(self) -> Ranges | None:
        """Ranges of the last axis, or None when the rank holds all of it or there is only one axis."""
        if len(self.axes) < 2 or self.axes[-1] == (range(self.whole[-1]),):
            return None
        return self.axes[-1]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The rank's rows, all axes but the last one taken together, without padding."""
        leading = self.axes[:1] if len(self.axes) < 2 else self.axes[:-1]
        return tuple(_spans(leading, self.whole[: len(leading)]))


def _spans(axes: Sequence[Ranges], sizes: Sequence[int]) -> Iterator[Span]:
    outer, inner = axes[:-1], axes[-1]
    width, local = sizes[-1], 0
    for indices in itertools.product(*(itertools.chain(*ranges) for ranges in outer)):
        base = 0
        for index, size in zip(indices, sizes, strict=False):
            base = base * size + index
        for piece in inner:
            stop = min(piece.stop, width)
            if stop > piece.start:
                yield Span(base * width + piece.start, base * width + stop, local)
            local += len(piece)


def padded(size: int, parts: int) -> int:
    """Return ``size`` rounded up to a multiple of ``parts``."""
    return math.ceil(size / parts) * parts


def shards_of(rule: TensorRule, shape: Sequence[int], config: ModelConfig, ranks: Parallelism) -> list[Shard]:
    """Return what each rank of tensor parallelism holds of a rule's tensor of ``shape``.

    The plan has made sure that heads, widths and experts divide.
    """
    shape = tuple(shape)
    return [Shard(shape, _axes(rule, shape, config, ranks, rank)) for rank in range(ranks.tp)]


def part_shards(axes: Sequence[Axis], shards: Sequence[Shard], group_size: int) -> list[Shard]:
    """Return the shards of a part of a quantized layer from those of its weight."""
    return [_part_shard(axes, shard, group_size) for shard in shards]


def _axes(
    rule: TensorRule, shape: tuple[int, ...], config: ModelConfig, ranks: Parallelism, rank: int
) -> tuple[Ranges, ...]:
    whole: list[Ranges] = [(range(size),) for size in shape]
    if rule.per_expert:
        parts, part = ranks.moe_tp, rank // ranks.moe_ep
        whole[0] = (_share(shape[0], ranks.moe_ep, rank % ranks.moe_ep),)
    else:
        parts, part = ranks.tp, rank
    rows = int(rule.per_expert)
    if rule.split is Split.COLUMNS:
        whole[-1] = (_share(shape[-1], parts, part),)
    elif rule.split is Split.ROWS:
        whole[rows] = (_share(shape[rows], parts, part),)
    elif rule.split is Split.HALVES:
        half = shape[rows] // 2
        whole[rows] = tuple(_moved(_share(half, parts, part), by) for by in (0, half))
    elif rule.split is Split.QKV:
        whole[rows] = _qkv(config, parts, part)
    elif rule.split is Split.VOCAB or (rule.split is Split.EMBEDDING and ranks.parallel_embedding):
        whole[rows] = (_share(padded(shape[rows], parts), parts, part),)
    return tuple(whole)


def _share(size: int, parts: int, part: int) -> range:
    length = size // parts
    return range(part * length, (part + 1) * length)


def _moved(piece: range, by: int) -> range:
    return range(piece.start + by, piece.stop + by)


def _qkv(config: ModelConfig, parts: int, part: int) -> Ranges:
    """Return the rows of a rank's heads; with fewer KV heads than ranks neighbours hold the same one."""
    q, kv, size = config.num_heads, config.num_kv_heads, config.head_size
    query = _share(q * size, parts, part)
    if kv >= parts:
        key = _share(kv * size, parts, part)
    else:
        head = part * kv // parts
        key = range(head * size, (head + 1) * size)
    return query, _moved(key, q * size), _moved(key, (q + kv) * size)


def _part_shard(axes: Sequence[Axis], weight: Shard, group_size: int) -> Shard:
    experts, out, width = len(weight.axes) - 3, len(weight.axes) - 2, len(weight.axes) - 1
    places = {
        Axis.EXPERTS: (experts, 1),
        Axis.OUT: (out, 1),
        Axis.OUT_PAIRS: (out, 2),
        Axis.OUT_QUARTERS: (out, 4),
        Axis.IN: (width, 1),
        Axis.IN_GROUPS: (width, group_size),
    }
    whole: list[int] = []
    ranges: list[Ranges] = []
    for axis in axes:
        if axis is Axis.EXPERTS and experts < 0:
            continue
        if axis is Axis.ONE:
            whole.append(1)
            ranges.append((range(1),))
        else:
            place, per = places[axis]
            whole.append(weight.whole[place] // per)
            ranges.append(tuple(range(r.start // per, r.stop // per) for r in weight.axes[place]))
    return Shard(tuple(whole), tuple(ranges))
