"""Scales of a quantized KV cache: one per layer, which times the stored value is the real one.

INT8: the largest output of the projections / 127. TensorRT-LLM's converter takes Q, K and V together, which is loose
but has room for what the rotary embedding adds to K (up to sqrt(2), as it mixes pairs of channels after the ranges
were recorded); ``KvScale.KV`` leaves Q out, which resolves small values of K and V better and may clip K.
``KvScale.CACHE`` looks at what the cache keeps, K as it is rotated and V, and takes the step of the least mean squared
error, which clips the largest few: on SmolLM2 it halves the KL divergence. Where a norm follows the projection of K
(Qwen3, Gemma 3) the other two cover what the cache keeps as well: before the norm K may be 40 times smaller.

FP8: E4M3 has values down to 2**-9 whatever the scale, so that a scale below 1 gains nothing: ``max(amax(K, V) / 448,
1)``, as NVIDIA's ModelOpt has it, and 1 without ranges.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtkit.catalog.model import ModelConfig
from trtkit.catalog.schemes import KV_CACHE_SCALE
from trtkit.checkpoint.jobs import Job, Layout
from trtkit.checkpoint.kernels import FP8_MAX, Floats
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.recipe import Baking, ByLayer, Recipe
from trtkit.errors import Problem
from trtkit.plan.tensors import rules_of
from trtkit.quantize.act_range import ActRange
from trtkit.quantize.constant import Constant
from trtkit.quantize.histogram import best_int8_step
from trtkit.quantize.linear import Linear, linears

_INT8_MAX = np.float32(127.0)


class KvScale(enum.Enum):
    """What an INT8 scale covers."""

    QKV = "qkv"
    """Outputs of all three projections."""
    KV = "kv"
    """Outputs of those of K and V."""
    CACHE = "cache"
    """K as it is rotated, and V: the step that loses least of them."""


@dataclass(frozen=True)
class KvCache:
    """Adds the scales to what another recipe writes."""

    weights: Recipe
    algorithm: str
    """``INT8`` or ``FP8``."""
    ranges: ActRange | None
    """None only with FP8: all scales are 1."""
    covers: KvScale = KvScale.QKV

    @property
    def quantization(self) -> Mapping[str, Any]:
        """The weights' block, and the cache's algorithm."""
        return {**self.weights.quantization, "kv_cache_quant_algo": self.algorithm}

    @property
    def baked_for(self) -> Mapping[str, Any]:
        """What the weights' layout depends on."""
        return self.weights.baked_for if isinstance(self.weights, Baking) else {}

    @property
    def layer_blocks(self) -> Mapping[str, Mapping[str, Any]]:
        """The weights'."""
        return self.weights.layer_blocks if isinstance(self.weights, ByLayer) else {}

    def problems(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Problem]:
        """Return the weights' problems; without any, the ranges have to be there.

        Raises:
            ContractError: They are not, or are no ranges of this model.
        """
        problems = self.weights.problems(mapped, layout)
        if not problems and self.ranges is not None:
            found = projections(mapped, layout)
            self.ranges.check(found, mapped, outputs=True)
            least = self.covers is KvScale.CACHE
            needs_own = least or has_key_norm(layout.config)
            self.ranges.check_cached(found, extents=needs_own, histograms=least)
        return problems

    def jobs(self, mapped: Sequence[MappedTensor], layout: Layout) -> list[Job]:
        """Return the weights' jobs and one scale for each layer."""
        scales = [self._job(linear) for linear in projections(mapped, layout)]
        return [*self.weights.jobs(mapped, layout), *scales]

    def _job(self, linear: Linear) -> Job:
        layer = linear.tensor.target.layer
        assert layer is not None  # noqa: S101 - projections are in layers
        target = linear.layout.layer_part(layer, KV_CACHE_SCALE)
        return Constant(target, (self.scale(linear),))

    def scale(self, linear: Linear) -> float:
        """Return the scale of a layer, from its projection of Q, K and V."""
        if self.ranges is None:
            return 1.0
        if self.algorithm != "FP8" and self.covers is KvScale.CACHE:
            return best_int8_step(self.ranges.histogram(linear))
        outputs, config, cached = (
            self.ranges.outputs(linear),
            linear.layout.config,
            self.ranges.cached(linear),
        )
        projected = _of_k_and_v(outputs, config)
        if self.algorithm == "FP8":
            return max(float((projected if cached is None else cached).max() / np.float32(FP8_MAX)), 1.0)
        if cached is not None and has_key_norm(config):
            return float(cached.max() / _INT8_MAX)
        covered = outputs if self.covers is KvScale.QKV else projected
        return float(covered.max() / _INT8_MAX)

    def largest(self, linear: Linear) -> tuple[float, float]:
        """Return the largest K and V of a layer: as the cache keeps them where that is known, else as projected."""
        assert self.ranges is not None  # noqa: S101 - asked for only then
        found = self.ranges.cached(linear)
        if found is None:
            found = _of_k_and_v(self.ranges.outputs(linear), linear.layout.config)
        k, v = np.split(found, 2)
        return float(k.max()), float(v.max())


def has_key_norm(config: ModelConfig) -> bool:
    """Return whether K goes through a norm on its way into the cache: what its projection gives says nothing then."""
    return any(".k_layernorm." in rule.target for rule in rules_of(config))


def _of_k_and_v(outputs: Floats, config: ModelConfig) -> Floats:
    """Return the outputs of the projections of K and V."""
    return outputs[config.num_heads * config.head_size :]


def projections(mapped: Sequence[MappedTensor], layout: Layout) -> list[Linear]:
    """Return the layers that make Q, K and V."""
    return [linear for linear in linears(mapped, layout) if linear.name == "attention.qkv"]
