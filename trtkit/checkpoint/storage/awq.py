"""AutoAWQ: ``quant_method: awq``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.checkpoint.storage.fields import expect, flag, group_size
from trtkit.checkpoint.storage.modules import by_component
from trtkit.checkpoint.storage.packing import AwqPacking
from trtkit.checkpoint.storage.quantized import Quantized, scale
from trtkit.checkpoint.storage.storage import PartSpec


def read_awq(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored; the scales of activations are in the layers before.

    Raises:
        ValueError: Engines cannot take it.
    """
    old = {"bits": "w_bit", "group_size": "q_group_size"}
    block = {**{key: block[other] for key, other in old.items() if other in block}, **block}
    expect(block, "bits", (4,))
    version = str(block.get("version", "gemm")).lower()
    if version != "gemm":
        raise ValueError(f"version is {version!r}; only weights packed for GEMM can be read")
    for key in ("format", "checkpoint_format"):
        expect(block, key, (None, "gemm"))
    if flag(block, "desc_act", default=False):
        raise ValueError("desc_act is true: columns are grouped by activation, engines know neighbours only")
    for key in ("dynamic", "rotation", "adapter"):
        if block.get(key):
            raise ValueError(f"{key} is {block[key]!r}, which engines cannot honour")
    if not flag(block, "zero_point", default=True):
        raise ValueError("zero_point is false, which the GEMM form does not have")
    size = group_size(block.get("group_size"))
    return Quantized(
        "AutoAWQ",
        ("int4-awq", "int4-gptq"),
        "W4A16_AWQ",
        lambda name, shape: _specs(name, shape, size),
        by_component(block.get("modules_to_not_convert")),
        group_size=size,
        packing=AwqPacking(),
        has_zero_point=True,
    )


def _specs(name: str, shape: tuple[int, int], size: int) -> dict[str, PartSpec]:
    out, width = shape
    return {
        "qweight": PartSpec(f"{name}.qweight", (width, out // 8), ("int32",)),
        "qzeros": PartSpec(f"{name}.qzeros", (width // size, out // 8), ("int32",)),
        "scales": scale(f"{name}.scales", (width // size, out)),
    }
