"""GPTQ (Frantar et al., 2022): round column by column, and let the columns that follow make up for the error.

Columns keep their order, so that groups are of neighbours; each group's scales are found when it is its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trtkit.errors import InputError
from trtkit.quantize.calibrate.grid import LEVELS, best_scales

if TYPE_CHECKING:
    import torch

_DAMPING = 0.01
"""Part of the mean of the Hessian's diagonal that is added to it."""
_TRIES = 5


class Gptq(NamedTuple):
    """A quantized layer."""

    codes: torch.Tensor
    """``(out, in)``, int8, -8 to 7."""
    scales: torch.Tensor
    """``(out, groups)``, float32."""

    def weight(self) -> torch.Tensor:
        """Return what they stand for, ``(out, in)``."""
        groups = self.codes.float().view(*self.scales.shape, -1)
        return (groups * self.scales[..., None]).flatten(1)


def search_gptq(weight: torch.Tensor, products: torch.Tensor, group_size: int, *, name: str) -> Gptq:
    """Quantize ``(out, in)`` for inputs whose products ``X^T X`` are given.

    Raises:
        InputError: The products are singular whatever is added to their diagonal.
    """
    import torch

    left = weight.clone()
    inverse = _inverse_factor(products, name)
    codes = torch.empty_like(weight, dtype=torch.int8)
    scales = weight.new_empty(len(weight), weight.shape[1] // group_size)
    for group, start in enumerate(range(0, weight.shape[1], group_size)):
        stop = start + group_size
        block = products[start:stop, start:stop]
        scales[:, group] = best_scales(left[:, start:stop], block, group_size)[:, 0]
        errors = _round_group(
            left[:, start:stop], codes[:, start:stop], inverse[start:stop, start:stop], scales[:, group]
        )
        left[:, stop:] -= errors @ inverse[start:stop, stop:]
    return Gptq(codes, scales)


def _round_group(
    left: torch.Tensor, codes: torch.Tensor, inverse: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Round the columns of a group in place; return their errors over the factor's diagonal."""
    import torch

    errors = torch.empty_like(left)
    for column in range(left.shape[1]):
        values = left[:, column]
        code = (values / scale).round().clamp(-LEVELS - 1, LEVELS)
        codes[:, column] = code.to(torch.int8)
        errors[:, column] = (values - code * scale) / inverse[column, column]
        left[:, column + 1 :] -= errors[:, column, None] * inverse[column, column + 1 :]
    return errors


def _inverse_factor(products: torch.Tensor, name: str) -> torch.Tensor:
    """Return the upper Cholesky factor of the inverse, with more damping where it takes that."""
    import torch

    diagonal = products.diagonal()
    # A channel that is always 0 says nothing of its weights: with 1 they are rounded to nearest.
    dead = diagonal == 0
    mean = float(diagonal.mean()) or 1.0
    for attempt in range(_TRIES):
        hessian = products.clone()
        hessian.diagonal().add_(torch.where(dead, 1.0, _DAMPING * 10**attempt * mean))
        upper = _upper_of_inverse(hessian)
        if upper is not None:
            return upper
    hint = "calibrate with more, or more varied, texts"
    raise InputError(f"the inputs of {name} are too much alike for GPTQ", hint=hint)


def _upper_of_inverse(hessian: torch.Tensor) -> torch.Tensor | None:
    import torch

    lower, failed = torch.linalg.cholesky_ex(hessian)
    if failed:
        return None
    upper: torch.Tensor
    upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    return None if failed else upper
