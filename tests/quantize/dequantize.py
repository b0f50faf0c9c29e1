"""What quantized linear layers mean, by the formulas of TensorRT-LLM's layers and not by trtkit."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

Tensors = Mapping[str, np.ndarray]
LINEAR = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
NORMS = {"attention.qkv": "input_layernorm", "mlp.fc": "post_layernorm", "mlp.gate": "post_layernorm"}
INPUTS = {"attention.dense": "attention", "mlp.proj": "mlp"}


def fp8(tensors: Tensors, layer: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(weights, largest errors)`` of FP8, per tensor or per row."""
    prefix = f"{layer}{name}."
    stored = tensors[prefix + "weight"]
    assert stored.dtype == ml_dtypes.float8_e4m3fn
    scale = tensors.get(prefix + "weights_scaling_factor")
    scale = tensors[prefix + "per_channel_scale"][:, None] if scale is None else scale
    weights = stored.astype(np.float64) * scale
    # E4M3: 3 bits behind the leading one, and steps of 2**-9 near zero; half a step is lost.
    return weights, np.maximum(np.abs(weights) / 15, scale * 2.0**-10) * 1.0001


def smooth(tensors: Tensors, plain: Tensors, layer: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The same for SmoothQuant's plugins; what the norm before the layer, or its smoother, does is undone.

    Half a step is lost, and five roundings to float16 (weight, product, step, and two norms) are at most 2**-11 of 127
    steps each.
    """
    prefix = f"{layer}{name}."
    step = tensors[prefix + "per_channel_scale"].astype(np.float64)
    assert step.shape[0] == 1
    if prefix + "act_scale" in tensors:
        owner, key = (
            (INPUTS[name], "quantization_scaling_factor") if name in INPUTS else (NORMS[name], "scale_to_int")
        )
        step = step * tensors[prefix + "act_scale"] * tensors[f"{layer}{owner}.{key}"]
    factor = smoother(tensors, plain, layer, name)
    return tensors[prefix + "weight"] * step.T / factor, step.T / factor * (0.5 + 5 * 127 * 2.0**-11)


def smoother(tensors: Tensors, plain: Tensors, layer: str, name: str) -> np.ndarray:
    """Return by what the layer's input is divided."""
    if name in NORMS:
        norm = f"{layer}{NORMS[name]}.weight"
        return plain[norm].astype(np.float64) / tensors[norm]
    found = tensors[f"{layer}{name}.smoother"]
    assert found.shape[0] == 1
    return found[0].astype(np.float64)


def qdq(tensors: Tensors, layer: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The same for SmoothQuant as Q/DQ nodes."""
    prefix = f"{layer}{name}."
    scale = tensors[prefix + "weights_scaling_factor"][:, None].astype(np.float64)
    factor = tensors[prefix + "prequant_scaling_factor"].astype(np.float64)
    return tensors[prefix + "weight"] * scale * factor, scale * factor * 0.5001


def baked(tensors: Tensors, layer: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The same for INT8 weights in the layout of SM 80, byte by byte."""
    prefix = f"{layer}{name}."
    scale = tensors[prefix + "per_channel_scale"].astype(np.float64)
    width, out = tensors[prefix + "weight"].shape
    data = tensors[prefix + "weight"].reshape(-1).view(np.uint8).astype(np.int16) - 128
    weights = np.empty((out, width))
    # Where byte `place` of 2 rows and 64 columns is from.
    places = [(place // 64, place % 64 // 16 * 16 + place % 2 * 8 + place % 16 // 2) for place in range(128)]
    for tile, values in enumerate(data.reshape(-1, 128)):
        pair, column = divmod(tile, width // 64)
        for (row, inside), value in zip(places, values, strict=True):
            weights[2 * pair + row, 64 * column + inside] = value
    # The largest weight is 128 steps, of which 127 are stored.
    return weights * scale[:, None], np.where(weights == 127, 1.001, 0.501) * scale[:, None]
