"""Speculative decoding: several draft tokens that one step of the engine checks."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import AfterValidator, Field

from trtkit.contract.section import Section

Size = Annotated[int, Field(ge=1, le=64)]


class SpeculationMode(str, enum.Enum):
    """Who writes the draft."""

    DRAFT_TARGET = "draft-target"
    """A small model of its own, with an engine of its own."""
    MEDUSA = "medusa"
    EAGLE = "eagle"
    """Heads that were trained for the model, in its own engine; EAGLE 1 and 2."""
    LOOKAHEAD = "lookahead"
    """The model itself, from what it has written before."""

    @property
    def has_heads(self) -> bool:
        """Whether the checkpoint holds more than the model."""
        return self in {SpeculationMode.MEDUSA, SpeculationMode.EAGLE}


class Lookahead(Section):
    """Sizes of lookahead decoding."""

    window: Size
    """Positions that are guessed at once."""
    ngram: Size
    """Length of the guesses that are kept."""
    verification: Size
    """Guesses that a step checks."""

    @property
    def draft_tokens(self) -> int:
        """Draft tokens of one step: windows, n-grams and guesses of 7 make (7 - 2) + (7 - 1 + 7) x 6 = 83."""
        first = self.ngram - 2 if self.ngram > 1 else 0
        return first + (self.window - 1 + self.verification) * (self.ngram - 1)


def _tree(paths: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """Refuse what is no tree: a token is guessed after all those before it on its path."""
    known = set(paths)
    if len(known) < len(paths):
        raise ValueError("names a path twice")
    for path in paths:
        if path[:-1] and path[:-1] not in known:
            raise ValueError(f"{list(path)} has no parent: add {list(path[:-1])}")
    return paths


_Rank = Annotated[int, Field(ge=0, le=63)]
_Path = Annotated[tuple[_Rank, ...], Field(min_length=1, max_length=16, strict=False)]
Choices = Annotated[
    tuple[_Path, ...], Field(min_length=1, max_length=256, strict=False), AfterValidator(_tree)
]


class Speculation(Section):
    """Draft tokens; back end tensorrt, and draft-target on llmapi."""

    mode: Annotated[SpeculationMode, Field(strict=False)]
    max_draft_tokens: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most draft tokens of one step; of medusa and eagle as their checkpoint has it, of lookahead from its sizes."""
    draft: str | None = None
    """draft-target: contract of the small model, relative to this one."""
    checkpoint: str | None = None
    """medusa, eagle: TensorRT-LLM checkpoint of the model with its heads, relative to the contract; it is not
    converted, and takes the place of the model's weights."""
    lookahead: Lookahead | None = None
    """lookahead: its sizes, from which the number of draft tokens follows."""
    choices: Choices | None = None
    """medusa, eagle: the tree of draft tokens, a path of ranks for each, such as [[0], [0, 0], [1]]; left out, the
    runtime's own."""

    @property
    def draft_tokens(self) -> int:
        """Most draft tokens of one step; 0 where nothing says it."""
        return self.max_draft_tokens or (self.lookahead.draft_tokens if self.lookahead else 0)
