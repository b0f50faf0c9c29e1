"""How long a step takes before there is hardware: measured silicon where its table has the model, else a roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import Gpu
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.parallel import Parallelism
from trtkit.plan.gpu_memory import kv_token_bytes
from trtkit.plan.memory import DTYPE_BYTES, weights_bytes
from trtkit.plan.pace import Speed
from trtkit.plan.ranks import layers_of_stage, share_of
from trtkit.plan.silicon import Share, find_fit, share_of_peak
from trtkit.plan.tensors import rules_of, target_shape
from trtkit.plan.types import QuantPlan


def speed_of(model: ModelConfig, gpu: Gpu, ranks: Parallelism, quantization: QuantPlan, dtype: str) -> Speed:
    """Return the best that is known without a measurement of this engine."""
    fit = find_fit(model, gpu.name, ranks, quantization)
    if fit is not None:
        return fit
    return Roofline(model, gpu, ranks, quantization, dtype, share_of_peak(gpu.name, quantization.weights))


@dataclass(frozen=True)
class Roofline:
    """The slower of arithmetic and memory, at the share of the peak that measured engines reach."""

    model: ModelConfig
    gpu: Gpu
    ranks: Parallelism
    quantization: QuantPlan
    dtype: str
    share: Share

    @property
    def source(self) -> str:
        """Name the bound, and what it was scaled by."""
        return f"roofline x {self.share.text}"

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.ranks.pp

    def prefill_ms(self, tokens: int) -> float:
        """Return the time of one prompt: products of all its tokens, attention of each to those before it."""
        work = tokens * self._linear_flops / self._linear_rate + self._attention_s(tokens * tokens / 2)
        stage = max(work, self._weights_s(tokens)) / self.share.prefill + self._reduce_s(tokens)
        return 1000 * self.ranks.pp * stage

    def step_ms(self, batch: int, context_tokens: float) -> float:
        """Return the time of one step: all weights and the whole context are read, each token is multiplied."""
        each = batch / self.ranks.pp
        kv = each * context_tokens * self._kv_bytes / self._bandwidth
        work = each * self._linear_flops / self._linear_rate + self._attention_s(each * context_tokens)
        stage = max(work, self._weights_s(each) + kv) / self.share.step + self._reduce_s(each)
        return 1000 * self.ranks.pp * stage

    @property
    def _bandwidth(self) -> float:
        return self.gpu.bandwidth_gb_per_s * 1e9

    @cached_property
    def _linear_rate(self) -> float:
        rates = {
            "fp16": self.gpu.fp16_tflops,
            "int8": self.gpu.int8_tops or self.gpu.fp16_tflops,
            "fp8": self.gpu.fp8_tflops or self.gpu.fp16_tflops,
        }
        return 1e12 * rates[WEIGHTS[self.quantization.weights].compute]

    @cached_property
    def _linear_flops(self) -> float:
        """Return the operations of one token in the linear layers of one stage of one rank."""
        model, moe, total = share_of(self.model, self.ranks), self.model.moe, 0.0
        for rule in rules_of(model):
            if rule.is_linear:
                chosen = moe.experts_per_token / moe.num_experts / self.ranks.moe_ep if moe else 1.0
                total += math.prod(target_shape(rule, model)) * (chosen if rule.per_expert else 1.0)
        return 2 * total * layers_of_stage(self.model, self.ranks)

    @cached_property
    def _kv_bytes(self) -> int:
        return kv_token_bytes(self.model, self.ranks, self.quantization.kv_cache, self.dtype)

    @cached_property
    def _weight_bytes(self) -> tuple[float, float]:
        """Return the bytes that every step reads, and those of all experts."""
        facts = WEIGHTS[self.quantization.weights]
        whole = weights_bytes(self.model, facts, self.dtype, self.ranks)
        model = share_of(self.model, self.ranks)
        experts = sum(math.prod(target_shape(rule, model)) for rule in rules_of(model) if rule.per_expert)
        expert_bytes = experts / self.ranks.moe_ep * layers_of_stage(self.model, self.ranks)
        expert_bytes *= facts.weight_bits / 8
        # Of the embedding a step reads a few rows; a table of its own is there unless the head is the same one.
        table = self.model.vocab_size * self.model.hidden_size * DTYPE_BYTES[self.dtype]
        tied = self.model.tie_word_embeddings and self.ranks.world == 1
        return whole - expert_bytes - (0 if tied else table), expert_bytes

    def _weights_s(self, tokens: float) -> float:
        always, experts = self._weight_bytes
        moe = self.model.moe
        # Of E experts, n tokens that choose k each reach E (1 - (1 - k/E)^n).
        part = 1 - (1 - moe.experts_per_token / moe.num_experts) ** tokens if moe else 0.0
        return (always + part * experts) / self._bandwidth

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
