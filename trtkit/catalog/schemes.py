"""The tensors of each quantization algorithm in a TensorRT-LLM checkpoint. Data only.

Every linear layer of the algorithm consists of ``parts``; shapes follow from the layer's ``(out, in)``, and so does
the way tensor parallelism divides them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


class Axis(enum.Enum):
    """One dimension of a part, in terms of the layer's weight; it is divided among the ranks as that is."""

    ONE = "1, whole on every rank"
    EXPERTS = "number of experts; only the layers that have them have this axis"
    OUT = "out"
    OUT_PAIRS = "out / 2"
    OUT_QUARTERS = "out / 4"
    IN = "in"
    IN_GROUPS = "in / group_size"


MODEL_DTYPE = "model"
"""Stands for the data type of the checkpoint."""


@dataclass(frozen=True)
class Part:
    """One tensor of a quantized linear layer; ``suffix`` takes the place of ``weight`` in the name."""

    suffix: str
    dtypes: tuple[str, ...]
    """The data types that loaders take; the first one is written."""
    axes: tuple[Axis, ...]
    layers: tuple[str, ...] = ()
    """Last names of the layers that have it (``dense``, ``proj``, ...); empty for all."""
    when: str = ""
    """Flag of the ``quantization`` block that must be true for it, for instance ``has_zero_point``."""

    def applies(self, name: str, quantization: Mapping[str, object]) -> bool:
        """Return whether the linear layer whose weight is ``name`` has it."""
        layer = name.split(".")[-2]
        return (not self.layers or layer in self.layers) and (
            not self.when or quantization.get(self.when) is True
        )


@dataclass(frozen=True)
class LayerPart:
    """A tensor that a decoder layer has once, whole on every rank."""

    name: str
    """Below ``transformer.layers.N.``."""
    dtypes: tuple[str, ...]
    shape: tuple[int, ...] = (1,)
    when: str = ""
    """Key of the ``quantization`` block that must have a value for it, for instance ``clamp_val``."""

    def applies(self, quantization: Mapping[str, object]) -> bool:
        """Return whether the layers of such a checkpoint have it."""
        return not self.when or quantization.get(self.when) is not None


@dataclass(frozen=True)
class Scheme:
    """What an algorithm stores."""

    parts: tuple[Part, ...]
    layer_parts: tuple[LayerPart, ...] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    """Keys of the ``quantization`` block beside ``quant_algo`` and ``kv_cache_quant_algo``, with defaults."""


_PLAIN = Part("weight", (MODEL_DTYPE,), (Axis.EXPERTS, Axis.OUT, Axis.IN))
_FLOATS = ("float32", "float16", "bfloat16")
_FP8 = Part("weight", ("float8_e4m3fn",), (Axis.EXPERTS, Axis.OUT, Axis.IN))
_INT8 = Part("weight", ("int8",), (Axis.OUT, Axis.IN))
_GROUP_ZERO = Part("zero", (MODEL_DTYPE,), (Axis.IN_GROUPS, Axis.OUT), when="has_zero_point")
_SMOOTHED = (_INT8, Part("smoother", ("float32",), (Axis.ONE, Axis.IN), layers=("dense", "proj")))
_ROW_SCALES = Part("per_channel_scale", ("float32",), (Axis.ONE, Axis.OUT))
# Q, K and V have a scale each, so that their layer has one per row all the same.
_LAYER_SCALES = (
    Part("per_channel_scale", ("float32",), (Axis.ONE, Axis.OUT), layers=("qkv",)),
    Part("per_channel_scale", ("float32",), (Axis.ONE, Axis.ONE), layers=("dense", "fc", "gate", "proj")),
)
_STATIC = Part("act_scale", ("float32",), (Axis.ONE, Axis.ONE))
_NORMS = tuple(
    LayerPart(f"{name}.scale_to_int", ("float32", MODEL_DTYPE))
    for name in ("input_layernorm", "post_layernorm")
)
_STATIC_INPUTS = (
    *_NORMS,
    *(LayerPart(f"{name}.quantization_scaling_factor", ("float32",)) for name in ("attention", "mlp")),
)
_ALPHA = {"smoothquant_val": 0.5}
_CLAMPED = ("attention", "mlp", "input_layernorm", "post_layernorm")

