"""What every storage tells, and the plain one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trtkit.checkpoint.safetensors import TensorInfo


@dataclass(frozen=True)
class PartSpec:
    """A tensor that a quantized source has for a linear layer."""

    name: str
    shape: tuple[int, ...]
    dtypes: tuple[str, ...]
    optional: bool = False
    aliases: tuple[str, ...] = ()
    """Other names that tools give it; a source has one of them."""
    squeezed: bool = False
    """Whether axes of 1 may be there or not, as tools differ in how they save scales."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that it may have."""
        return (self.name, *self.aliases)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of that shape can be it."""
        return shape == self.shape or (self.squeezed and _squeeze(shape) == _squeeze(self.shape))

    def shaped(self, info: TensorInfo) -> TensorInfo:
        """Return a tensor that :meth:`fits` in the declared shape: axes of 1 change nothing of the order."""
        return dataclasses.replace(info, shape=self.shape)


def _squeeze(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


class Storage(Protocol):
    """How a source keeps its linear layers."""

    def parts(self, name: str, shape: tuple[int, ...]) -> Mapping[str, PartSpec] | None:
        """Return what the source has for the layer whose plain weight would be ``name``; None where it is plain."""

    def superfluous(self, name: str) -> bool:
        """Return whether a tensor that no layer uses is known to hold nothing of its own."""


class _Plain:
    """Weights in floating point."""

    def parts(self, name: str, shape: tuple[int, ...]) -> None:  # noqa: ARG002
        """Quantize nothing."""
        return

    def superfluous(self, name: str) -> bool:  # noqa: ARG002
        """Expect nothing else."""
        return False


PLAIN: Storage = _Plain()
WEIGHT = "weight"
"""Name of the only part of a plain tensor."""


@dataclass(frozen=True)
class Stored:
    """A weight of the source: one plain tensor, or the parts of a quantized one."""

    name: str
    shape: tuple[int, ...]
    """Of the weight itself, ``(out, in)``."""
    parts: Mapping[str, TensorInfo]

    @property
    def is_plain(self) -> bool:
        """Whether it is one tensor."""
        return tuple(self.parts) == (WEIGHT,) and self.parts[WEIGHT].shape == self.shape
