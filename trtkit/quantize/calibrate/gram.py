"""What goes into the layers that share an input, condensed: its products ``X^T X`` and mean magnitudes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Gram:
    """One input of ``width`` channels."""

    def __init__(self, width: int, device: torch.device) -> None:
        import torch

        self.products = torch.zeros(width, width, device=device)
        self._magnitudes = torch.zeros(width, device=device)
        self._tokens = 0

    def add(self, rows: torch.Tensor) -> None:
        """Take in activations, one row per token."""
        values = rows.float()
        self.products.addmm_(values.T, values)
        self._magnitudes += values.abs().sum(0)
        self._tokens += len(values)

    @property
    def mean_magnitudes(self) -> torch.Tensor:
        """Mean of the absolute values of each channel."""
        return self._magnitudes / max(1, self._tokens)


class Grams:
    """The inputs of one decoder layer, each known by the first of the layers that read it."""

    def __init__(self, widths: Mapping[str, int], device: torch.device) -> None:
        self.found = {name: Gram(width, device) for name, width in widths.items()}

    def see(self, name: str, rows: torch.Tensor) -> None:
        """Take in what goes into a layer, if it is known by that one."""
        if name in self.found:
            self.found[name].add(rows)
