"""Rounding of activations and of the KV cache, as the engine's kernels do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.quantize.gate.linear import Activation, Grid

if TYPE_CHECKING:
    from torch import Tensor

_SMALLEST_FP8_STEP = 1 / (448 * 512)
"""What TensorRT-LLM's kernel takes for tokens that are almost zero."""


def treat(x: Tensor, activation: Activation) -> Tensor:
    """Return ``x`` (..., in) as the layer multiplies it: scaled, clamped and rounded."""
    import torch

    values = x.float()
    if activation.factor is not None:
        values = values * torch.from_numpy(activation.factor)
    if activation.clamp is not None:
        values = values.clamp(*activation.clamp)
    if activation.grid is None:
        return values.to(x.dtype)
    if activation.step is not None:
        return rounded(values, activation.grid, activation.step).to(x.dtype)
    sliced = values.reshape(*values.shape[:-1], activation.slices, -1)
    step = sliced.abs().amax(dim=-1, keepdim=True) / activation.grid.value
    # A slice of zeros stays zeros, whatever its step.
    step = step.clamp(min=_SMALLEST_FP8_STEP if activation.grid is Grid.FP8 else torch.finfo(step.dtype).tiny)
    return rounded(sliced, activation.grid, step).flatten(-2).to(x.dtype)


def rounded(values: Tensor, grid: Grid, step: Tensor | float) -> Tensor:
    """Return values of float32 on the grid: nearest, ties to even; what is beyond its end is its end."""
    import torch

    counts = values / step
    if grid is Grid.INT8:
        return counts.round().clamp(-128, 127) * step
    limited = counts.clamp(-grid.value, grid.value)
    return limited.to(torch.float8_e4m3fn).to(values.dtype) * step
