"""Linear layers of every format: the numbers are those of TensorRT-LLM's layers, the kernels OpenVINO's.

How OpenVINO 2026.4 runs them with float32 as precision (the tests look it up in the compiled graph), and decoded tokens
per second against INT8 weight-only at batch 1 and 8:

    W8A16                        float32 x int8, widened in the kernel (``brgemm_avx512_f32``)   1.00   1.00
    SmoothQuant, Q/DQ            int8 x int8, exact (``brgemm_avx512_i8``)                       0.98   1.90
    SmoothQuant, static          the same                                                        0.87   1.79
    SmoothQuant, per token       the same                                                        0.84   1.68
    W4A16_AWQ                    float32 x uint4, widened in the kernel                          1.00   1.12
    FP8                          float32 x float32: weights are widened when they are loaded     0.55   1.15
    FP8 per row and token        the same                                                        0.59   1.11
    plain                        the same                                                        0.58   1.21

SmolLM2-135M, medians of 80 steps each, the engines in turn in one process, one thread of two shared Zen 5 cores that
had four times more to do than they could; with an INT8 or FP8 KV cache 1.05 and 1.00 of the same without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from openvino import opset13 as op

from trtkit.checkpoint.weight_only import quantize_int8
from trtkit.engine.cpu.nodes import Array, Node, constant, floats, ints, nibbles, product
from trtkit.engine.cpu.rounding import e4m3, e4m3_tokens, int8, int8_tokens
from trtkit.engine.scales import CLAMPS, INPUT_SCALES, SMOOTHED, check_norms
from trtkit.engine.tensors import Tensors
from trtkit.errors import StageError


class Linears:
    """Adds the linear layers of one checkpoint to a graph."""

    def __init__(self, tensors: Tensors, config: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._config = config
        algo = (config.get("quantization") or {}).get("quant_algo")
        if FORMS.get(algo) in _INSIDE_NORMS:
            check_norms(tensors.names, str(algo))

    def __call__(self, x: Node, name: str) -> Node:
        """Return ``x`` times the weight of the layer ``name``, and its bias if it has one."""
        layer = _Layer(self._tensors, name, self._config["dtype"])
        y = FORMS[layer.quantization.get("quant_algo")](layer, x)
        bias = name + ".bias"
        return op.add(y, floats(self._tensors.read(bias))) if bias in self._tensors else y


class _Layer:
    """One linear layer's tensors by what follows its name."""

    def __init__(self, tensors: Tensors, name: str, dtype: str) -> None:
        self.tensors = tensors
        self.name = name
        self.quantization = tensors.block_of(name)
        self.dtype = dtype
        self.block, _, self.last = name.rpartition(".")
        self.decoder_layer = self.block.rpartition(".")[0]

    def weight(self, *dtypes: str) -> Array:
        return self.tensors.read(self.name + ".weight", *dtypes)

    def vector(self, suffix: str, *sizes: int) -> npt.NDArray[np.float32]:
        return self.tensors.vector(f"{self.name}.{suffix}", *sizes)

    def number(self, suffix: str) -> np.float32:
        return self.tensors.number(f"{self.name}.{suffix}")

    def shared(self, name: str) -> str:
        """Return the name of a tensor that the decoder layer has once."""
        return f"{self.decoder_layer}.{name}"


def _plain(layer: _Layer, x: Node) -> Node:
    return product(x, op.convert(constant(layer.weight()), "f32"))


def _weight_only(layer: _Layer, x: Node) -> Node:
    """Quantize here, as TensorRT-LLM's loader does."""
    quantized, scale = quantize_int8(layer.weight())
    return product(x, _scaled_rows(quantized, scale))


def _smooth_static(layer: _Layer, x: Node) -> Node:
    """SmoothQuant's plugins with recorded ranges: ``acc * per_channel_scale * act_scale``."""
    weight = layer.weight("int8")
    scale = layer.vector("per_channel_scale", len(weight), 1) * layer.number("act_scale")
    to_int = layer.tensors.number(layer.shared(INPUT_SCALES[layer.last]))
    quantized = int8(op.multiply(_smoothed(layer, x, weight), floats(to_int)))
    return product(quantized, _scaled_rows(weight, scale))


def _smooth_tokens(layer: _Layer, x: Node) -> Node:
    """SmoothQuant's plugins, token by token; a norm's ``scale_to_int`` must be there and has no effect."""
    weight = layer.weight("int8")
    tokens = int8_tokens(_smoothed(layer, x, weight))
    scale = layer.vector("per_channel_scale", len(weight), 1)
    if layer.last not in SMOOTHED:
        layer.tensors.number(layer.shared(INPUT_SCALES[layer.last]))
    return op.multiply(product(tokens.values, _scaled_rows(weight, scale)), tokens.step)


def _smooth_qdq(layer: _Layer, x: Node) -> Node:
    """SmoothQuant as Q/DQ nodes: the input is multiplied with ``prequant_scaling_factor`` first."""
    weight, step = layer.weight("int8"), layer.number("activation_scaling_factor")
    factor = layer.vector("prequant_scaling_factor", weight.shape[1])
    scale = layer.vector("weights_scaling_factor", len(weight)) * step
    return product(int8(op.multiply(x, floats(factor / step))), _scaled_rows(weight, scale))


