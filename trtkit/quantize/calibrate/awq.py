"""AWQ: factors for input channels that make room for those weights which matter most.

Layers that share an input have one factor ``p`` for each channel: the input is multiplied with it, the weights are
divided by it. Candidates are ``1 / p = x**a`` (Lin et al., 2023) and ``x**a / w**(1 - a)`` (ModelOpt), where x are mean
magnitudes of the input's channels and w those of the weights; the one whose outputs are least off is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from trtkit.quantize.calibrate.gram import Gram
from trtkit.quantize.calibrate.grid import in_groups, plain_scales, quantized

if TYPE_CHECKING:
    import torch

_STEPS = 10
_SMALLEST = 1e-4


def search_factors(weights: Sequence[torch.Tensor], gram: Gram, group_size: int) -> torch.Tensor:
    """Return ``p`` for weights ``(out, in)`` that share an input, all float32; bfloat16 and float16 hold it exactly."""
    import torch

    joined = torch.cat(list(weights))
    best, least = torch.ones_like(joined[0]), torch.inf
    for scale in _candidates(joined, gram, group_size):
        loss = _loss(joined, scale, gram.products, group_size)
        if loss < least:
            best, least = scale, loss
    return (1 / best).to(torch.bfloat16).float()


def _candidates(weight: torch.Tensor, gram: Gram, group_size: int) -> Iterator[torch.Tensor]:
    import torch

    yield torch.ones_like(weight[0])
    x = gram.mean_magnitudes.clamp(min=_SMALLEST)
    groups = in_groups(weight, group_size).abs()
    w = (groups / groups.amax(2, keepdim=True).clamp(min=_SMALLEST)).flatten(1).mean(0).clamp(min=_SMALLEST)
    for step in range(1, _STEPS + 1):
        alpha = step / _STEPS
        yield _centred(x**alpha)
        yield _centred(x**alpha / w ** (1 - alpha))


def _centred(scale: torch.Tensor) -> torch.Tensor:
    """Keep factors around 1, within what float16 holds as well."""
    scale = scale / (scale.max() * scale.min()).sqrt()
    return scale.clamp(2.0**-10, 2.0**10)


def _loss(weight: torch.Tensor, scale: torch.Tensor, products: torch.Tensor, group_size: int) -> float:
    scaled = weight * scale
    error = weight - quantized(scaled, plain_scales(scaled, group_size)) / scale
    return float(((error @ products) * error).sum())
