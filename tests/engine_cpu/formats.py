"""Checkpoints of every format, and what their layers compute, both from TensorRT-LLM's definitions alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.engine_cpu.conftest import tiny_config, tiny_tensors

E4M3 = ml_dtypes.float8_e4m3fn
GROUP = 32
CLAMP = 3.0
LINEAR = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
BEFORE = {"attention.qkv": "input_layernorm", "mlp.fc": "post_layernorm", "mlp.gate": "post_layernorm"}
OWNER = {"attention.dense": "attention", "mlp.proj": "mlp"}

Tensors = dict[str, np.ndarray]


def draws(name: str) -> np.random.Generator:
    """Return the random numbers of one layer, the same in every test."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def float8(values: np.ndarray) -> np.ndarray:
    return np.clip(values, -448, 448).astype(E4M3)


def integers(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), -128, 127)


def rows(weight: np.ndarray) -> np.ndarray:
    return np.abs(weight).max(axis=1)


def smooth(tensors: Tensors, layer: str, *, per_row: bool, static: bool) -> None:
    for name in LINEAR:
        weight, prefix = tensors[f"{layer}{name}.weight"], f"{layer}{name}."
        out, width = weight.shape
        if name in OWNER:
            factor = draws(name).uniform(0.5, 2, width).astype(np.float32)
            weight = weight * factor
            tensors[prefix + "smoother"] = factor[None]
        scale = rows(weight) if per_row else np.full(out, np.abs(weight).max())
        scale = (scale / 127).astype(np.float32)
        tensors[prefix + "weight"] = integers(weight / scale[:, None]).astype(np.int8)
        one = not per_row and name != "attention.qkv"
        split = np.float32(1.7) if static else np.float32(1)
        tensors[prefix + "per_channel_scale"] = (scale[:1] if one else scale)[None] / split
        owner = (
            f"{BEFORE[name]}.scale_to_int" if name in BEFORE else f"{OWNER[name]}.quantization_scaling_factor"
        )
        if static:
            # Ranges below the largest activations, so that some are clipped.
            amax = np.float32(2.5)
            tensors[prefix + "act_scale"] = np.array([[amax / 127 * split]], np.float32)
            tensors[layer + owner] = np.array([127 / amax], np.float32)
        elif name in BEFORE:
            tensors[layer + owner] = np.ones(1, np.float32)


def smooth_qdq(tensors: Tensors, layer: str) -> None:
    for name in LINEAR:
        weight, prefix = tensors[f"{layer}{name}.weight"], f"{layer}{name}."
        factor = draws(name).uniform(0.5, 2, weight.shape[1]).astype(ml_dtypes.bfloat16)
        weight = weight / factor.astype(np.float64)
        scale = (rows(weight) / 127).astype(np.float32)
        tensors[prefix + "weight"] = integers(weight / scale[:, None]).astype(np.int8)
        tensors[prefix + "weights_scaling_factor"] = scale
        tensors[prefix + "activation_scaling_factor"] = np.array([2.5 / 127], np.float32)
        tensors[prefix + "prequant_scaling_factor"] = factor


def fp8(tensors: Tensors, layer: str) -> None:
    for name in LINEAR:
        weight, prefix = tensors[f"{layer}{name}.weight"], f"{layer}{name}."
        scale = np.float32(np.abs(weight).max() / 448)
        tensors[prefix + "weight"] = float8(weight / scale)
        tensors[prefix + "weights_scaling_factor"] = scale[None]
        tensors[prefix + "activation_scaling_factor"] = np.array([2.5 / 448], np.float32)


def fp8_rows(tensors: Tensors, layer: str) -> None:
    for name in LINEAR:
        weight, prefix = tensors[f"{layer}{name}.weight"], f"{layer}{name}."
        scale = (rows(weight) / 448).astype(np.float32)
        tensors[prefix + "weight"] = float8(weight / scale[:, None])
        tensors[prefix + "per_channel_scale"] = scale
        tensors[f"{layer}{BEFORE.get(name) or OWNER[name]}.clamp_val"] = np.array([-CLAMP, CLAMP], np.float32)


