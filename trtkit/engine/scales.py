"""Where SmoothQuant and row-wise FP8 keep what belongs to the input of a linear layer."""

from __future__ import annotations

from collections.abc import Iterable

from trtkit.errors import StageError

INPUT_SCALES = {
    "qkv": "input_layernorm.scale_to_int",
    "dense": "attention.quantization_scaling_factor",
    "fc": "post_layernorm.scale_to_int",
    "gate": "post_layernorm.scale_to_int",
    "proj": "mlp.quantization_scaling_factor",
}
"""What a layer's input is multiplied with to become int8, where ranges were recorded."""
CLAMPS = {
    "qkv": "input_layernorm.clamp_val",
    "dense": "attention.clamp_val",
    "fc": "post_layernorm.clamp_val",
    "gate": "post_layernorm.clamp_val",
    "proj": "mlp.clamp_val",
}
"""Between what a layer's input is clamped."""
SMOOTHED = ("dense", "proj")
"""Layers with a smoother of their own; norms do it for the others."""
_NORMS = ("input_layernorm", "post_layernorm")


def check_norms(names: Iterable[str], algo: str) -> None:
    """Raise unless decoder layers have exactly the two norms behind which everything becomes int8 or FP8."""
    first = "transformer.layers.0."
    found = {
        name.removeprefix(first).rpartition(".")[0]
        for name in names
        if name.startswith(first) and "norm" in name and name.endswith((".weight", ".bias"))
    }
    if found != set(_NORMS):
        message = (
            f"{algo} needs layers with the norms {' and '.join(_NORMS)} alone, not {', '.join(sorted(found))}"
        )
        raise StageError(message, hint="use `quantization.weights: none`, `int8-wo` or `fp8`")
