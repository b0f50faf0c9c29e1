"""What the tensors of each algorithm stand for: formulas of TensorRT-LLM's layers, one rank at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trtkit.checkpoint.safetensors import Array, numpy_dtype
from trtkit.checkpoint.weight_only import dequantize_int8, quantize_int8
from trtkit.errors import InputError
from trtkit.quantize.gate.baked import unbaked_int4, unbaked_int8
from trtkit.quantize.gate.linear import Activation, Floats, Grid, Written

Parts = Mapping[str, Array]

_OWNERS = {
    "attention.qkv": "input_layernorm",
    "attention.dense": "attention",
    "mlp.fc": "post_layernorm",
    "mlp.gate": "post_layernorm",
    "mlp.proj": "mlp",
}
"""Who rounds a layer's input: the norm before it, or the module that it is in."""
_INPUT_SCALES = ("scale_to_int", "quantization_scaling_factor")
"""Steps per unit of what norms, and of what modules round."""


def weight_of(linear: Written) -> Floats:
    """Return the weight that the engine multiplies with, ``(out, in)``; of experts with their number in front.

    Raises:
        InputError: There is no formula, or ranks contradict each other.
    """
    form = _WEIGHTS.get(linear.algorithm)
    if form is None:
        message = f"the gate does not know what {linear.algorithm} computes"
        raise InputError(
            message, path=linear.checkpoint.folder, hint=f"it knows {', '.join(map(str, _WEIGHTS))}"
        )
    return linear.joined([form(parts, linear) for parts in linear.rank_parts()])


def activation_of(linear: Written) -> Activation | None:
    """Return what is done with the layer's input; None for nothing."""
    form = _ACTIVATIONS.get(linear.algorithm)
    return form(linear) if form else None


def _plain(parts: Parts, _: Written) -> Floats:
    return parts["weight"].astype(np.float32)


def _weight_only(parts: Parts, linear: Written) -> Floats:
    """Quantize as the loader does, which sees the rank's own rows and columns only."""
    if linear.baked:
        codes = unbaked_int8(parts["weight"], linear.baked)
        return dequantize_int8(codes, parts["per_channel_scale"])
    weight = parts["weight"]
    rows = dequantize_int8(*quantize_int8(weight.reshape(-1, weight.shape[-1])))
    return rows.reshape(weight.shape)


def _fp8(parts: Parts, _: Written) -> Floats:
    weight, scale = parts["weight"].astype(np.float32), parts["weights_scaling_factor"].reshape(-1)
    weight *= scale[:, None, None] if weight.ndim > 2 else scale
    return weight


def _fp8_rows(parts: Parts, _: Written) -> Floats:
    return _by_row(parts["weight"], parts["per_channel_scale"])


def _smoothed(parts: Parts, linear: Written) -> Floats:
    """Return what the accumulator is multiplied with, put into the weight; the input is in real units again."""
    scale = parts["per_channel_scale"].reshape(-1)
    if "act_scale" in parts:
        scale = scale * parts["act_scale"].reshape(-1) * _steps_per_unit(linear)
    return _by_row(parts["weight"], scale)


def _qdq(parts: Parts, _: Written) -> Floats:
    return _by_row(parts["weight"], parts["weights_scaling_factor"])


def _awq(parts: Parts, linear: Written) -> Floats:
    codes = _unpacked(parts["weight"])
    # Loaders round scales to the data type of the model.
    scale = _as_model(parts["weights_scaling_factor"], linear)
    return _grouped(codes, scale, parts.get("zero"), linear)


def _awq_fp8(parts: Parts, linear: Written) -> Floats:
    """Bring scales into the range of FP8, where loaders round them to float16, and back."""
    second = parts["weights_scaling_factor_2"].reshape(-1)[0]
    scale = (parts["weights_scaling_factor"].astype(np.float32) / second).astype(np.float16)
    return _grouped(_unpacked(parts["weight"]), scale.astype(np.float32) * second, None, linear)