def awq(tensors: Tensors, layer: str, *, zero: bool, smoothed: bool) -> None:
    for name in LINEAR:
        weight, prefix = tensors[f"{layer}{name}.weight"], f"{layer}{name}."
        out, width = weight.shape
        if smoothed:
            factor = draws(name).uniform(0.5, 2, width).astype(ml_dtypes.bfloat16)
            weight = weight / factor.astype(np.float64)
            tensors[prefix + "prequant_scaling_factor"] = factor
        grouped = weight.reshape(out, -1, GROUP)
        scale = (np.abs(grouped).max(axis=2) / 7).astype(np.float32)
        shift = draws(prefix).integers(-3, 4, scale.shape) if zero else np.zeros(scale.shape)
        codes = np.clip(np.rint(grouped / scale[..., None] - shift[..., None]), -8, 7).astype(np.int8)
        codes = codes.reshape(out, width).view(np.uint8) & 15
        tensors[prefix + "weight"] = (codes[0::2] | codes[1::2] << 4).view(np.int8)
        tensors[prefix + "weights_scaling_factor"] = scale
        if zero:
            tensors[prefix + "zero"] = (shift * scale).T.astype(ml_dtypes.bfloat16)


def awq_fp8(tensors: Tensors, layer: str) -> None:
    awq(tensors, layer, zero=False, smoothed=True)
    for name in LINEAR:
        prefix = f"{layer}{name}."
        largest = 7 * tensors[prefix + "weights_scaling_factor"].max()
        tensors[prefix + "weights_scaling_factor_2"] = np.array([largest / 448], np.float32)
        tensors[prefix + "activation_scaling_factor"] = np.array([4.0 / 448], np.float32)


def _smooth(*, per_row: bool, static: bool) -> Callable[[Tensors, str], None]:
    return lambda tensors, layer: smooth(tensors, layer, per_row=per_row, static=static)


