"""AutoGPTQ and GPTQModel: ``quant_method: gptq``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtkit.checkpoint.storage.fields import expect, flag, group_size
from trtkit.checkpoint.storage.modules import by_component
from trtkit.checkpoint.storage.packing import GptqPacking
from trtkit.checkpoint.storage.quantized import Quantized, scale, vanishing
from trtkit.checkpoint.storage.storage import PartSpec

_ZERO_OFFSETS = {"gptq": 1, "gptq_v2": 0}
_FORMATS = ("checkpoint_format", "format")
"""Keys for one of these; early versions of GPTQModel wrote the latter."""


def read_gptq(block: Mapping[str, Any]) -> Quantized:
    """Return how such a checkpoint is stored.

    Raises:
        ValueError: Engines cannot take it.
    """
    expect(block, "bits", (4,))
    if flag(block, "desc_act", default=False):
        raise ValueError("desc_act is true: columns are grouped by activation, engines know neighbours only")
    named = {expect(block, key, (None, *_ZERO_OFFSETS)) for key in _FORMATS} - {None}
    if len(named) > 1:
        raise ValueError(" contradicts ".join(f"{key} {block[key]!r}" for key in _FORMATS))
    expect(block, "lm_head", (False,), default=False)
    # A rotation and an adapter are more arithmetic when the model runs.
    for key in ("dynamic", "is_marlin_format", "rotation", "adapter"):
        if block.get(key):
            raise ValueError(f"{key} is {block[key]!r}, which engines cannot honour")
    size = group_size(block.get("group_size"))
    offset = _ZERO_OFFSETS[named.pop() if named else "gptq"]
    return Quantized(
        "GPTQ",
        ("int4-gptq", "int4-awq"),
        "W4A16_AWQ",
        lambda name, shape: _specs(name, shape, size),
        by_component(block.get("modules_to_not_convert")),
        group_size=size,
        packing=GptqPacking(offset, size),
        has_zero_point=not flag(block, "sym", default=False),
    )


def _specs(name: str, shape: tuple[int, int], size: int) -> dict[str, PartSpec]:
    out, width = shape
    return {
        "qweight": PartSpec(f"{name}.qweight", (width // 8, out), ("int32",)),
        "qzeros": PartSpec(f"{name}.qzeros", (width // size, out // 8), ("int32",)),
        "scales": scale(f"{name}.scales", (width // size, out)),
        "g_idx": PartSpec(f"{name}.g_idx", (width,), ("int32", "int64"), optional=True),
        # Early versions gave every layer a bias.
        "bias": vanishing(f"{name}.bias", (out,), ("float16", "bfloat16", "float32")),
    }