def _fp8(layer: _Layer, x: Node) -> Node:
    """FP8 with one scale for weights and one for activations."""
    weight, step = layer.weight("float8_e4m3fn"), layer.number("activation_scaling_factor")
    acc = product(e4m3(op.divide(x, floats(step))), op.convert(constant(weight), "f32"))
    return op.multiply(acc, floats(step * layer.number("weights_scaling_factor")))


def _fp8_rows(layer: _Layer, x: Node) -> Node:
    """FP8 with a scale per row and per token; activations are clamped before that, if the checkpoint says so."""
    weight = layer.weight("float8_e4m3fn")
    if layer.quantization.get("clamp_val") is not None:
        low, high = layer.tensors.vector(layer.shared(CLAMPS[layer.last]), 2, positive=False)
        x = op.clamp(x, float(low), float(high))
    tokens = e4m3_tokens(x)
    acc = product(tokens.values, op.convert(constant(weight), "f32"))
    return op.multiply(op.multiply(acc, floats(layer.vector("per_channel_scale", len(weight)))), tokens.step)


def _awq(layer: _Layer, x: Node) -> Node:
    """INT4 with a scale, and maybe a zero point, per group of input columns; scales in the model's data type."""
    return product(_prequantized(layer, x), _int4(layer, lambda scale: scale, rounded_to=layer.dtype))


def _awq_fp8(layer: _Layer, x: Node) -> Node:
    """INT4 and FP8 activations; loaders bring the groups' scales into FP8's range, and round them to float16 there."""
    step, second = layer.number("activation_scaling_factor"), layer.number("weights_scaling_factor_2")
    as_half = lambda scale: (scale / second).astype(np.float16).astype(np.float32)  # noqa: E731
    weight = _int4(layer, as_half, rounded_to="float32")
    acc = product(e4m3(op.divide(_prequantized(layer, x), floats(step))), weight)
    return op.multiply(acc, floats(step * second))


def _prequantized(layer: _Layer, x: Node) -> Node:
    if not layer.quantization.get("pre_quant_scale", True):
        return x
    width = layer.weight("int8").shape[1]
    return op.multiply(x, floats(layer.vector("prequant_scaling_factor", width)))


def _int4(layer: _Layer, brought: Callable[[Array], Array], rounded_to: str) -> Node:
    """Return the weight ``(out, in)``, its scales brought to where they are used."""
    stored, flags = layer.weight("int8").view(np.uint8), layer.quantization
    out, width, size = 2 * len(stored), stored.shape[1], int(flags.get("group_size", 128))
    if width % size:
        raise StageError(
            f"{layer.name} has {width} columns, no multiple of group_size {size}", hint="mend config.json"
        )
    groups = width // size
    # Two rows to a byte, the even one low; with the sign bit turned -8 ... 7 are 0 ... 15.
    codes = np.stack([stored & 15, stored >> 4], axis=1).reshape(out, groups, size) ^ 8
    scale = layer.tensors.vector(
        layer.name + ".weights_scaling_factor", out * groups, rounded_to=rounded_to
    ).reshape(out, groups, 1)
    centre = np.full_like(scale, 8.0)
    if flags.get("has_zero_point", False):
        zero = layer.tensors.vector(layer.name + ".zero", out * groups, positive=False)
        centre -= zero.reshape(groups, out).T[..., None] / scale
    steps = op.subtract(op.convert(nibbles(codes), "f32"), floats(centre))
    return op.reshape(op.multiply(steps, floats(brought(scale))), ints([out, width]), special_zero=False)


def _smoothed(layer: _Layer, x: Node, weight: Array) -> Node:
    """Divide by the smoother where no norm before the layer could."""
    return op.divide(x, floats(layer.vector("smoother", weight.shape[1]))) if layer.last in SMOOTHED else x


def _scaled_rows(weight: Array, scale: Array) -> Node:
    return op.multiply(op.convert(constant(weight), "f32"), floats(scale[:, None]))


FORMS: dict[str | None, Callable[[_Layer, Node], Node]] = {
    None: _plain,
    "NO_QUANT": _plain,
    "W8A16": _weight_only,
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": _smooth_tokens,
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": _smooth_tokens,
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": _smooth_static,
    "W8A8_SQ_PER_TENSOR_PLUGIN": _smooth_static,
    "W8A8_SQ_PER_CHANNEL": _smooth_qdq,
    "FP8": _fp8,
    "FP8_PER_CHANNEL_PER_TOKEN": _fp8_rows,
    "W4A16_AWQ": _awq,
    "W4A8_AWQ": _awq_fp8,
}
"""By ``quantization.quant_algo``."""

_INSIDE_NORMS = (_smooth_tokens, _smooth_static, _fp8_rows)
"""Forms whose norms hand out int8 or FP8, and whose other layers are attention's and the MLP's last."""
