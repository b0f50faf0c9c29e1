"""FP8 with one scale per layer for weights, and one for activations from recorded ranges.

``weights_scaling_factor = amax / 448``, ``activation_scaling_factor = amax(x) / 448``; the real value is the stored
one times the scale. Q, K and V share a scale, and so do the two branches of a gated MLP: the engine fuses each of
them, and would round once more to the larger scale. Experts have a scale each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.schemes import SCHEMES
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target
from trtkit.checkpoint.kernels import FP8_MAX, Floats, Kernels, kernels_for
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.linear import Linear, Parts, block_amax, linears, others, quantized_problems, scalar
from trtkit.quantize.sharing import sharing_input

ALGORITHM = "FP8"


@dataclass(frozen=True)
class Fp8:
    """Recipe of ``fp8``."""

    plan: QuantPlan
    ranges: ActRange

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm's name alone."""
        return {"quant_algo": ALGORITHM, "kv_cache_quant_algo": self.plan.kv_cache_quant_algo}

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse sources that are quantized already.

        Raises:
            ContractError: Ranges are missing, or are no ranges of this model.
        """
        problems = quantized_problems(mapped, self.plan.weights)
        if not problems:
            self.ranges.check(linears(mapped, layout), mapped)
        return problems

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for the layers that share scales, and copies of the rest."""
        groups = sharing_input(linears(mapped, layout))
        return [*others(mapped, layout), *(self._job(group) for group in groups)]

    def _job(self, group: tuple[Linear, ...]) -> Job:
        parts = tuple(linear.parts(SCHEMES[ALGORITHM], self.quantization) for linear in group)
        return _Quantize(group, parts, float(_scale(self.ranges.inputs(group).max())))


@dataclass(frozen=True)
class _Quantize:
    linears: tuple[Linear, ...]
    parts: tuple[Parts, ...]
    activation_scale: float

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for parts in self.parts for target in parts.values())

    def run(self) -> Iterator[Piece]:
        kernels = kernels_for(self.linears[0].all_bytes)
        scale = _scale(self._amax(kernels))
        for linear, parts in zip(self.linears, self.parts, strict=True):
            yield parts["weights_scaling_factor"], 0, scale[:, None]
            yield parts["activation_scaling_factor"], 0, scalar(self.activation_scale)
            for block in linear.blocks():
                rows = np.full(len(block.values), scale[block.row // linear.rows], np.float32)
                yield parts["weight"], block.row, kernels.divided_to_float8(block.values, rows)

    def _amax(self, kernels: Kernels) -> Floats:
        """Return the largest magnitude of each expert's weights, or of all of them."""
        shape = self.linears[0].tensor.target.shape
        largest = np.zeros(shape[0] if len(shape) > 2 else 1, np.float32)
        for linear in self.linears:
            for block in linear.blocks():
                expert = block.row // linear.rows
                largest[expert] = max(largest[expert], block_amax(kernels, block, 1).max())
        return largest


def _scale(largest: Floats) -> Floats:
    """Return ``largest / 448``, and 1 where that is nothing: zeros stay zeros."""
    scale = np.asarray(largest) / np.float32(FP8_MAX)
    return np.where(scale > 0, scale, np.float32(1))
