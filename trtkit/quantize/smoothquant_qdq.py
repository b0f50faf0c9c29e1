"""INT8 SmoothQuant in TensorRT's own form: Q/DQ nodes instead of plugins.

Every linear layer multiplies its input by ``prequant_scaling_factor`` p and quantizes it with
``activation_scaling_factor = amax(x p) / 127``; its weight is W / p, in int8 with ``weights_scaling_factor =
amax(row) / 127``. Norms stay as they are, so that models with other norms than the plugins know work too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.formats import SMOOTHQUANT
from trtkit.catalog.schemes import SCHEMES
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target
from trtkit.checkpoint.kernels import Floats, kernels_for
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array, numpy_dtype
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.linear import (
    Linear,
    Parts,
    expert_problems,
    linears,
    others,
    quantized_problems,
    scalar,
)
from trtkit.quantize.sharing import sharing_input
from trtkit.quantize.smoothing import Alphas, Doubles, alpha_of, column_amax, row_amax, smoother

ALGORITHM = SMOOTHQUANT["qdq"]
_LIMITS = {"float16": (2.0**-14, 65504.0)}
"""What prequant factors are kept within: below, float16 loses digits, and then everything."""


@dataclass(frozen=True)
class SmoothQuantQdq:
    """Recipe of ``int8-sq`` with ``qdq``."""

    plan: QuantPlan
    ranges: ActRange
    alpha: float | Alphas = 0.5
    """How much of the difficulty goes from activations into weights, 0 to 1."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm, and for the record alpha: that of Q, K and V, which no loader looks at."""
        return {
            "quant_algo": ALGORITHM,
            "kv_cache_quant_algo": self.plan.kv_cache_quant_algo,
            "smoothquant_val": alpha_of(self.alpha, "attention.qkv"),
        }

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse experts and sources that are quantized already.

        Raises:
            ContractError: Ranges are missing, or are no ranges of this model.
        """
        weights = self.plan.weights
        problems = [*quantized_problems(mapped, weights), *expert_problems(mapped, weights)]
        if not problems:
            self.ranges.check(linears(mapped, layout), mapped)
        return problems

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for the layers that share an input, and copies of the rest."""
        groups = sharing_input(linears(mapped, layout))
        return [*others(mapped, layout), *(self._job(group, layout) for group in groups)]

    def _job(self, group: tuple[Linear, ...], layout: Layout) -> Job:
        parts = tuple(linear.parts(SCHEMES[ALGORITHM], self.quantization) for linear in group)
        return _Smooth(
            group, parts, self.ranges.inputs(group), alpha_of(self.alpha, group[0].name), layout.dtype
        )


@dataclass(frozen=True)
class _Smooth:
    group: tuple[Linear, ...]
    parts: tuple[Parts, ...]
    inputs: Floats
    alpha: float
    dtype: str

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(target for parts in self.parts for target in parts.values())

    def run(self) -> Iterator[Piece]:
        kernels = kernels_for(self.group[0].all_bytes)
        factor = _prequant(smoother(self.inputs, column_amax(kernels, self.group), self.alpha), self.dtype)
        rounded = factor.astype(np.float32)
        activation = float((self.inputs * rounded).max() / np.float32(127))
        for linear, parts in zip(self.group, self.parts, strict=True):
            yield parts["prequant_scaling_factor"], 0, factor[:, None]
            yield parts["activation_scaling_factor"], 0, scalar(activation)
            for block in linear.blocks():
                values = kernels.widen(block.values)
                with np.errstate(over="ignore"):  # row_amax refuses it by name
                    values /= rounded
                scale = _scales(row_amax(kernels, values, block))[:, None]
                values /= scale
                yield parts["weight"], block.row, kernels.to_int8(values)
                yield parts["weights_scaling_factor"], block.row, scale


def _scales(largest: Floats) -> Floats:
    """Return ``largest / 127``, and 1 where that is nothing: zeros stay zeros."""
    scale = largest / np.float32(127)
    return np.where(scale > 0, scale, np.float32(1))


def _prequant(scale: Doubles, dtype: str) -> Array:
    """Return 1 / s as the checkpoint holds it; all else is computed from that."""
    low, high = _LIMITS.get(dtype, (0.0, np.inf))
    return np.clip(1 / scale, low, high).astype(np.float32).astype(numpy_dtype(dtype))
