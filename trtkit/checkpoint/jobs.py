"""Units of conversion: each reads some sources once and yields pieces of whole target tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from trtkit.catalog.architectures.architecture import TensorRule
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.catalog.schemes import MODEL_DTYPE, LayerPart, Part
from trtkit.checkpoint.blocks import row_blocks
from trtkit.checkpoint.cast import Vanishing, cast
from trtkit.checkpoint.expected import ExpectedTensor
from trtkit.checkpoint.layout import Shard, part_shards, shards_of
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array

_LAYERS = "transformer.layers."


@dataclass(frozen=True)
class Target:
    """A tensor of the checkpoint, whole, and what the ranks of one pipeline stage hold of it."""

    name: str
    """As the files spell it: layers are counted from the first one of the stage."""
    dtype: str
    stage: int
    shards: tuple[Shard, ...]
    """One for each rank of tensor parallelism."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """What the ranks' files call the shapes, where the shards are of memory in another order."""

    @property
    def declared(self) -> tuple[tuple[int, ...], ...]:
        """The shape of each rank's tensor in its file."""
        return self.shapes or tuple(shard.shape for shard in self.shards)


Piece = tuple[Target, int, Array]
"""A target, a row of it (all axes but the last one taken together), and the ``(rows, columns)`` that begin there."""


class Job(Protocol):
    """Makes some targets."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """What :meth:`run` yields pieces of, each row once."""

    def run(self) -> Iterator[Piece]:
        """Read and yield; a piece is valid until the next one is asked for."""


@dataclass(frozen=True)
class Layout:
    """Names, data types and shards of the targets."""

    config: ModelConfig
    dtype: str
    ranks: Parallelism

    def whole(self, tensor: ExpectedTensor) -> Target:
        """Return the target of a tensor that is not quantized."""
        stage, name = self._place(tensor)
        shards = shards_of(tensor.rule, tensor.shape, self.config, self.ranks)
        return Target(name, tensor.rule.dtype or self.dtype, stage, tuple(shards))

    def part(self, tensor: ExpectedTensor, part: Part, group_size: int) -> Target:
        """Return the target of one part of a quantized linear layer."""
        stage, name = self._place(tensor)
        weight = shards_of(tensor.rule, tensor.shape, self.config, self.ranks)
        shards = part_shards(part.axes, weight, group_size)
        return Target(name.removesuffix("weight") + part.suffix, self._dtype(part), stage, tuple(shards))

    def layer_part(self, layer: int, part: LayerPart) -> Target:
        """Return the target of a tensor that a layer has once."""
        stage, local = divmod(layer, self._per_stage)
        whole = Shard(part.shape, tuple((range(size),) for size in part.shape))
        name = f"{_LAYERS}{local}.{part.name}"
        return Target(name, self._dtype(part), stage, (whole,) * self.ranks.tp)

    def _dtype(self, part: Part | LayerPart) -> str:
        return self.dtype if part.dtypes[0] == MODEL_DTYPE else part.dtypes[0]

    @property
    def _per_stage(self) -> int:
        return self.config.num_layers // self.ranks.pp

    def _place(self, tensor: ExpectedTensor) -> tuple[int, str]:
        if tensor.layer is None:
            return (self.ranks.pp - 1) * tensor.rule.on_last_stage, tensor.name
        stage, local = divmod(tensor.layer, self._per_stage)
        return stage, tensor.rule.target.format(layer=local)


@dataclass(frozen=True)
class Copy:
    """Takes a tensor over as it is, but for its data type and a constant."""

    tensor: MappedTensor
    target: Target
    config: ModelConfig

    @property
    def targets(self) -> tuple[Target, ...]:
        """The one tensor."""
        return (self.target,)

    def run(self) -> Iterator[Piece]:
        """Cast block by block.

        Raises:
            InputError: A value does not fit the data type, or is not finite; or most values would become zero.
        """
        rule, row = self.tensor.target.rule, 0
        blocks = row_blocks(self.tensor.plain, rule.arrange, self.config)
        for source, of_source in groupby(blocks, key=itemgetter(0)):
            vanishing = Vanishing()
            for _, block in of_source:
                values = cast(_plus(block, rule), self.target.dtype, name=source.name, path=source.path)
                vanishing.count(block, values)
                yield self.target, row, values
                row += len(block)
            vanishing.check(source.name, path=source.path)


def plain_jobs(mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
    """Return a copy of every tensor."""
    return [Copy(tensor, layout.whole(tensor.target), layout.config) for tensor in mapped]


def _plus(block: Array, rule: TensorRule) -> Array:
    return block.astype("float32") + rule.plus if rule.plus else block