SCHEMES: dict[str | None, Scheme] = {
    None: Scheme((_PLAIN,)),
    # Plain weights: the loader quantizes them in the layout of the GPU that it finds.
    "W8A16": Scheme((_PLAIN,)),
    # One scale per layer (or expert) for weights, and one for what goes in.
    "FP8": Scheme(
        (
            _FP8,
            Part("weights_scaling_factor", ("float32",), (Axis.EXPERTS, Axis.ONE)),
            Part("activation_scaling_factor", ("float32",), (Axis.ONE,)),
        ),
    ),
    # One scale per output row; activations are quantized token by token, clamped before that when asked.
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme(
        (_FP8, Part("per_channel_scale", ("float32",), (Axis.OUT,))),
        tuple(LayerPart(f"{name}.clamp_val", ("float32",), (2,), "clamp_val") for name in _CLAMPED),
        {"clamp_val": None},
    ),
    # SmoothQuant: int8 for weights and activations. In the plugins' form the norms quantize what goes into the layers
    # that follow them, and the other two layers have a smoother of their own; TensorRT's own form has one everywhere.
    "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN": Scheme((*_SMOOTHED, _ROW_SCALES), _NORMS, _ALPHA),
    "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN": Scheme((*_SMOOTHED, *_LAYER_SCALES), _NORMS, _ALPHA),
    "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN": Scheme(
        (*_SMOOTHED, _ROW_SCALES, _STATIC), _STATIC_INPUTS, _ALPHA
    ),
    "W8A8_SQ_PER_TENSOR_PLUGIN": Scheme((*_SMOOTHED, *_LAYER_SCALES, _STATIC), _STATIC_INPUTS, _ALPHA),
    "W8A8_SQ_PER_CHANNEL": Scheme(
        (
            _INT8,
            Part("weights_scaling_factor", ("float32",), (Axis.OUT,)),
            Part("activation_scaling_factor", ("float32",), (Axis.ONE,)),
            Part("prequant_scaling_factor", (MODEL_DTYPE,), (Axis.IN,)),
        ),
        flags=_ALPHA,
    ),
    # Two output rows to a byte, the even one in the low half; loaders put that into the layout of the GPU they find.
    # `zero` is (8 - the unsigned zero point) times the scale, in the shape that the engine has it.
    "W4A16_AWQ": Scheme(
        (
            Part("weight", ("int8",), (Axis.OUT_PAIRS, Axis.IN)),
            Part("weights_scaling_factor", _FLOATS, (Axis.OUT, Axis.IN_GROUPS)),
            Part("prequant_scaling_factor", (MODEL_DTYPE,), (Axis.IN,), when="pre_quant_scale"),
            _GROUP_ZERO,
        ),
        flags={"group_size": 128, "has_zero_point": False, "pre_quant_scale": True},
    ),
    # The same with activations in FP8: their scale, and the one that brings INT4's scales into FP8's range.
    "W4A8_AWQ": Scheme(
        (
            Part("weight", ("int8",), (Axis.OUT_PAIRS, Axis.IN)),
            Part("weights_scaling_factor", _FLOATS, (Axis.OUT, Axis.IN_GROUPS)),
            Part("prequant_scaling_factor", (MODEL_DTYPE,), (Axis.IN,), when="pre_quant_scale"),
            Part("activation_scaling_factor", ("float32",), (Axis.ONE,)),
            Part("weights_scaling_factor_2", ("float32",), (Axis.ONE,)),
        ),
        flags={"group_size": 128, "has_zero_point": False, "pre_quant_scale": True},
    ),
    # In the layout of one GPU family already: loaders take everything as it is.
    "W4A16_GPTQ": Scheme(
        (
            Part("weight", (MODEL_DTYPE,), (Axis.IN, Axis.OUT_QUARTERS)),
            Part("weights_scaling_factor", (MODEL_DTYPE,), (Axis.IN_GROUPS, Axis.OUT)),
            _GROUP_ZERO,
        ),
        flags={"group_size": 128, "has_zero_point": True, "pre_quant_scale": False},
    ),
}
"""By ``quantization.quant_algo``."""

