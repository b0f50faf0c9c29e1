"""Activation scales in norms: Hugging Face checkpoints have none for the layers that follow a norm.

A layer with a ``prequant_scaling_factor`` p multiplies its input by p. Where that input is the output of a norm,
ModelOpt's form has p multiplied into the norm (``requantize_resmooth_fused_llm_layers`` in its exporter), and loaders
of joined layers ignore a ``pre_quant_scale`` there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trtkit.checkpoint.hf_export.formats import PREQUANT
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.errors import InputError

_NORMS = {
    "attention.qkv": ("input_layernorm",),
    # The one that comes right before: what Gemma calls post_layernorm follows its attention.
    "mlp.fc": (
        "pre_feedforward_layernorm",
        "mlp_layernorm",
        "post_layernorm",
        "post_attention_layernorm",
        "input_layernorm",
    ),
}
_NORMS["mlp.gate"] = _NORMS["mlp.fc"]
SMOOTHED = frozenset(norm for norms in _NORMS.values() for norm in norms)
"""Norms that quantization may change: those before linear layers."""


def is_folded(tensor: MappedTensor) -> bool:
    """Return whether a linear layer follows a norm."""
    return _in_layer(tensor) in _NORMS


def norm_scales(mapped: Sequence[MappedTensor], checkpoint: TrtllmCheckpoint) -> dict[str, Array]:
    """Return by name of norm, without ``.weight``, what it has to be multiplied with unless that is ones.

    Raises:
        InputError: Layers that follow one norm have different scales, or there is no such norm.
    """
    norms = {tensor.target.name for tensor in mapped if not tensor.target.rule.is_linear}
    scales: dict[str, Array] = {}
    for tensor in mapped:
        name = tensor.target.name.removesuffix("weight") + PREQUANT
        if tensor.target.rule.is_linear and is_folded(tensor) and name in checkpoint:
            scale = checkpoint.tensor(name)
            norm = _norm_of(tensor, norms, checkpoint)
            if not np.array_equal(scales.setdefault(norm, scale), scale):
                message = f"the layers that follow {norm} have different {PREQUANT}"
                hint = "quantize with one for all of them, or export with weights fp8"
                raise InputError(message, path=checkpoint.folder, hint=hint)
    scales = {norm: scale for norm, scale in scales.items() if not np.all(scale == 1)}
    for tensor in mapped if scales else ():
        module = tensor.target.name.removesuffix(".weight")
        is_plain = tensor.target.rule.is_linear and checkpoint.block_of(module).get("quant_algo") is None
        if is_plain and is_folded(tensor) and (norm := _norm_of(tensor, norms, checkpoint)) in scales:
            message = (
                f"{norm} would take the scales of one layer, and {module}, which is plain, follows it too"
            )
            raise InputError(
                message, path=checkpoint.folder, hint="leave both plain, or export with weights fp8"
            )
    return scales


def folded(values: Array, scale: Array | None, plus: float) -> Array:
    """Return a norm's weight or bias times the scale, in the source's form: the engine's weights are ``plus`` more."""
    wide = values.astype(np.float32)
    return (wide if scale is None else wide * scale.astype(np.float32)) - np.float32(plus)


def _norm_of(tensor: MappedTensor, norms: set[str], checkpoint: TrtllmCheckpoint) -> str:
    layer = tensor.target.name.split(_in_layer(tensor))[0]
    # The norm before experts feeds their router too.
    for norm in () if tensor.target.rule.per_expert else _NORMS[_in_layer(tensor)]:
        if f"{layer}{norm}.weight" in norms:
            return layer + norm
    message = f"{tensor.target.name} follows no norm that could take its {PREQUANT}"
    raise InputError(message, path=checkpoint.folder, hint="export with weights fp8, or none")


def _in_layer(tensor: MappedTensor) -> str:
    return ".".join(tensor.target.name.split(".")[-3:-1])
