"""Who computes logits: anything that takes the tokens of one sequence."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int64]


class Executor(Protocol):
    """A model that is judged, or that judges."""

    def logits(self, tokens: Tokens) -> Floats:
        """Return the logits ``(length, vocab)`` after each of ``tokens``, which are one whole sequence."""
