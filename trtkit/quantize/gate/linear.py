"""A linear layer as a checkpoint has it, and what the engine computes with that: its weight, and its input treated."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.catalog.schemes import BAKED, SCHEMES, Part, Scheme
from trtkit.checkpoint.expected import ExpectedTensor
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.quantize.gate.assembly import assemble, ranks_of, read_whole

Floats = npt.NDArray[np.float32]


class Grid(enum.Enum):
    """Values that something is rounded to, in steps of a size; each is named by its largest one."""

    INT8 = 127.0
    FP8 = 448.0


@dataclass(frozen=True)
class Activation:
    """What a layer does with its input before it multiplies."""

    grid: Grid | None = None
    """None: it is not rounded."""
    step: float | None = None
    """Size of a step; None for one per token, from the largest magnitude in it."""
    factor: Floats | None = None
    """``(in,)``: multiplied in first."""
    clamp: tuple[float, float] | None = None
    slices: int = 1
    """Ranks that divide a token among them, each with a step for its own slice."""


@dataclass(frozen=True)
class Written:
    """One linear layer of a checkpoint."""

    checkpoint: TrtllmCheckpoint
    layout: Layout
    tensor: ExpectedTensor

    @property
    def name(self) -> str:
        """Its name inside of the decoder layer, for instance ``attention.qkv``."""
        return self.tensor.name.split(".", 3)[-1].removesuffix(".weight")

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The block that holds for this layer."""
        return self.checkpoint.block_of(self.layout.whole(self.tensor).name.removesuffix(".weight"))

    @property
    def algorithm(self) -> str | None:
        """What it is quantized by; None where it is plain."""
        return self.quantization.get("quant_algo")

    @property
    def baked(self) -> str | None:
        """The layout of one family of GPUs that weights are in; None for the form that fits all."""
        return (self.checkpoint.config.get("trtkit") or {}).get("layout")

    @property
    def slices(self) -> int:
        """Ranks that divide the layer's input among them."""
        weight = self.layout.whole(self.tensor).shards[0]
        return self.layout.ranks.tp if weight.shape[-1] < weight.whole[-1] else 1

    def rank_parts(self) -> list[dict[str, Array]]:
        """Return each rank's tensors by their suffixes."""
        stem = self.layout.whole(self.tensor).name.removesuffix("weight")
        suffixes = [part.suffix for part in self._parts]
        return [
            {suffix: self.checkpoint.tensor(stem + suffix, rank) for suffix in suffixes}
            for rank in ranks_of(self.layout.whole(self.tensor))
        ]

    def joined(self, weights: list[Floats]) -> Floats:
        """Return the whole weight from each rank's."""
        folder = self.checkpoint.folder
        return assemble(weights, self.layout.whole(self.tensor), folder=folder).astype(np.float32, copy=False)

    def part(self, suffix: str) -> Floats | None:
        """Return one of its tensors, whole; None if the algorithm gives it none."""
        found = [part for part in self._parts if part.suffix == suffix]
        if not found:
            return None
        group_size = int(self.quantization.get("group_size", 1))
        return read_whole(self.checkpoint, self.layout.part(self.tensor, found[0], group_size)).astype(
            np.float32
        )

    def of_layer(self, name: str) -> Floats | None:
        """Return a tensor that the decoder layer has once; None if the algorithm gives it none."""
        found = [part for part in self._scheme.layer_parts if part.name == name]
        if self.tensor.layer is None or not found or not found[0].applies(self.quantization):
            return None
        target = self.layout.layer_part(self.tensor.layer, found[0])
        return read_whole(self.checkpoint, target).astype(np.float32)

    @property
    def _scheme(self) -> Scheme:
        schemes = BAKED if self.baked and self.algorithm in BAKED else SCHEMES
        return schemes[self.algorithm]

    @property
    def _parts(self) -> list[Part]:
        return [part for part in self._scheme.parts if part.applies(self.tensor.name, self.quantization)]
