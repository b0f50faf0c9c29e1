"""INT4 weights of one decoder layer, as they go into the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trtkit.quantize.calibrate.awq import search_awq
from trtkit.quantize.calibrate.gptq import search_gptq
from trtkit.quantize.calibrate.gram import Gram
from trtkit.quantize.calibrate.layers import LinearGroup
from trtkit.quantize.calibrate.ranges import rows_of
from trtkit.quantize.calibrate.request import Purpose

if TYPE_CHECKING:
    import torch
    from torch import nn


def search_int4(
    purpose: Purpose,
    groups: Iterable[LinearGroup],
    modules: Mapping[str, nn.Module],
    grams: Mapping[str, Gram],
    group_size: int,
) -> dict[str, torch.Tensor]:
    """Return ``name|prequant`` and ``name|clip`` of AWQ, or ``name|codes`` and ``name|scale`` of GPTQ."""
    found: dict[str, torch.Tensor] = {}
    for group in groups:
        gram = grams[group.names[0]]
        weights = [rows_of(modules[name]).float() for name in group.names]
        if purpose is Purpose.INT4_GPTQ:
            for name, weight in zip(group.names, weights, strict=True):
                result = search_gptq(weight, gram.products, group_size, name=name)
                found |= {f"{name}|codes": pack(result.codes), f"{name}|scale": result.scales}
        else:
            awq = search_awq(weights, gram, group_size)
            for name, clip in zip(group.names, awq.clips, strict=True):
                found |= {f"{name}|prequant": awq.prequant, f"{name}|clip": clip}
    return found


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Return two neighbouring columns to a byte, the even one in the low half."""
    import torch

    halves = (codes & 0xF).to(torch.uint8)
    return halves[:, 0::2] | halves[:, 1::2] << 4
