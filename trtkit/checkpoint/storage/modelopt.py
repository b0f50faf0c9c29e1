"""ModelOpt's Hugging Face checkpoints: ``hf_quant_config.json``, or ``quant_method: modelopt``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.checkpoint.storage.fields import expect, flag, group_size, section
from trtkit.checkpoint.storage.float8 import fp8_rows, fp8_tensors
from trtkit.checkpoint.storage.modules import by_wildcard
from trtkit.checkpoint.storage.packing import ModelOptPacking
from trtkit.checkpoint.storage.quantized import AUTO, Quantized, scale
from trtkit.checkpoint.storage.storage import PartSpec

_FLOAT8 = {"type": "float", "num_bits": 8}


def read_modelopt(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored, from either spelling.

    Raises:
        ValueError: Engines cannot take it, or this release cannot read it.
    """
    algorithm = expect(block, "quant_algo", ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "W4A16_AWQ"))
    skips = by_wildcard(block.get("exclude_modules", block.get("ignore")))
    kv_cache = _kv_cache(block)
    if algorithm == "FP8":
        return Quantized("ModelOpt", ("fp8",), algorithm, fp8_tensors, skips, kv_cache)
    if algorithm == "FP8_PER_CHANNEL_PER_TOKEN":
        return Quantized("ModelOpt", ("fp8-rowwise",), algorithm, fp8_rows, skips, kv_cache)
    expect(block, "has_zero_point", (False,), default=False)
    size = group_size(_group(block) if block.get("group_size") is None else block["group_size"])
    return Quantized(
        "ModelOpt",
        ("int4-awq",),
        "W4A16_AWQ",
        lambda name, shape: _int4(name, shape, size),
        skips,
        kv_cache,
        group_size=size,
        packing=ModelOptPacking(),
        pre_quant_scale=flag(block, "pre_quant_scale", default=True)
        if block.get("pre_quant_scale") is not None
        else None,
    )


def _int4(name: str, shape: tuple[int, int], size: int) -> dict[str, PartSpec]:
    out, width = shape
    return {
        "weight": PartSpec(f"{name}.weight", (out // 2, width), ("uint8", "int8")),
        "weight_scale": scale(f"{name}.weight_scale", (out, width // size)),
        # Folded into the norm before where there is one.
        "pre_quant_scale": scale(f"{name}.pre_quant_scale", (width,), optional=True),
    }


def _kv_cache(block: Mapping[str, Any]) -> str:
    named, scheme = expect(block, "kv_cache_quant_algo", (None, "FP8")), section(block, "kv_cache_scheme")
    if scheme is not None:
        for key, value in _FLOAT8.items():
            expect(scheme, key, (value,))
        expect(scheme, "dynamic", (False,), default=False)
    return AUTO if named is None and scheme is None else "fp8"


def _group(block: Mapping[str, Any]) -> Any:
    """Return the group size that ``config_groups`` has, when all have the same."""
    groups = section(block, "config_groups") or {}
    weights = [group.get("weights") for group in groups.values() if isinstance(group, Mapping)]
    sizes = [each.get("group_size") for each in weights if isinstance(each, Mapping)]
    return sizes[0] if sizes and sizes.count(sizes[0]) == len(sizes) else None
