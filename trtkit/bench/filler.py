"""Prompts of an exact number of tokens, of random words: no two begin alike, so that no prefix is reused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from trtkit.errors import InputError

_SAMPLE_WORDS = 2000
_ENOUGH_WORDS = 50


class Filler:
    """Writes prompts for one tokenizer, from its own words that are one token wherever they stand."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._extra = len(tokenizer.encode("").ids)
        self._words = _words(tokenizer)

    @classmethod
    def load(cls, path: Path) -> Filler:
        """Load a ``tokenizer.json``.

        Raises:
            InputError: It is none, or has too few plain words.
        """
        from tokenizers import Tokenizer

        try:
            filler = cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises plain Exception
            hint = "give a tokenizer.json with --tokenizer"
            raise InputError(f"cannot load the tokenizer: {error}", path=path, hint=hint) from error
        if len(filler._words) < _ENOUGH_WORDS:
            hint = "give the tokenizer of the model that is served"
            raise InputError(f"only {len(filler._words)} of its words are one token", path=path, hint=hint)
        return filler

    def write(self, tokens: int, draw: random.Random) -> str:
        """Return a text of so many tokens, those that the tokenizer adds included; at least one word."""
        count = max(1, tokens - self._extra)
        return "".join(" " + draw.choice(self._words) for _ in range(count))

    def count(self, text: str) -> int:
        """Return the tokens of a piece of an answer."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _words(tokenizer: Any) -> list[str]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    marked = ((token[1:], index) for token, index in vocabulary.items() if token[:1] in "Ġ▁")
    plain = sorted((index, word) for word, index in marked if word.isascii() and word.isalpha())
    # Pairs, because some tokenizers treat the beginning of a text in their own way.
    return [
        word
        for _, word in plain[:_SAMPLE_WORDS]
        if len(tokenizer.encode(f" {word} {word}", add_special_tokens=False).ids) == 2
    ]
