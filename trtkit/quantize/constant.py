"""Tensors that are known before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtkit.checkpoint.jobs import Piece, Target


@dataclass(frozen=True)
class Constant:
    """Writes a vector of float32."""

    target: Target
    values: tuple[float, ...]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The one tensor."""
        return (self.target,)

    def run(self) -> Iterator[Piece]:
        """Yield it."""
        yield self.target, 0, np.array(self.values, np.float32)[:, None]
