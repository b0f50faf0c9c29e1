"""Symmetric INT4 with a scale per group of input columns: codes -8 to 7, and the scales that lose least.

``loss = e G e^T`` for the error ``e`` of a row of weights is how far the layer's outputs are off on the calibration
data, where ``G = X^T X`` are the products of what goes in; of one group its diagonal block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEVELS = 7
"""Largest code; there is one more below zero."""
_RATIOS = tuple(1 - step / 40 for step in range(25))
"""How much of the largest weight is kept: 1.0 down to 0.4."""


def in_groups(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return ``(out, in)`` as ``(out, groups, group_size)``."""
    return weight.view(len(weight), -1, group_size)


def plain_scales(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return scales ``(out, groups)`` that clip nothing; 1 for groups of zeros."""
    return _positive(in_groups(weight, group_size).abs().amax(2) / LEVELS)


def best_scales(weight: torch.Tensor, gram: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return the scales ``(out, groups)`` of least loss, group by group."""
    import torch

    groups = in_groups(weight, group_size)
    blocks = diagonal_blocks(gram, group_size)
    whole = plain_scales(weight, group_size)
    best, least = whole, torch.full_like(whole, torch.inf)
    for ratio in _RATIOS:
        scales = whole * ratio
        error = groups - rounded(groups, scales[..., None])
        loss = (torch.einsum("ogi,gij->ogj", error, blocks) * error).sum(2)
        better = loss < least
        best, least = torch.where(better, scales, best), torch.where(better, loss, least)
    return best


def quantized(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what is left of ``(out, in)`` after rounding with scales ``(out, groups)``."""
    groups = weight.view(*scales.shape, -1)
    return rounded(groups, scales[..., None]).flatten(1)


def rounded(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Round to codes and back."""
    return (weight / scales).round_().clamp_(-LEVELS - 1, LEVELS).mul_(scales)


def diagonal_blocks(gram: torch.Tensor, group_size: int) -> torch.Tensor:
    """Return the blocks ``(groups, group_size, group_size)`` along the diagonal."""
    count = gram.shape[0] // group_size
    return gram.view(count, group_size, count, group_size).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _positive(scales: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.where(scales > 0, scales, 1.0)
