"""Meta's FP8 checkpoints: ``quant_method: fbgemm_fp8``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.checkpoint.storage.float8 import fp8_rows
from trtkit.checkpoint.storage.modules import by_component
from trtkit.checkpoint.storage.quantized import Quantized


def read_fbgemm(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored.

    Raises:
        ValueError: The bound on activations is none.
    """
    bound = block.get("activation_scale_ub", 1200.0)
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 < bound < float("inf"):
        raise ValueError(f"activation_scale_ub is {bound!r}, not a positive number")
    return Quantized(
        "fbgemm",
        ("fp8-rowwise",),
        "FP8_PER_CHANNEL_PER_TOKEN",
        fp8_rows,
        by_component(block.get("modules_to_not_convert")),
        clamp=float(bound),
    )
