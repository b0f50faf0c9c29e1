"""Parts of FP8 layers, which all tools name alike."""

from __future__ import annotations

from trtkit.checkpoint.storage.quantized import scale
from trtkit.checkpoint.storage.storage import PartSpec


def fp8_tensors(name: str, shape: tuple[int, int]) -> dict[str, PartSpec]:
    """Return the parts of an FP8 layer with one scale for its weights and one for its input."""
    return {
        "weight": PartSpec(f"{name}.weight", shape, ("float8_e4m3fn",)),
        "weight_scale": scale(f"{name}.weight_scale"),
        "input_scale": scale(f"{name}.input_scale"),
    }


def fp8_rows(name: str, shape: tuple[int, int]) -> dict[str, PartSpec]:
    """Return the parts of an FP8 layer with one scale per output row."""
    return {
        "weight": PartSpec(f"{name}.weight", shape, ("float8_e4m3fn",)),
        "weight_scale": scale(f"{name}.weight_scale", (shape[0], 1)),
    }
