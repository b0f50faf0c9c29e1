"""INT4 weights that calibration has found, in the form that fits every GPU: ``W4A16_AWQ`` and ``W4A8_AWQ``.

Two rows to a byte, the even one in the low half; loaders bring that into the layout of the GPU they find. GPTQ's
weights go the same way, with factors of 1 for the input: loaders know ``W4A16_GPTQ`` in the layout of one GPU only.
W4A8 adds ``activation_scaling_factor = amax(x prequant) / 448`` and ``weights_scaling_factor_2 = amax(code * scale)
/ 448``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.schemes import SCHEMES
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target
from trtkit.checkpoint.kernels import FP8_MAX, Floats
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.recipe import side_problems
from trtkit.checkpoint.safetensors import numpy_dtype
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.digest import weights_digest
from trtkit.quantize.int4_weights import Int4Weights
from trtkit.quantize.linear import (
    Linear,
    Parts,
    expert_problems,
    linears,
    others,
    quantized_problems,
    scalar,
)

WEIGHTS = ("int4-awq", "int4-gptq", "w4a8-awq")
"""Formats that this recipe writes."""


@dataclass(frozen=True)
class Int4:
    """Recipe of :data:`WEIGHTS`."""

    plan: QuantPlan
    found: Int4Weights

    @classmethod
    def open(cls, plan: QuantPlan, ranges: ActRange) -> Int4:
        """Take the weights of a file of ranges.

        Raises:
            InputError: It has none for this format.
        """
        return cls(plan, Int4Weights.open(ranges, plan.weights))

    @property
    def algorithm(self) -> str:
        """Name that loaders know it by."""
        return "W4A8_AWQ" if self.plan.weights == "w4a8-awq" else "W4A16_AWQ"

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm and its flags."""
        return {
            "quant_algo": self.algorithm,
            "kv_cache_quant_algo": self.plan.kv_cache_quant_algo,
            "group_size": self.found.group_size,
            "has_zero_point": False,
            "pre_quant_scale": True,
        }

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse what engines do not have, and codes that are not those of the source; reads all of its weights.

        Raises:
            ContractError: Ranges are missing, or are no ranges of this model.
        """
        weights, found = self.plan.weights, linears(mapped, layout)
        problems = [*quantized_problems(mapped, weights), *expert_problems(mapped, weights)]
        problems += side_problems(mapped, layout, self.plan, max(64, self.found.group_size))
        if layout.dtype == "float32":
            message = "engines with INT4 weights compute in 16 bits, not in float32"
            problems.append(Problem(message, key="dtype", hint="use float16 or bfloat16"))
        if problems or self.found.ranges.is_awaited:
            return problems
        self.found.ranges.check(found, mapped)
        problems = [problem for linear in found for problem in self.found.problems(linear)]
        if not problems and weights_digest(mapped) != self.found.weights_sha256:
            message = "was made of another model, whose weights it would put in place of these"
            hint = "calibrate this model; every change of its weights asks for that"
            problems.append(Problem(message, hint=hint, file=str(self.found.ranges.path)))
        return problems

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for each linear layer, and copies of the rest."""
        return [*others(mapped, layout), *(self._job(linear) for linear in linears(mapped, layout))]

    def _job(self, linear: Linear) -> Job:
        target, layout = linear.tensor.target, linear.layout
        parts = {
            part.suffix: layout.part(target, part, self.found.group_size)
            for part in SCHEMES[self.algorithm].parts
            if part.applies(target.name, self.quantization)
        }
        return _Write(linear, self.found, parts)


@dataclass(frozen=True)
class _Write:
    """Writes one layer."""

    linear: Linear
    found: Int4Weights
    parts: Parts

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(self.parts.values())

    def run(self) -> Iterator[Piece]:
        target = self.parts["prequant_scaling_factor"]
        factor = self.found.prequant(self.linear).astype(numpy_dtype(target.dtype))
        yield target, 0, factor[:, None]
        scales, largest = self.found.scales(self.linear), 0.0
        yield self.parts["weights_scaling_factor"], 0, scales
        for row, codes in self.found.codes(self.linear):
            rows = scales[row : row + len(codes)]
            largest = max(largest, float((_peaks(codes, rows.shape[1]) * rows).max()))
            yield self.parts["weight"], row // 2, (codes[0::2] & np.int8(0xF)) | (codes[1::2] << 4)
        if "weights_scaling_factor_2" in self.parts:
            inputs = self.found.ranges.inputs([self.linear]) * factor.astype(np.float32)
            yield self.parts["activation_scaling_factor"], 0, scalar(_fp8_scale(float(inputs.max())))
            yield self.parts["weights_scaling_factor_2"], 0, scalar(_fp8_scale(largest))


def _peaks(codes: np.ndarray[Any, np.dtype[np.int8]], groups: int) -> Floats:
    """Return the largest magnitude of each group's codes, ``(rows, groups)``."""
    found: Floats = np.abs(codes).reshape(len(codes), groups, -1).max(axis=2).astype(np.float32)
    return found


def _fp8_scale(largest: float) -> float:
    """Return ``largest / 448``, and 1 where that is nothing."""
    return float(np.float32(largest) / np.float32(FP8_MAX)) or 1.0
