"""What runs the graph. The caches are the executor's: it knows a slot by its index only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtkit.engine.graph.spec import INPUT_IDS, LAST, POSITION_IDS, WRITE_INDICES, Phase


@dataclass(frozen=True)
class Batch:
    """New tokens for neighbouring slots, as many for each."""

    phase: Phase
    """PREFILL is one slot, DECODE one token for each."""
    first: int
    """Index of the first slot."""
    tokens: Sequence[Sequence[int]]
    """``(slots, new tokens)``."""
    lengths: Sequence[int]
    """Tokens that each slot's cache holds already."""

    def inputs(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the graph's inputs except for the caches."""
        tokens, lengths = np.array(self.tokens, np.int64), np.array(self.lengths, np.int64)
        rows, new = tokens.shape
        return {
            INPUT_IDS: tokens,
            POSITION_IDS: lengths[:, None] + np.arange(new, dtype=np.int64),
            WRITE_INDICES: lengths,
            LAST: np.full(rows, new - 1, np.int64),
        }


class Executor(Protocol):
    """One loaded graph with the caches of all slots. Not thread-safe."""

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Write the tokens into the caches; return the logits after each slot's last one, ``(slots, vocab)``."""

    def clear(self, slot: int) -> None:
        """Make all numbers in a slot's caches finite again."""

    def close(self) -> None:
        """Give back what is not memory of this process."""
