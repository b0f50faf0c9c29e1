"""Tensors by name, with the shapes that their layers have and the operations they are for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional as F

Config = dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """Tensors under a prefix; every one must be read in the end."""

    tensors: dict[str, Tensor]
    prefix: str = ""
    read: set[str] = field(default_factory=set)

    def under(self, name: str) -> Weights:
        return Weights(self.tensors, f"{self.prefix}{name}.", self.read)

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self.tensors[self.prefix + name]
        assert tuple(tensor.shape) == shape, f"{self.prefix}{name} is {tuple(tensor.shape)}, not {shape}"
        self.read.add(self.prefix + name)
        return tensor.float()

    def linear(self, x: Tensor, out: int, *, bias: bool) -> Tensor:
        return F.linear(x, self.take("weight", out, x.shape[-1]), self.take("bias", out) if bias else None)

    def rms_norm(self, x: Tensor, epsilon: float) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.take("weight", x.shape[-1]), epsilon)

    def layer_norm(self, x: Tensor, epsilon: float) -> Tensor:
        size = x.shape[-1]
        return F.layer_norm(x, (size,), self.take("weight", size), self.take("bias", size), epsilon)
