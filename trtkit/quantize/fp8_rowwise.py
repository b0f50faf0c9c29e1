"""FP8 with one scale per output row; activations are quantized token by token, so that no ranges are needed.

Formula of TensorRT-LLM's converter: ``scale = max(amax(row) / 448, 1 / (448 * 512))``, weight / scale to E4M3. All
linear layers of a decoder layer are quantized, attention's too, as its loader has it without ``use_meta_recipe``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.schemes import SCHEMES, LayerPart
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target
from trtkit.checkpoint.kernels import FP8_MAX, kernels_for
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.constant import Constant
from trtkit.quantize.linear import (
    Linear,
    block_amax,
    expert_problems,
    linears,
    others,
    quantized_problems,
    structure_problems,
)

ALGORITHM = "FP8_PER_CHANNEL_PER_TOKEN"
_SCHEME = SCHEMES[ALGORITHM]
_SMALLEST_SCALE = np.float32(1 / (FP8_MAX * 512))


@dataclass(frozen=True)
class Fp8Rowwise:
    """Recipe of ``fp8-rowwise``."""

    plan: QuantPlan
    clamp: float | None = 1200.0
    """Bound of activations in the engine; weights are left alone. None for no bound."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm, and the bound as TensorRT-LLM spells it."""
        bound = {} if self.clamp is None else {"clamp_val": [-self.clamp, self.clamp]}
        return {"quant_algo": ALGORITHM, "kv_cache_quant_algo": self.plan.kv_cache_quant_algo, **bound}

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:  # noqa: ARG002
        """Refuse what TensorRT-LLM has no such layers for."""
        weights = self.plan.weights
        return [
            *quantized_problems(mapped, weights),
            *expert_problems(mapped, weights),
            *structure_problems(mapped, weights),
        ]

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for each linear layer, copies of the rest, and the bounds."""
        quantization = self.quantization
        jobs = others(mapped, layout)
        for linear in linears(mapped, layout):
            parts = linear.parts(_SCHEME, quantization)
            jobs.append(_QuantizeRows(linear, parts["weight"], parts["per_channel_scale"]))
        bounds = [part for part in _SCHEME.layer_parts if part.applies(quantization)]
        return [
            *jobs,
            *(
                self._bound(layout, layer, part)
                for layer in range(layout.config.num_layers)
                for part in bounds
            ),
        ]

    def _bound(self, layout: Layout, layer: int, part: LayerPart) -> Job:
        return Constant(layout.layer_part(layer, part), tuple(self.quantization["clamp_val"]))


@dataclass(frozen=True)
class _QuantizeRows:
    linear: Linear
    weight: Target
    scale: Target

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.weight, self.scale)

    def run(self) -> Iterator[Piece]:
        kernels = kernels_for(self.linear.all_bytes)
        for block in self.linear.blocks():
            scale = np.maximum(block_amax(kernels, block, 1) / np.float32(FP8_MAX), _SMALLEST_SCALE)
            yield self.weight, block.row, kernels.divided_to_float8(block.values, scale)
            yield self.scale, block.row, scale[:, None]
