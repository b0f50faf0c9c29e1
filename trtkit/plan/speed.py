"""How long a step takes before there is hardware: measured silicon where its table has the model, else a roofline."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.plan.gpu_memory import kv_token_bytes
from trtkit.plan.layers import known_layers
from trtkit.plan.memory import read_bytes
from trtkit.plan.pace import Speed
from trtkit.plan.preflight.target import TRTLLM_BACKENDS
from trtkit.plan.ranks import group_of, layers_of_stage, share_of, windows_of
from trtkit.plan.silicon import NO_FLOOR, Floor, Share, find_fit, floor_of, peak_rate, share_of_peak
from trtkit.plan.tensors import rules_of, target_shape
from trtkit.plan.types import Basis, QuantPlan


def speed_of(
    model: ModelConfig, gpu: Gpu, ranks: Parallelism, quantization: QuantPlan, dtype: str, *, backend: str
) -> Speed:
    """Return the best that is known without a measurement of this engine; all of it is of TensorRT-LLM."""
    operations = linear_operations(model, ranks, quantization)
    fit = find_fit(model, gpu.name, ranks, quantization) if len(operations) == 1 else None
    if fit is not None and backend in TRTLLM_BACKENDS:
        return fit
    share = _share_of_mixture(gpu, operations)
    if backend not in TRTLLM_BACKENDS:
        text = f"{share.text}; those are TensorRT-LLM's, and nothing is known of {backend}'s"
        share = replace(share, text=text, basis=Basis.GUESS)
    return Roofline(model, gpu, ranks, quantization, dtype, share, floor_of(gpu.name))


def linear_operations(model: ModelConfig, ranks: Parallelism, quantization: QuantPlan) -> dict[str, float]:
    """Return the operations of one token in the linear layers of one stage of one rank, by their format."""
    rank, moe, layers = share_of(model, ranks), model.moe, known_layers(model, quantization)
    chosen = moe.experts_per_token / moe.num_experts / ranks.moe_ep if moe else 1.0
    found: dict[str, float] = defaultdict(float)
    for rule in rules_of(rank):
        if not rule.is_linear:
            continue
        size = 2 * math.prod(target_shape(rule, rank)) * (chosen if rule.per_expert else 1.0)
        module = rule.target.removesuffix(".weight")
        for layer in range(layers_of_stage(model, ranks)):
            found[layers.of(module.format(layer=layer)) if layers else quantization.weights] += size
    return dict(found)


def _share_of_mixture(gpu: Gpu, operations: Mapping[str, float]) -> Share:
    """Return what part of the roofline layers of several formats reach: each its own, by the time that it takes."""
    shares = {name: share_of_peak(gpu.name, name) for name in operations}
    if len(shares) == 1:
        return next(iter(shares.values()))
    products = {name: each / peak_rate(gpu, name) for name, each in operations.items()}
    reads = {name: each * WEIGHTS[name].weight_bits for name, each in operations.items()}
    prefill = sum(products.values()) / sum(each / shares[name].prefill for name, each in products.items())
    step = sum(reads.values()) / sum(each / shares[name].step for name, each in reads.items())
    text = (
        f"{prefill:.2f} and {step:.2f}, the mean of what layers in {' and '.join(shares)} reach, each alone"
    )
    return Share(prefill, step, text)


@dataclass(frozen=True)
class Roofline:
    """The slower of arithmetic and memory, at the share of the peak that measured engines reach."""

    model: ModelConfig
    gpu: Gpu
    ranks: Parallelism
    quantization: QuantPlan
    dtype: str
    share: Share
    floor: Floor = NO_FLOOR
    """No layer is quicker than that: small models wait for launches, of which the data sheet knows nothing."""

    @property
    def source(self) -> str:
        """Name the bound, and what it was scaled by."""
        wide = WEIGHTS[self.quantization.weights].compute == "int8" and self.gpu.int8_tops is None
        note = f"; {self.gpu.name}'s INT8 rate is not known, that of 16 bits is taken" if wide else ""
        return f"roofline x {self.share.text}{note}{self.floor.text}"

    @property
    def basis(self) -> Basis:
        """What the share is known from."""
        return self.share.basis

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.ranks.pp

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of one prompt: products of all its tokens, attention of each to those before it."""
        work = tokens * self._linear_s + self._attention_s(self._pairs(tokens))
        stage = max(work, self._weights_s(tokens)) / self.share.prefill + self._reduce_s(tokens)
        return max(1000 * self.ranks.pp * stage, self.floor.prefill_ms * self.model.num_layers)

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one step: all weights and the whole context are read, each token is multiplied."""
        each = batch / self.ranks.pp
        kv = each * context_tokens * self._kv_bytes / self._bandwidth
        work = each * self._linear_s + self._attention_s(each * context_tokens)
        stage = max(work, self._weights_s(each) + kv) / self.share.step + self._reduce_s(each)
        return max(1000 * self.ranks.pp * stage, self.floor.step_ms * self.model.num_layers)

    @property
    def _bandwidth(self) -> float:
        return self.gpu.bandwidth_gb_per_s * 1e9

    @cached_property
    def _linear_s(self) -> float:
        """Return the time of one token in the linear layers, at the peak of each layer's format."""
        operations = linear_operations(self.model, self.ranks, self.quantization)
        return sum(each / peak_rate(self.gpu, name) for name, each in operations.items())

    @cached_property
    def _kv_bytes(self) -> int:
        return kv_token_bytes(self.model, self.ranks, self.quantization.kv_cache, self.dtype)

    @cached_property
    def _weight_bytes(self) -> tuple[int, int]:
        """Return the bytes that every step reads, and those of all experts."""
        formats = self.quantization
        group = group_of(self.model, formats.weights, formats.group_size)
        layers = known_layers(self.model, formats)
        return read_bytes(self.model, WEIGHTS[formats.weights], self.dtype, self.ranks, group, layers=layers)

    def _weights_s(self, tokens: float) -> float:
        always, experts = self._weight_bytes
        moe = self.model.moe
        # Of E experts, n tokens that choose k each reach E (1 - (1 - k/E)^n).
        part = 1 - (1 - moe.experts_per_token / moe.num_experts) ** tokens if moe else 0.0
        return (always + part * experts) / self._bandwidth

    def _pairs(self, tokens: int) -> float:
        """Return the pairs of a token and one that it looks back on, on average over the layers."""
        whole = tokens * tokens / 2
        window, share = windows_of(self.model, self.ranks)
        if window is None or tokens <= window:
            return whole
        return whole - share * (tokens - window) ** 2 / 2

    def _attention_s(self, pairs: float) -> float:
        """Return the time of queries against keys, and of weights against values, for so many pairs of tokens."""
        heads = share_of(self.model, self.ranks).num_heads
        flops = 4 * heads * self.model.head_size * layers_of_stage(self.model, self.ranks) * pairs
        return flops / (1e12 * self.gpu.fp16_tflops)

    def _reduce_s(self, tokens: float) -> float:
        """Return the time of two all-reduces a layer around a ring: 2 (tp - 1) / tp of the hidden states each."""
        tp = self.ranks.tp
        size = tokens * self.model.hidden_size * 2 * 2 * (tp - 1) / tp
        return 2 * layers_of_stage(self.model, self.ranks) * size / (1e9 * self.gpu.link_gb_per_s)
