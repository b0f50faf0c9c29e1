"""TensorRT-LLM checkpoints quantized by a few lines of numpy, and what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np

from tests.checkpoint.conftest import save
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.plan.types import QuantPlan

FP8 = ml_dtypes.float8_e4m3fn
LINEAR = ("qkv", "dense", "fc", "gate", "proj")
GROUP = 64
Tensors = dict[str, np.ndarray]


def quantized(source: Path, out: Path, algorithm: str, *, kv_cache=None, edit=lambda tensors: None, **flags):
    """Write ``source`` as a checkpoint of ``algorithm``; ``edit`` changes its tensors."""
    model = HfCheckpoint.open(source)
    convert(model, out, dtype=model.config.dtype, recipe=Plain(QuantPlan("none", "auto", None, None)))
    plain = {name: np.array(info.read()) for name, info in TrtllmCheckpoint.open(out).tensors.items()}
    tensors = {}
    for name, weight in plain.items():
        is_linear = name.split(".")[-2] in LINEAR and name.endswith(".weight")
        tensors |= _MAKERS[algorithm](name.removesuffix("weight"), weight) if is_linear else {name: weight}
    if kv_cache:
        tensors |= {
            f"transformer.layers.{layer}.attention.kv_cache_scaling_factor": np.array(
                [0.5 + layer], np.float32
            )
            for layer in range(model.config.num_layers)
        }
    edit(tensors)
    save(out / "rank0.safetensors", tensors)
    if algorithm == "W4A16_AWQ":
        flags = {"group_size": GROUP, "has_zero_point": False, "pre_quant_scale": True} | flags
    config = json.loads((out / "config.json").read_text())
    config["quantization"] = {"quant_algo": algorithm, "kv_cache_quant_algo": kv_cache, **flags}
    (out / "config.json").write_text(json.dumps(config))
    assert verify(out) == []
    return TrtllmCheckpoint.open(out)


def _fp8(prefix: str, weight: np.ndarray) -> Tensors:
    wide = weight.astype(np.float32)
    scale = np.abs(wide).max() / np.float32(448)
    return {
        prefix + "weight": (wide / scale).astype(FP8),
        prefix + "weights_scaling_factor": np.array([scale], np.float32),
        prefix + "activation_scaling_factor": np.array([len(prefix) / 1000], np.float32),
    }


def _fp8_rowwise(prefix: str, weight: np.ndarray) -> Tensors:
    wide = weight.astype(np.float32)
    scale = np.abs(wide).max(axis=1) / np.float32(448)
    return {prefix + "weight": (wide / scale[:, None]).astype(FP8), prefix + "per_channel_scale": scale}


def _awq(prefix: str, weight: np.ndarray) -> Tensors:
    """Smooth with one scale for all layers behind a norm, others for the rest."""
    seed = "norm" if prefix.split(".")[-2] in {"qkv", "fc", "gate"} else prefix
    rng = np.random.default_rng([*seed.encode()])
    smooth = rng.uniform(0.5, 2, weight.shape[1]).astype(weight.dtype)
    groups = (weight.astype(np.float32) / smooth.astype(np.float32)).reshape(len(weight), -1, GROUP)
    scale = np.abs(groups).max(axis=2) / np.float32(7)
    values = np.clip(np.rint(groups / scale[:, :, None]), -8, 7).astype(np.int8).reshape(weight.shape)
    packed = (values[0::2] & 15) | (values[1::2] << 4)
    return {
        prefix + "weight": packed.astype(np.int8),
        prefix + "weights_scaling_factor": scale,
        prefix + "prequant_scaling_factor": smooth,
    }


_MAKERS = {"FP8": _fp8, "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rowwise, "W4A16_AWQ": _awq}


def unpack(packed: np.ndarray) -> np.ndarray:
    """Return the integers ``(out, in)`` of two rows to a byte."""
    signed = packed.view(np.int8)
    low = (signed << 4).astype(np.int8) >> 4
    return np.stack([low, signed >> 4], axis=1).reshape(-1, packed.shape[1])


def values_of(weight: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return what a quantized weight stands for, of either side, before activation scales."""
    if weight.dtype.itemsize == 1 and weight.dtype != FP8:
        return unpack(weight) * np.repeat(scale.astype(np.float32), GROUP, axis=1)
    return weight.astype(np.float32) * (scale[:, None] if scale.ndim and scale.size > 1 else scale)
