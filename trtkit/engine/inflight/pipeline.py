"""What runs the batch, as the engine's loop sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from trtkit.engine.inflight.request import GenerationRequest
from trtkit.engine.inflight.stops import Token

Logits = npt.NDArray[np.float32]
"""Of one position: ``(vocab,)``."""

Draw = Callable[[Logits], Token]
"""Chooses the next token; raises :class:`trtkit.errors.InputError` if the request leaves none to choose."""


class Decoding(Protocol):
    """One sequence in the batch."""

    def read(self, draw: Draw) -> Iterator[Token]:
        """Yield the tokens since the last call, an end token among them; those not yet chosen are drawn."""

    @property
    def dropped(self) -> bool:
        """Whether it was given up for want of memory."""

    def leave(self) -> None:
        """Leave the batch."""


class Pipeline(Protocol):
    """The batch. Not thread-safe."""

    @property
    def busy(self) -> bool:
        """Whether a step has work to do."""

    @property
    def blocks_used(self) -> int:
        """Blocks of the KV cache that hold tokens of live sequences."""

    def has_room(self, request: GenerationRequest, generated: Sequence[int]) -> bool:
        """Tell whether a request can enter and surely finish."""

    def enter(self, request: GenerationRequest, generated: Sequence[int]) -> Decoding:
        """Add a request that goes on after ``generated`` tokens."""

    def step(self) -> None:
        """Run the batch once: at most one token per sequence."""


class OracleSession(Protocol):
    """Logits of one sequence that only grows, outside the batch."""

    def next_logits(self, tokens: Sequence[int]) -> Logits:
        """Return the logits after ``tokens``, which extend those of the call before."""


def reason(error: BaseException) -> str:
    """Return the last line of a runtime's error; those before name its source files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