def _gptq(parts: Parts, linear: Written) -> Floats:
    codes = unbaked_int4(parts["weight"], linear.baked or "")
    return _grouped(codes, parts["weights_scaling_factor"].T.astype(np.float32), parts.get("zero"), linear)


def _grouped(codes: Array, scale: Floats, zero: Array | None, linear: Written) -> Floats:
    size = int(linear.quantization["group_size"])
    weight: Floats = codes.astype(np.float32) * np.repeat(scale, size, axis=1)
    if zero is not None:
        weight += np.repeat(zero.T.astype(np.float32), size, axis=1)
    return weight


def _by_row(weight: Array, scale: Array) -> Floats:
    result: Floats = weight.astype(np.float32) * scale[:, None]
    return result


def _unpacked(weight: Array) -> Array:
    packed = weight.view(np.uint8)
    codes = np.empty((2 * packed.shape[0], packed.shape[1]), np.int8)
    codes[0::2], codes[1::2] = _signed(packed & 15), _signed(packed >> 4)
    return codes


def _signed(nibbles: Array) -> Array:
    return (nibbles.astype(np.int8) ^ np.int8(8)) - np.int8(8)


def _as_model(values: Array, linear: Written) -> Floats:
    return values.astype(np.float32).astype(numpy_dtype(linear.layout.dtype)).astype(np.float32)


def _steps_per_unit(linear: Written) -> np.float32:
    owner = _OWNERS[linear.name]
    found = [linear.of_layer(f"{owner}.{name}") for name in _INPUT_SCALES]
    return np.float32(next(scale for scale in found if scale is not None)[0])


def _of_fp8(linear: Written) -> Activation:
    step = linear.part("activation_scaling_factor")
    assert step is not None  # noqa: S101 - verified with the scheme
    return Activation(Grid.FP8, float(step[0]), linear.part("prequant_scaling_factor"))


def _of_fp8_rows(linear: Written) -> Activation:
    bound = linear.of_layer(f"{_OWNERS[linear.name]}.clamp_val")
    clamp = None if bound is None else (float(bound[0]), float(bound[1]))
    return Activation(Grid.FP8, clamp=clamp, slices=linear.slices)


def _of_smoothed(linear: Written) -> Activation:
    smoother = linear.part("smoother")
    factor = None if smoother is None else 1 / smoother.reshape(-1)
    if linear.part("act_scale") is None:
        return Activation(Grid.INT8, factor=factor, slices=linear.slices)
    return Activation(Grid.INT8, float(1 / _steps_per_unit(linear)), factor)


def _of_qdq(linear: Written) -> Activation:
    step = linear.part("activation_scaling_factor")
    assert step is not None  # noqa: S101 - verified with the scheme
    return Activation(Grid.INT8, float(step[0]), linear.part("prequant_scaling_factor"))


def _of_awq(linear: Written) -> Activation | None:
    factor = linear.part("prequant_scaling_factor")
    return None if factor is None else Activation(factor=factor)


_PLUGINS = (
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "W8A8_SQ_PER_TENSOR_PLUGIN",
)
_WEIGHTS: dict[str | None, Callable[[Parts, Written], Floats]] = {
    None: _plain,
    "W8A16": _weight_only,
    "FP8": _fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rows,
    **dict.fromkeys(_PLUGINS, _smoothed),
    "W8A8_SQ_PER_CHANNEL": _qdq,
    "W4A16_AWQ": _awq,
    "W4A8_AWQ": _awq_fp8,
    "W4A16_GPTQ": _gptq,
}
_ACTIVATIONS: dict[str | None, Callable[[Written], Any]] = {
    "FP8": _of_fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _of_fp8_rows,
    **dict.fromkeys(_PLUGINS, _of_smoothed),
    "W8A8_SQ_PER_CHANNEL": _of_qdq,
    "W4A16_AWQ": _of_awq,
    "W4A8_AWQ": _of_fp8,
}
