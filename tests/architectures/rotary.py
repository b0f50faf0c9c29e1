"""The rotary tables that TensorRT-LLM builds from a checkpoint's configuration."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.architectures.weights import Config


def tables(config: Config, *, base: float, fraction: float, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each (length, rotated / 2), where ``fraction`` of every head is rotated."""
    assert length <= config["max_position_embeddings"], "the tables end there"
    rotated = int(config["head_size"] * fraction)
    assert config.get("rotary_embedding_dim", rotated) == rotated
    frequencies = 1 / base ** (torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    if "longrope_scaling_short_factors" in config:
        frequencies, scale = long_rope(config, frequencies, length)
    else:
        assert config["position_embedding_type"] == "rope_gpt_neox"
        frequencies, scale = scaled(config.get("rotary_scaling"), frequencies, base)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return (angles.cos() * scale).float(), (angles.sin() * scale).float()


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + rotated / 2) of heads shaped (batch, heads, length, size)."""
    half = cos.shape[-1]
    one, other, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat([one * cos - other * sin, other * cos + one * sin, rest], dim=-1)


def scaled(scaling: Config | None, frequencies: Tensor, base: float) -> tuple[Tensor, float]:
    """Return the frequencies after scaling, and the factor of cosines and sines."""
    if scaling is None:
        return frequencies, 1.0
    kind = scaling.get("type", scaling.get("rope_type"))
    if kind == "linear":
        return frequencies / scaling["factor"], 1.0
    if kind == "llama3":
        return llama3(scaling, frequencies), 1.0
    assert kind == "yarn", f"{kind!r} is no rotary scaling that this model knows"
    return yarn(scaling, frequencies, base)


def llama3(scaling: Config, frequencies: Tensor) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, blend between."""
    low, high = scaling.get("low_freq_factor", 1.0), scaling.get("high_freq_factor", 4.0)
    turns = scaling.get("original_max_position_embeddings", 8192) * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.get("factor", 8.0)


def yarn(scaling: Config, frequencies: Tensor, base: float) -> tuple[Tensor, float]:
    """Blend by dimension between the frequencies and their interpolation."""
    factor, original = scaling["factor"], scaling.get("original_max_position_embeddings", 4096)
    rotated = 2 * len(frequencies)

    def dimension(turns: float) -> float:
        return rotated * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow", 1))), rotated - 1)
    ramp = (torch.arange(rotated // 2) - low) / (high - low if high > low else 0.001)
    interpolated = ramp.clamp(0, 1)
    blended = interpolated * frequencies / factor + (1 - interpolated) * frequencies
    return blended, attenuation(factor, scaling.get("mscale", 1.0)) / attenuation(
        factor, scaling.get("mscale_all_dim", 0.0)
    )


def attenuation(factor: float, mscale: float) -> float:
    """Return YaRN's attention factor."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1


def long_rope(config: Config, frequencies: Tensor, length: int) -> tuple[Tensor, float]:
    """Divide by the short factors up to the original length, by the long ones beyond."""
    assert config["position_embedding_type"] == "long_rope"
    original = config["original_max_position_embeddings"]
    ratio = config["max_position_embeddings"] / original
    key = "longrope_scaling_short_factors" if length <= original else "longrope_scaling_long_factors"
    scale = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
    return frequencies / torch.tensor(config[key], dtype=torch.float64), scale
