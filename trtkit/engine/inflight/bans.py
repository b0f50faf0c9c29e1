"""Bad words as token sequences that must not be completed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trtkit.engine.inflight.vocabulary import Vocabulary

Sequences = tuple[tuple[int, ...], ...]


def surface_variants(words: Iterable[Sequence[int]], vocabulary: Vocabulary | None) -> Sequences:
    """Return the sequences and, with a vocabulary, those of each word with and without a space before it."""
    banned = dict.fromkeys(tuple(word) for word in words if word)
    if vocabulary is not None:
        for word in tuple(banned):
            bare = vocabulary.decode(word).removeprefix(" ")
            if bare.strip():
                banned |= dict.fromkeys(tuple(vocabulary.encode(text)) for text in (bare, " " + bare))
    return tuple(word for word in banned if word)


class Bans:
    """The bad words of one request. As in TensorRT-LLM the prompt counts as history."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def completing(self, history: Sequence[int]) -> set[int]:
        """Return the tokens that would complete a bad word after this history."""
        return {
            sequence[-1]
            for sequence in self._sequences
            if len(sequence) == 1 or tuple(history[1 - len(sequence) :]) == sequence[:-1]
        }