QUANTIZERS: dict[str, tuple[dict[str, Any], Callable[[Tensors, str], None]]] = {
    "sq-per-channel-per-token": (
        {"quant_algo": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"}, _smooth(per_row=True, static=False)),
    "sq-per-token": ({"quant_algo": "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN"}, _smooth(per_row=False, static=False)),
    "sq-per-channel": ({"quant_algo": "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"}, _smooth(per_row=True, static=True)),
    "sq-per-tensor": ({"quant_algo": "W8A8_SQ_PER_TENSOR_PLUGIN"}, _smooth(per_row=False, static=True)),
    "sq-qdq": ({"quant_algo": "W8A8_SQ_PER_CHANNEL"}, smooth_qdq),
    "fp8": ({"quant_algo": "FP8"}, fp8),
    "fp8-rowwise": ({"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN", "clamp_val": [-CLAMP, CLAMP]}, fp8_rows),
    "awq": (
        {"quant_algo": "W4A16_AWQ", "group_size": GROUP, "pre_quant_scale": True, "has_zero_point": False},
        lambda tensors, layer: awq(tensors, layer, zero=False, smoothed=True)),
    "awq-zero": (
        {"quant_algo": "W4A16_AWQ", "group_size": GROUP, "pre_quant_scale": False, "has_zero_point": True},
        lambda tensors, layer: awq(tensors, layer, zero=True, smoothed=False)),
    "awq-fp8": (
        {"quant_algo": "W4A8_AWQ", "group_size": GROUP, "pre_quant_scale": True, "has_zero_point": False}, awq_fp8),
}  # fmt: skip
"""The ``quantization`` block, and what puts one layer's tensors into the format, by a name for the test."""


def quantized(name: str, kv_cache: str | None = None, **changes: Any) -> tuple[dict[str, Any], Tensors]:
    """Return ``config.json`` and tensors of the tiny model in a format."""
    block, quantize = QUANTIZERS[name]
    config = tiny_config(quantization=block | {"kv_cache_quant_algo": kv_cache}, **changes)
    tensors = tiny_tensors(config)
    for index in range(config["num_hidden_layers"]):
        layer = f"transformer.layers.{index}."
        quantize(tensors, layer)
        if kv_cache:
            amax = 6 + index
            step = amax / (127 if kv_cache == "INT8" else 448)
            tensors[layer + "attention.kv_cache_scaling_factor"] = np.array([step], np.float32)
    return config, tensors


def linear(get: Callable[[str], np.ndarray], block: dict[str, Any], x: np.ndarray, name: str) -> np.ndarray:
    """Return what a layer gives for one token, in float64: dequantized weights and rounded activations."""
    algo, (layer, last) = block["quant_algo"], (name.rsplit(".", 2)[0] + ".", name.split(".", 3)[-1])
    weight = get(name + ".weight").astype(np.float64)
    if algo == "FP8":
        step = get(name + ".activation_scaling_factor").astype(np.float64)
        x = float8(x / step).astype(np.float64) * step
        return x @ (weight * get(name + ".weights_scaling_factor").astype(np.float64)).T
    if algo == "FP8_PER_CHANNEL_PER_TOKEN":
        x = np.clip(x, *get(f"{layer}{BEFORE.get(last) or OWNER[last]}.clamp_val").astype(np.float64))
        step = np.abs(x).max() / 448
        return (
            float8(x / step).astype(np.float64)
            * step
            @ (weight * get(name + ".per_channel_scale")[:, None]).T
        )
    if algo in ("W4A16_AWQ", "W4A8_AWQ"):
        return awq_linear(get, block, x, name)
    if algo == "W8A8_SQ_PER_CHANNEL":
        step = get(name + ".activation_scaling_factor").astype(np.float64)
        x = integers(x * get(name + ".prequant_scaling_factor").astype(np.float64) / step) * step
        return x @ (weight * get(name + ".weights_scaling_factor").astype(np.float64)[:, None]).T
    if last in OWNER:
        x = x / get(name + ".smoother")[0]
    scale = get(name + ".per_channel_scale").astype(np.float64)
    if algo.endswith("PER_TOKEN_PLUGIN"):
        step = np.abs(x).max() / 127
        return integers(x / step) * step @ weight.T * scale[0]
    owner = f"{BEFORE[last]}.scale_to_int" if last in BEFORE else f"{OWNER[last]}.quantization_scaling_factor"
    return (
        integers(x * get(layer + owner))
        @ weight.T
        * scale[0]
        * get(name + ".act_scale")[0].astype(np.float64)
    )


def awq_linear(
    get: Callable[[str], np.ndarray], block: dict[str, Any], x: np.ndarray, name: str
) -> np.ndarray:
    stored = get(name + ".weight").astype(np.int16)
    codes = np.empty((2 * len(stored), stored.shape[1]))
    codes[0::2], codes[1::2] = (stored & 15 ^ 8) - 8, stored >> 4
    scale = get(name + ".weights_scaling_factor")
    if block["quant_algo"] == "W4A8_AWQ":
        x = x * get(name + ".prequant_scaling_factor").astype(np.float64)
        step = get(name + ".activation_scaling_factor").astype(np.float64)
        x = float8(x / step).astype(np.float64) * step
        second = get(name + ".weights_scaling_factor_2")
        scale = (scale / second).astype(np.float16).astype(np.float64) * second
        return x @ (codes * np.repeat(scale, GROUP, axis=1)).T
    weight = codes * np.repeat(scale.astype(ml_dtypes.bfloat16).astype(np.float64), GROUP, axis=1)
    if block["has_zero_point"]:
        weight += np.repeat(get(name + ".zero").astype(np.float64).T, GROUP, axis=1)
    return (
        x * get(name + ".prequant_scaling_factor").astype(np.float64) if block["pre_quant_scale"] else x
    ) @ weight.T


def cached(y: np.ndarray, kv_cache: str | None, step: float) -> np.ndarray:
    """Return keys or values as they are read back from a cache."""
    if kv_cache is None:
        return y
    return (integers(y / step) if kv_cache == "INT8" else float8(y / step).astype(np.float64)) * step
