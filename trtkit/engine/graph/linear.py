"""Linear layers of every format, as the pairs of Q and DQ that compilers take for INT8 and FP8 products.

``W8A8`` is a product of dequantized values: ``DequantizeLinear(QuantizeLinear(x)) @ DequantizeLinear(weight)``. Scales
per token, which no compiler has, are taken out of it: ``x`` is divided by its largest magnitude, quantized in steps of
1/127 (FP8: 1/448), and the product is multiplied again. INT4 zero points become a product of their own, with the sums
of each group's inputs, since compilers have no INT4 with zero points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import TensorInfo, numpy_dtype
from trtkit.engine.graph.nodes import Graph, Tensor, Value
from trtkit.engine.graph.spec import LinearForm
from trtkit.engine.graph.weights import as_steps, int4_pieces, stored_pieces, weight_only_pieces
from trtkit.engine.scales import CLAMPS, INPUT_SCALES, SMOOTHED, check_norms
from trtkit.engine.tensors import FLOATS, Tensors
from trtkit.errors import StageError

Floats = npt.NDArray[np.float32]

_INT8_MAX, _FP8_MAX = 127.0, 448.0
_FP8_LEAST = 1 / 512
"""Largest magnitude that a token is taken to have at least by TensorRT-LLM."""


class Linears:
    """Adds the linear layers of one checkpoint to a graph."""

    def __init__(self, graph: Graph, tensors: Tensors, config: Mapping[str, Any]) -> None:
        self.forms: dict[str, LinearForm] = {}
        self._graph = graph
        self._tensors = tensors
        self._config = config
        algo = (config.get("quantization") or {}).get("quant_algo")
        self._form, self._kind = FORMS[algo]
        if self._form in _INSIDE_NORMS:
            check_norms(tensors.names, str(algo))

    def __call__(self, x: Value, name: str) -> Value:
        """Return ``x`` times the weight of the layer ``name``, and its bias if it has one."""
        return self._add(x, name, self._form, self._kind)

    def plain(self, x: Value, name: str) -> Value:
        """Do the same for a layer that no format quantizes."""
        return self._add(x, name, _plain, LinearForm.FLOAT)

    def _add(self, x: Value, name: str, form: _Form, kind: LinearForm) -> Value:
        y = form(_Layer(self._graph, self._tensors, name, self._config), x)
        self.forms[name] = kind
        bias = name + ".bias"
        if bias not in self._tensors:
            return y
        values = self._tensors.read(bias).astype(np.float32)
        return self._graph.node("Add", y, self._graph.vector(values, bias), name=name + "/biased")


class _Layer:
    """One linear layer's tensors by what follows its name, and the nodes that all forms share."""

    def __init__(self, graph: Graph, tensors: Tensors, name: str, config: Mapping[str, Any]) -> None:
        self.graph = graph
        self.tensors = tensors
        self.name = name
        self.quantization = config.get("quantization") or {}
        self.dtype = str(config["dtype"])
        self.block, _, self.last = name.rpartition(".")
        self.decoder_layer = self.block.rpartition(".")[0]

    def weight(self, *dtypes: str) -> TensorInfo:
        return self.tensors.info(self.name + ".weight", *dtypes)

    def vector(self, suffix: str, *sizes: int) -> Floats:
        return self.tensors.vector(f"{self.name}.{suffix}", *sizes)

    def number(self, suffix: str) -> float:
        return float(self.tensors.number(f"{self.name}.{suffix}"))

    def shared(self, name: str) -> str:
        """Return the name of a tensor that the decoder layer has once."""
        return f"{self.decoder_layer}.{name}"

    def product(self, x: Value, weight: Value) -> Value:
        """Multiply with the transpose of ``(out, in)``, the order in which tensor cores want it."""
        turned = self.graph.node("Transpose", weight, name=self.name + "/transposed", perm=[1, 0])
        return self.graph.node("MatMul", x, turned, name=self.name)

    def scaled(self, x: Value, factors: Floats, part: str) -> Value:
        factor = self.graph.vector(factors, f"{self.name}/{part}_factor")
        return self.graph.node("Mul", x, factor, name=f"{self.name}/{part}")

    def scale(self, values: Floats, part: str) -> Value:
        """Return steps in the activations' type: with steps of another one compilers and runtimes lose their way."""
        return self.graph.constant(as_steps(values, self.graph.dtype, self.name), f"{self.name}/{part}")

    def rounded(self, x: Value, step: float, dtype: str) -> Value:
        """Return ``x`` as it is after quantization with one step."""
        scale = self.scale(np.array(step, np.float32), "input_scale")
        zero = self.graph.constant(np.zeros((), numpy_dtype(dtype)))
        quantized = self.graph.node("QuantizeLinear", x, scale, zero, name=self.name + "/quantize")
        return self.graph.node("DequantizeLinear", quantized, scale, zero, name=self.name + "/dequantize")

    def dequantized(self, weight: Value, scale: Value, **attributes: int) -> Value:
        name = self.name + "/dequantize_weight"
        return self.graph.node("DequantizeLinear", weight, scale, name=name, **attributes)

    def by_row(self, dtype: str, scale: Floats) -> Value:
        """Return the stored weight with a scale for each output row."""
        return self.dequantized(self.stored(dtype), self.scale(scale, "weight_scale"), axis=0)

    def stored(self, *dtypes: str) -> Value:
        """Return the weight ``(out, in)`` in its stored type, floats in the activations' type."""
        info = self.weight(*dtypes)
        dtype = self.graph.dtype if info.dtype in FLOATS else info.dtype
        return self.graph.streamed(lambda: stored_pieces(info, dtype), Tensor(info.name, dtype, info.shape))


