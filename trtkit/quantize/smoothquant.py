"""INT8 SmoothQuant for TensorRT-LLM's plugins: weights and activations in int8.

The GEMM's result is ``acc * per_channel_scale * act_scale``; norms hand out int8 by ``scale_to_int``, and the inputs
of attention's and of the MLP's last layer are divided by ``smoother`` first. Values, roundings and their order are
those of TensorRT-LLM's ``convert_checkpoint.py --smoothquant``.
"""

from __future__ import annotations

import enum
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.formats import SMOOTHQUANT
from trtkit.catalog.schemes import NO_SMOOTHQUANT, SCHEMES, Scheme
from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.jobs import Job, Layout, Piece, Target, plain_jobs
from trtkit.checkpoint.kernels import Floats, Kernels, kernels_for
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.errors import Problem
from trtkit.plan.types import QuantPlan
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.linear import (
    Linear,
    Parts,
    expert_problems,
    linears,
    local_name,
    quantized_problems,
    scalar,
    structure_problems,
)
from trtkit.quantize.sharing import sharing_input
from trtkit.quantize.smoothing import (
    Alphas,
    Doubles,
    Smoothed,
    alpha_of,
    check_divided,
    column_amax,
    smoother,
    steps,
)

_Quantizing = Generator[Piece, None, tuple[Floats, Floats]]
"""Yields a weight and returns the steps in 1, and the size of a step."""
_NORMS = {"attention.qkv": "input_layernorm", "mlp.fc": "post_layernorm"}
"""What comes before a layer, and takes the smoother."""
_INPUT_SCALES = {
    "attention.qkv": "input_layernorm.scale_to_int",
    "attention.dense": "attention.quantization_scaling_factor",
    "mlp.fc": "post_layernorm.scale_to_int",
    "mlp.proj": "mlp.quantization_scaling_factor",
}


class Mode(str, enum.Enum):
    """What has a scale of its own."""

    PER_CHANNEL_PER_TOKEN = "per-channel-per-token"  # noqa: S105
    PER_CHANNEL = "per-channel"
    PER_TOKEN = "per-token"  # noqa: S105
    PER_TENSOR = "per-tensor"

    @property
    def algorithm(self) -> str:
        """TensorRT-LLM's name."""
        return SMOOTHQUANT[self.value]

    @property
    def per_channel(self) -> bool:
        """Whether every output row has a scale, or every layer (each of Q, K and V)."""
        return self in (Mode.PER_CHANNEL, Mode.PER_CHANNEL_PER_TOKEN)

    @property
    def per_token(self) -> bool:
        """Whether activations are quantized token by token, or by recorded ranges."""
        return self in (Mode.PER_TOKEN, Mode.PER_CHANNEL_PER_TOKEN)


@dataclass(frozen=True)
class SmoothQuant:
    """Recipe of ``int8-sq``."""

    plan: QuantPlan
    ranges: ActRange
    mode: Mode = Mode.PER_CHANNEL_PER_TOKEN
    alpha: float | Alphas = 0.5
    """How much of the difficulty goes from activations into weights, 0 to 1."""

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The algorithm, and for the record alpha: that of Q, K and V, which no loader looks at."""
        return {
            "quant_algo": self.mode.algorithm,
            "kv_cache_quant_algo": self.plan.kv_cache_quant_algo,
            "smoothquant_val": alpha_of(self.alpha, "attention.qkv"),
        }

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Refuse what TensorRT-LLM has no such layers for.

        Raises:
            ContractError: Ranges are missing, or are no ranges of this model.
        """
        weights = self.plan.weights
        if layout.config.architecture in NO_SMOOTHQUANT:
            message = f"TensorRT-LLM has no SmoothQuant for {layout.config.architecture}"
            return [Problem(message, hint="use weights: none, int8-wo or fp8, or smoothquant: qdq")]
        problems = [
            *quantized_problems(mapped, weights),
            *expert_problems(mapped, weights),
            *structure_problems(mapped, weights),
        ]
        if not problems:
            self.ranges.check(linears(mapped, layout), mapped, outputs=not self.mode.per_token)
        return problems

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return one job for the layers that share an input and the norm before them, and copies of the rest."""
        norms: dict[tuple[int | None, str], list[MappedTensor]] = {}
        rest = []
        for tensor in mapped:
            owner = local_name(tensor).split(".", maxsplit=1)[0]
            if owner in _NORMS.values():
                norms.setdefault((tensor.target.layer, owner), []).append(tensor)
            elif not tensor.target.rule.is_linear:
                rest.append(tensor)
        groups = sharing_input(linears(mapped, layout))
        return [*plain_jobs(rest, layout), *(self._job(group, norms) for group in groups)]

    def _job(
        self, group: tuple[Linear, ...], norms: Mapping[tuple[int | None, str], list[MappedTensor]]
    ) -> Job:
        scheme, name, layer = SCHEMES[self.mode.algorithm], group[0].name, group[0].tensor.target.layer
        return _Smooth(
            self,
            group,
            tuple(linear.parts(scheme, self.quantization) for linear in group),
            tuple(norms.get((layer, _NORMS.get(name, "")), ())),
            _input_scale(scheme, group[0]),
        )


def _input_scale(scheme: Scheme, linear: Linear) -> Target | None:
    """Return the target of the scale by which the layer's input becomes int8; None when it has none."""
    layer = linear.tensor.target.layer
    found = [part for part in scheme.layer_parts if part.name == _INPUT_SCALES[linear.name]]
    return linear.layout.layer_part(layer, found[0]) if found and layer is not None else None


