"""Attention as TensorRT-LLM computes it, over the fused [Q; K; V] projection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.architectures import rotary
from tests.architectures.weights import Config, Weights


@dataclass(frozen=True)
class Attention:
    """What a model class says about the attention of a layer."""

    bias: bool
    dense_bias: bool
    rotary_base: float | None
    """None: no rotary embedding."""
    rotary_fraction: float = 1.0
    q_scaling: float = 1.0
    """Scores are divided by ``sqrt(head size) * q_scaling``."""
    cap: float | None = None
    qk_norm: bool = False
    alibi: bool = False


def attend(config: Config, spec: Attention, weights: Weights, x: Tensor, window: int | None) -> Tensor:
    heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_size"]
    batch, length, _ = x.shape
    qkv = weights.under("qkv").linear(x, (heads + 2 * kv_heads) * size, bias=spec.bias)
    q, k, v = qkv.view(batch, length, -1, size).transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    if spec.qk_norm:
        q = weights.under("q_layernorm").rms_norm(q, config["norm_epsilon"])
        k = weights.under("k_layernorm").rms_norm(k, config["norm_epsilon"])
    if spec.rotary_base is not None:
        cos, sin = rotary.tables(config, base=spec.rotary_base, fraction=spec.rotary_fraction, length=length)
        q, k = rotary.rotate(q, cos, sin), rotary.rotate(k, cos, sin)
    k, v = (side.repeat_interleave(heads // kv_heads, dim=1) for side in (k, v))
    scores = q @ k.transpose(-1, -2)
    if spec.alibi:  # with scale: the bias is divided like the scores
        scores = scores + alibi_bias(heads, length)
    scores = soft_cap(scores / (math.sqrt(size) * spec.q_scaling), spec.cap)
    context = scores.masked_fill(~visible(length, window), -math.inf).softmax(dim=-1) @ v
    flat = context.transpose(1, 2).reshape(batch, length, heads * size)
    return weights.under("dense").linear(flat, config["hidden_size"], bias=spec.dense_bias)


def visible(length: int, window: int | None) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) & (distance < (window or length))


def alibi_bias(heads: int, length: int) -> Tensor:
    """Return slopes 2 ** (-8 i / heads) times positions, (heads, 1, length); differences are all that matters."""
    assert heads & (heads - 1) == 0, "other numbers of heads interleave two series"
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    return slopes[:, None, None] * torch.arange(length)


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    return torch.tanh(x / cap) * cap if cap else x