def _plain(layer: _Layer, x: Value) -> Value:
    return layer.product(x, layer.stored())


def _weight_only(layer: _Layer, x: Value) -> Value:
    """Quantize here, as TensorRT-LLM's loader does."""
    info, dtype = layer.weight(), layer.graph.dtype
    weight = Tensor(info.name, "int8", info.shape)
    scale = Tensor(layer.name + "/weight_scale", dtype, info.shape[:1])
    layer.graph.streamed(lambda: weight_only_pieces(info, dtype), weight, scale)
    return layer.product(x, layer.dequantized(weight.name, scale.name, axis=0))


def _smooth_static(layer: _Layer, x: Value) -> Value:
    """SmoothQuant's plugins with recorded ranges: ``acc * per_channel_scale * act_scale``."""
    out, _ = layer.weight("int8").shape
    to_int = float(layer.tensors.number(layer.shared(INPUT_SCALES[layer.last])))
    scale = np.broadcast_to(layer.vector("per_channel_scale", out, 1), out)
    # One factor for the sums: what the inputs' step does not stand for belongs to the weights'.
    weight = layer.by_row("int8", scale * np.float32(layer.number("act_scale") * to_int))
    return layer.product(layer.rounded(_smoothed(layer, x), 1 / to_int, "int8"), weight)


def _smooth_tokens(layer: _Layer, x: Value) -> Value:
    """SmoothQuant's plugins, token by token; a norm's ``scale_to_int`` must be there and has no effect."""
    out, _ = layer.weight("int8").shape
    if layer.last not in SMOOTHED:
        layer.tensors.number(layer.shared(INPUT_SCALES[layer.last]))
    scale = np.broadcast_to(layer.vector("per_channel_scale", out, 1), out)
    # Only zeros have to be kept from being divided by zero.
    least = float(ml_dtypes.finfo(numpy_dtype(layer.graph.dtype)).tiny)
    return _by_token(
        layer, _smoothed(layer, x), layer.by_row("int8", scale), _Steps("int8", _INT8_MAX, least)
    )


def _smooth_qdq(layer: _Layer, x: Value) -> Value:
    """SmoothQuant as Q/DQ nodes: the input is multiplied with ``prequant_scaling_factor`` first."""
    out, width = layer.weight("int8").shape
    x = layer.scaled(x, layer.vector("prequant_scaling_factor", width), "smoothed")
    weight = layer.by_row("int8", layer.vector("weights_scaling_factor", out))
    return layer.product(layer.rounded(x, layer.number("activation_scaling_factor"), "int8"), weight)


def _fp8(layer: _Layer, x: Value) -> Value:
    """FP8 with one scale for weights and one for activations."""
    scale = layer.scale(np.array(layer.number("weights_scaling_factor"), np.float32), "weight_scale")
    weight = layer.dequantized(layer.stored("float8_e4m3fn"), scale)
    return layer.product(layer.rounded(x, layer.number("activation_scaling_factor"), "float8_e4m3fn"), weight)