@dataclass(frozen=True)
class _Smooth:
    recipe: SmoothQuant
    group: tuple[Linear, ...]
    parts: tuple[Parts, ...]
    norms: tuple[MappedTensor, ...]
    input_scale: Target | None

    @property
    def targets(self) -> tuple[Target, ...]:
        found = [target for parts in self.parts for target in parts.values()]
        found += [self.group[0].layout.whole(tensor.target) for tensor in self.norms]
        return (*found, *([self.input_scale] if self.input_scale else []))

    def run(self) -> Iterator[Piece]:
        kernels, inputs = kernels_for(self.group[0].all_bytes), self.recipe.ranges.inputs(self.group)
        alpha = alpha_of(self.recipe.alpha, self.group[0].name)
        scale = smoother(inputs, column_amax(kernels, self.group), alpha)
        yield from self._norms(kernels, scale)
        # Reciprocal first, as PyTorch does.
        to_int = 1 / float((inputs / scale).max()) * 127
        if self.input_scale is not None:
            dynamic = self.recipe.mode.per_token
            yield self.input_scale, 0, scalar(1.0 if dynamic else to_int)
        smoothed = Smoothed.by(scale, kernels)
        for linear, parts in zip(self.group, self.parts, strict=True):
            if "smoother" in parts:
                yield parts["smoother"], 0, scale.astype(np.float32)[None]
            if self.recipe.mode.per_channel:
                count, size = yield from _rows(linear, parts["weight"], smoothed)
            else:
                count, size = yield from _whole(linear, parts["weight"], smoothed)
            yield from self._scales(linear, parts, count, size, to_int)

    def _norms(self, kernels: Kernels, scale: Doubles) -> Iterator[Piece]:
        for tensor in self.norms:
            target, info = self.group[0].layout.whole(tensor.target), tensor.plain[0]
            kernels.amax(info.read(), 0, name=info.name, path=info.path)  # refuses what is not finite
            before = kernels.halved(info.read()) + np.float32(tensor.target.rule.plus)
            values = kernels.to_float16_grid((before / scale).astype(np.float32))
            check_divided(before, values, info, target.dtype)
            yield target, 0, cast(values, target.dtype, name=info.name, path=info.path)[:, None]

    def _scales(
        self, linear: Linear, parts: Parts, count: Floats, size: Floats, to_int: float
    ) -> Iterator[Piece]:
        """Yield what makes the accumulator real: the step, or with static activations its two parts."""
        if self.recipe.mode.per_token:
            yield parts["per_channel_scale"], 0, size[None]
            return
        largest = self.recipe.ranges.outputs(linear).max()
        outputs = np.float32(1) / largest * np.float32(127)
        # A single scale is computed in float64, many in float32.
        product = np.float32(to_int) * count if len(count) > 1 else to_int * count.astype(np.float64)
        yield parts["per_channel_scale"], 0, (outputs / product).astype(np.float32)[None]
        yield parts["act_scale"], 0, scalar(float(largest / np.float32(127)))


def _rows(linear: Linear, weight: Target, smoothed: Smoothed) -> _Quantizing:
    """Quantize row by row."""
    found = []
    for block in linear.blocks():
        values, largest = smoothed(block)
        found.append(steps(largest))
        yield weight, block.row, smoothed.kernels.scaled_to_int8(values, found[-1][0])
    counts, sizes = zip(*found, strict=True)
    return np.concatenate(counts), np.concatenate(sizes)


def _whole(linear: Linear, weight: Target, smoothed: Smoothed) -> _Quantizing:
    """Quantize all rows alike, those of Q, K and V each."""
    largest = np.concatenate([smoothed(block)[1] for block in linear.blocks()])
    config, sizes_of = linear.layout.config, [len(largest)]
    if linear.name == "attention.qkv":
        sizes_of = [heads * config.head_size for heads in (config.num_heads, *2 * [config.num_kv_heads])]
    ends = np.cumsum(sizes_of)
    each = np.array([part.max() for part in np.split(largest, ends[:-1])])
    count, size = steps(each)
    if len(each) > 1:
        count, size = np.repeat(count, sizes_of), np.repeat(size, sizes_of)
    # With grouped heads the converter divides by the step, otherwise it multiplies by its inverse.
    divides = len(each) > 1 and config.num_kv_heads != config.num_heads
    for block in linear.blocks():
        values, rows = smoothed(block)[0], slice(block.row, block.row + len(block.values))
        # PyTorch's product of float16 and one float32, or of two float16, is float16.
        if divides:
            values /= size[rows, None]
            codes = smoothed.kernels.to_int8(smoothed.kernels.to_float16_grid(values))
        else:
            factors = count[rows] if len(each) > 1 else np.full(len(values), count[0])
            codes = smoothed.kernels.scaled_to_int8(values, factors, halves=len(each) == 1)
        yield weight, block.row, codes
    return count, size
