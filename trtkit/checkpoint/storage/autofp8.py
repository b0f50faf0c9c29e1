"""``quant_method: fp8``: AutoFP8's scales per tensor, or blocks in the way of DeepSeek, which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.checkpoint.storage.fields import expect
from trtkit.checkpoint.storage.float8 import fp8_tensors
from trtkit.checkpoint.storage.modules import by_component
from trtkit.checkpoint.storage.quantized import AUTO, Quantized


def read_fp8(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored.

    Raises:
        ValueError: Engines cannot take it.
    """
    if block.get("weight_block_size") is not None:
        size = block["weight_block_size"]
        raise ValueError(
            f"blocks of {size!r} weights share a scale, and engines' FP8 has one per tensor or row"
        )
    expect(block, "activation_scheme", ("static",))
    skips = by_component(block.get("ignored_layers", block.get("modules_to_not_convert")))
    kv_cache = AUTO if expect(block, "kv_cache_scheme", (None, "static")) is None else "fp8"
    return Quantized("AutoFP8", ("fp8",), "FP8", fp8_tensors, skips, kv_cache)