def _fp8_rows(layer: _Layer, x: Value) -> Value:
    """FP8 with a scale per row and per token; activations are clamped before that, if the checkpoint says so."""
    out, _ = layer.weight("float8_e4m3fn").shape
    if layer.quantization.get("clamp_val") is not None:
        bounds = layer.tensors.vector(layer.shared(CLAMPS[layer.last]), 2, positive=False)
        low, high = (layer.graph.number(float(bound)) for bound in bounds)
        x = layer.graph.node("Clip", x, low, high, name=layer.name + "/clamped")
    weight = layer.by_row("float8_e4m3fn", layer.vector("per_channel_scale", out))
    return _by_token(layer, x, weight, _Steps("float8_e4m3fn", _FP8_MAX, _FP8_LEAST))


class _Steps(NamedTuple):
    """How a token's values are rounded."""

    dtype: str
    largest: float
    """What the token's largest magnitude becomes."""
    least: float
    """What that is taken for at least."""


def _by_token(layer: _Layer, x: Value, weight: Value, steps: _Steps) -> Value:
    """Multiply tokens that are quantized by their own largest magnitude."""
    graph, name = layer.graph, layer.name
    magnitude = graph.node("ReduceMax", graph.node("Abs", x), graph.ints(-1), keepdims=1)
    magnitude = graph.node("Max", magnitude, graph.number(steps.least), name=name + "/magnitude")
    unit = layer.rounded(graph.node("Div", x, magnitude), 1 / steps.largest, steps.dtype)
    return graph.node("Mul", layer.product(unit, weight), magnitude, name=name + "/restored")


def _awq(layer: _Layer, x: Value) -> Value:
    """INT4 with a scale, and maybe a zero point, per group of input columns; scales in the model's data type."""
    info, flags = layer.weight("int8"), layer.quantization
    out, width, size = 2 * info.shape[0], info.shape[1], int(flags.get("group_size", 128))
    if width % math.lcm(size, 2):
        message = f"{layer.name} has {width} columns, no multiple of group_size {size} and 2"
        raise StageError(message, hint="mend config.json")
    groups = width // size
    if flags.get("pre_quant_scale", True):
        x = layer.scaled(x, layer.vector("prequant_scaling_factor", width), "smoothed")
    name = layer.name + ".weights_scaling_factor"
    steps = layer.tensors.vector(name, out * groups, rounded_to=layer.dtype).reshape(out, groups)
    scale = layer.scale(steps, "weight_scale")
    tensor = Tensor(layer.name + ".weight", "int4", (out, width))
    weight = layer.graph.streamed(lambda: int4_pieces(info), tensor)
    y = layer.product(x, layer.dequantized(weight, scale, axis=1, block_size=size))
    if not flags.get("has_zero_point", False):
        return y
    zero = layer.tensors.vector(layer.name + ".zero", out * groups, positive=False).reshape(groups, out)
    graph = layer.graph
    grouped = graph.node("Reshape", x, graph.ints(0, 0, groups, size))
    sums = graph.node("ReduceSum", grouped, graph.ints(-1), keepdims=0)
    shift = graph.node("MatMul", sums, graph.vector(zero, layer.name + ".zero"), name=layer.name + "/zero")
    return graph.node("Add", y, shift, name=layer.name + "/shifted")


def _smoothed(layer: _Layer, x: Value) -> Value:
    """Divide by the smoother where no norm before the layer could."""
    if layer.last not in SMOOTHED:
        return x
    return layer.scaled(x, 1 / layer.vector("smoother", layer.weight("int8").shape[1]), "smoothed")


_Form = Callable[[_Layer, Value], Value]
FORMS: dict[str | None, tuple[_Form, LinearForm]] = {
    None: (_plain, LinearForm.FLOAT),
    "NO_QUANT": (_plain, LinearForm.FLOAT),
    "W8A16": (_weight_only, LinearForm.INT8_WEIGHTS),
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": (_smooth_tokens, LinearForm.INT8),
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": (_smooth_tokens, LinearForm.INT8),
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": (_smooth_static, LinearForm.INT8),
    "W8A8_SQ_PER_TENSOR_PLUGIN": (_smooth_static, LinearForm.INT8),
    "W8A8_SQ_PER_CHANNEL": (_smooth_qdq, LinearForm.INT8),
    "FP8": (_fp8, LinearForm.FP8),
    "FP8_PER_CHANNEL_PER_TOKEN": (_fp8_rows, LinearForm.FP8),
    "W4A16_AWQ": (_awq, LinearForm.INT4_WEIGHTS),
}
"""By ``quantization.quant_algo``."""

_INSIDE_NORMS = (_smooth_tokens, _smooth_static, _fp8_rows)
"""Forms whose norms hand out int8 or FP8, and whose other layers are attention's and the MLP's last."""