BAKED: dict[str | None, Scheme] = {
    "W8A16": Scheme(
        (
            Part("weight", ("int8",), (Axis.IN, Axis.OUT)),
            Part("per_channel_scale", (MODEL_DTYPE,), (Axis.OUT,)),
        )
    ),
}
"""The same where ``config.json`` says that weights are in the layout of one family of GPUs."""

KV_CACHE_SCALE = LayerPart("attention.kv_cache_scaling_factor", ("float32",))
"""Every layer has it when ``kv_cache_quant_algo`` is set; times the stored value it is the real one."""

MIXED = "MIXED_PRECISION"
"""``quant_algo`` of checkpoints whose layers have a format each: ``quant_cfg.json`` beside ``config.json`` tells it."""

FOREIGN: dict[str, str | None] = {
    "W4A16": "W8A16",
    **dict.fromkeys(
        ("W8A16_GPTQ", "W4A8_QSERVE_PER_GROUP", "W4A8_QSERVE_PER_CHANNEL", "FP8_BLOCK_SCALES", "NVFP4")
    ),
}
"""Algorithms of engines that trtkit does not write, and the one that stores the same tensors: the weights of W4A16 are
plain as those of W8A16 are, and quantized when the engine is built. None where trtkit has no rules for the tensors."""

DEFAULT_EXCLUDED = (
    "*lm_head",
    "*router",
    "*vocab_embedding",
    "*position_embedding",
    "*block_embedding",
    "*shared_expert_gate",
)
"""What loaders leave plain where ``exclude_modules`` is null; a list takes the place of this one."""

PARTIAL = ("W8A16", "FP8", "W8A8_SQ_PER_CHANNEL", "W4A16_AWQ", "W4A8_AWQ")
"""Algorithms whose linear layers are replaced one by one, so that some of them can stay plain.

The plugins' SmoothQuant ignores ``exclude_modules``, and row-wise FP8 replaces whole blocks.
"""

MIXABLE = PARTIAL
"""Those that a mixture may have: its layers are replaced one by one."""

UNGROUPED = ("W8A16", "W8A8_SQ_PER_CHANNEL")
"""Those of them that cannot be beside INT4 groups, for which the builder makes one choice for a whole engine.

It turns on the kernel of groups alone, so that weights of W8A16 would be taken out of their layout wrongly, and allows
no INT8 products.
"""

QUANTIZING_NORMS = ("input_layernorm", "post_layernorm")
"""In formats that quantize inside of a layer's norms each of the two hands narrow numbers to the layers after it."""
_BETWEEN_NORMS = (*QUANTIZING_NORMS, "attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
NO_SMOOTHQUANT = ("FalconForCausalLM", "GPTNeoXForCausalLM", "Phi3ForCausalLM")
"""Families that TensorRT-LLM's support matrix has no SmoothQuant for, but in TensorRT's own form."""


def quantizes_in_norms(algorithm: str | None) -> bool:
    """Tell whether an algorithm's activations are quantized inside of a layer's two norms."""
    return (algorithm or "").endswith("_PLUGIN") or algorithm == "FP8_PER_CHANNEL_PER_TOKEN"


def misfits(owners: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return which norms and linear layers of a decoder layer such formats have no place for, and which they lack.

    Args:
        owners: Names below ``transformer.layers.N.``, for instance ``mlp.fc``.
    """
    there = list(owners)
    return (
        [name for name in there if name not in _BETWEEN_NORMS],
        [name for name in QUANTIZING_NORMS if name not in there],
    )
