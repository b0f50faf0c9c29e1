"""INT8 weight-only in the layout of one family of GPUs, for those who do not want TensorRT-LLM to quantize again.

Loaders take int8 weights as they are and cannot tell for which GPU they were made; ``config.json`` says it.
The engine declares the weight as ``(in, out)``; what it holds is no matrix of that shape.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target
from trtkit.checkpoint.kernels import Int8s, Kernels, kernels_for
from trtkit.checkpoint.layout import Shard
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.recipe import WEIGHT_ONLY, side_problems
from trtkit.checkpoint.safetensors import Array
from trtkit.errors import InputError, Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.linear import Linear, expert_problems, linears, others, quantized_problems

_TILE = 64


class WeightLayout(str, enum.Enum):
    """How the bytes of an INT8 weight lie."""

    INTERLEAVED = "interleaved"
    """SM 80 to 89: for each pair of output rows tiles of 64 input columns, of one row and then of the other; inside,
    columns change places by 8, and bytes count from -128."""
    TRANSPOSED = "transposed"
    """SM 90 with TensorRT-LLM 0.17, no other: output rows one after another."""

    @classmethod
    def of(cls, target_sm: int, trtllm_version: str | None) -> WeightLayout:
        """Return the layout of a GPU.

        Raises:
            InputError: There is none that is known.
        """
        if target_sm in (80, 86, 89):
            return cls.INTERLEAVED
        if target_sm == 90 and (trtllm_version or "").split(".")[:2] == ["0", "17"]:
            return cls.TRANSPOSED
        only = " but for TensorRT-LLM 0.17" if target_sm == 90 else ""
        message = f"the layout of INT8 weights for SM {target_sm} is not known{only}"
        hint = "leave the target GPU out: TensorRT-LLM quantizes plain weights for the one that it builds on"
        raise InputError(message, hint=hint)

    def lay(self, quantized: Int8s, kernels: Kernels | None = None) -> Int8s:
        """Return the bytes of an even number of output rows in their order."""
        if self is WeightLayout.TRANSPOSED:
            return quantized.reshape(-1)
        return (kernels or Kernels()).interleaved(quantized).reshape(-1)


@dataclass(frozen=True)
class BakedWeightOnly:
    """Recipe of ``int8-wo`` for one family of GPUs."""

    plan: QuantPlan
    target_sm: int
    trtllm_version: str | None = None
    """The version that builds the engine, where the layout depends on it."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm's name alone."""
        return {"quant_algo": WEIGHT_ONLY, "kv_cache_quant_algo": self.plan.kv_cache_quant_algo}

    @property
    def baked_for(self) -> Mapping[str, Any]:
        """The GPU, and the version if that matters."""
        layout = self._layout
        version = {"trtllm_version": self.trtllm_version} if layout is WeightLayout.TRANSPOSED else {}
        return {"target_sm": self.target_sm, "layout": layout.value, **version}

    @property
    def _layout(self) -> WeightLayout:
        return WeightLayout.of(self.target_sm, self.trtllm_version)

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse layers that loaders would pad, and experts."""
        problems = [*quantized_problems(mapped, self.plan.weights), *side_problems(mapped, layout, self.plan)]
        named = {problem.key for problem in problems}
        for linear in linears(mapped, layout):
            name, local = linear.tensor.target.name, layout.whole(linear.tensor.target).shards[0].shape
            if name not in named and any(side % _TILE for side in local[-2:]):
                message = f"each rank would hold {local[-2]} x {local[-1]}, and tiles have sides of {_TILE}"
                problems.append(Problem(message, name, "use fewer ranks, or leave the target GPU out"))
        return problems + expert_problems(mapped, f"baked {self.plan.weights}")

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for each linear layer, and copies of the rest."""
        quantizing = (_Bake(linear, self._layout) for linear in linears(mapped, layout))
        return [*others(mapped, layout), *quantizing]


@dataclass(frozen=True)
class _Bake:
    linear: Linear
    weight_layout: WeightLayout

    @property
    def _plain(self) -> Target:
        return self.linear.layout.whole(self.linear.tensor.target)

    @property
    def _shape(self) -> tuple[int, int]:
        """``(out, in)`` of every rank."""
        out, width = self._plain.shards[0].shape
        return out, width

    @property
    def _weight(self) -> Target:
        out, width = self._shape
        return replace(
            self._plain, dtype="int8", shards=_one_after_another((width, out), len(self._plain.shards))
        )

    @property
    def _scale(self) -> Target:
        name = self._plain.name.removesuffix("weight") + "per_channel_scale"
        shards = _one_after_another((self._shape[0],), len(self._plain.shards))
        return replace(self._plain, name=name, shards=shards)

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self._weight, self._scale)

    def run(self) -> Iterator[Piece]:
        out, width = self._shape
        # Rows of the declared (in, out) are pieces: with 192 x 128 six rows of 128 are four of 192.
        step = math.lcm(2, out // math.gcd(out, width))
        held = [_Held(shard, step) for shard in self._plain.shards]
        kernels = kernels_for(self.linear.all_bytes)
        weight, scale, dtype = self._weight, self._scale, self.linear.layout.dtype
        for block in self.linear.blocks():
            values = cast(block.values, dtype, name=block.source.name, path=block.source.path)
            for rank, rows in enumerate(held):
                start, ready = rows.take(block.row, values)
                quantized, scales = _quantize(ready, kernels)
                row = rank * width + start * width // out
                yield weight, row, self.weight_layout.lay(quantized, kernels).reshape(-1, out)
                yield scale, rank * out + start, scales[:, None]


class _Held:
    """A rank's rows of the weight, collected until there are enough of them."""

    def __init__(self, shard: Shard, step: int) -> None:
        self._shard = shard
        self._step = step
        self._start = 0
        self._rows: list[Array] = []

    def take(self, row: int, values: Array) -> tuple[int, Array]:
        """Take what the rank holds of the rows that begin at ``row``; return what is complete, and where it begins."""
        columns = self._shard.axes[-1][0]
        for span in self._shard.spans:
            part = values[max(span.start - row, 0) : max(span.stop - row, 0)]
            self._rows.append(part[:, columns.start : columns.stop])
        rows = np.concatenate(self._rows)
        start, count = self._start, len(rows) // self._step * self._step
        self._start, self._rows = start + count, [rows[count:]]
        return start, rows[:count]


def _quantize(values: Array, kernels: Kernels) -> tuple[Int8s, Array]:
    """Quantize rows; a scale that the data type cannot hold becomes 1, its row zeros."""
    quantized, scale = kernels.weight_only(values)
    lost = scale == 0
    quantized[lost], scale[lost] = 0, 1
    return quantized, scale


def _one_after_another(shape: tuple[int, ...], ranks: int) -> tuple[Shard, ...]:
    """Return shards of a tensor that is all ranks' tensors of ``shape``, stacked."""
    whole = (ranks * shape[0], *shape[1:])
    rest = tuple((range(size),) for size in shape[1:])
    return tuple(
        Shard(whole, ((range(rank * shape[0], (rank + 1) * shape[0]),), *rest)) for rank in range(ranks)
    )
