"""INT4 weights of one decoder layer, as they go into the file.

Both algorithms round as GPTQ does, in scales that clip where that loses least. AWQ does it with and without factors for
the input channels, and keeps those factors that help.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trtkit.quantize.calibrate.awq import search_factors
from trtkit.quantize.calibrate.gptq import Gptq, search_gptq
from trtkit.quantize.calibrate.gram import Gram
from trtkit.quantize.calibrate.layers import LinearGroup
from trtkit.quantize.calibrate.purpose import Purpose
from trtkit.quantize.calibrate.ranges import rows_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class _Rounded(NamedTuple):
    """Layers that share an input."""

    prequant: torch.Tensor
    layers: Sequence[Gptq]
    loss: float


def search_int4(
    purpose: Purpose,
    groups: Iterable[LinearGroup],
    modules: Mapping[str, nn.Module],
    grams: Mapping[str, Gram],
    group_size: int,
) -> dict[str, torch.Tensor]:
    """Return ``name|codes`` and ``name|scale``, with AWQ ``name|prequant`` too.

    Raises:
        InputError: The samples do not say enough about a layer.
    """
    found: dict[str, torch.Tensor] = {}
    for group in groups:
        weights = {name: rows_of(modules[name]).float() for name in group.names}
        best = _search(purpose, weights, grams[group.names[0]], group_size)
        for name, layer in zip(group.names, best.layers, strict=True):
            found |= {f"{name}|codes": pack(layer.codes), f"{name}|scale": layer.scales}
            if purpose is not Purpose.INT4_GPTQ:
                found[f"{name}|prequant"] = best.prequant
    return found


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Return two neighbouring columns to a byte, the even one in the low half."""
    import torch

    halves = (codes & 0xF).to(torch.uint8)
    return halves[:, 0::2] | halves[:, 1::2] << 4


def _search(purpose: Purpose, weights: Mapping[str, torch.Tensor], gram: Gram, group_size: int) -> _Rounded:
    import torch

    plain = _round(weights, torch.ones_like(gram.mean_magnitudes), gram, group_size)
    if purpose is Purpose.INT4_GPTQ:
        return plain
    factors = search_factors(list(weights.values()), gram, group_size)
    scaled = _round(weights, factors, gram, group_size)
    return min(plain, scaled, key=lambda rounded: rounded.loss)


def _round(
    weights: Mapping[str, torch.Tensor], prequant: torch.Tensor, gram: Gram, group_size: int
) -> _Rounded:
    products = gram.products * prequant * prequant[:, None]
    layers, loss = [], 0.0
    for name, weight in weights.items():
        scaled = weight / prequant
        layers.append(search_gptq(scaled, products, group_size, name=name))
        error = scaled - layers[-1].weight()
        loss += float(((error @ products) * error).sum())
    return _Rounded(prequant, layers, loss)
