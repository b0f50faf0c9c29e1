"""Tokens to text and back, as the engine's guards need it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trtkit.errors import InputError

REPLACEMENT = "\ufffd"
"""What a decoder gives for bytes that are no character, or not yet one."""


class Vocabulary(Protocol):
    """Tokens to text and back; special tokens are text too."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the text, none added."""

    def is_open(self, text: str) -> bool:
        """Tell whether the text may end within a character."""


class TokenIds:
    """The vocabulary when no tokenizer is given: each token is one character, so text search is token search."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return one character per token."""
        return "".join(map(chr, tokens))

    def encode(self, text: str) -> list[int]:
        """Return one token per character."""
        return [ord(character) for character in text]

    def is_open(self, text: str) -> bool:  # noqa: ARG002 - the protocol's signature
        """Tell that a token is always whole."""
        return False


class TextVocabulary:
    """A Hugging Face ``tokenizer.json``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def open(cls, path: Path) -> TextVocabulary:
        """Read ``tokenizer.json``, or the folder that holds it."""
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            return cls(Tokenizer.from_file(str(file)))
        except Exception as error:  # the binding raises bare Exception
            hint = "give the folder that holds tokenizer.json"
            raise InputError(f"tokenizer cannot be read: {error}", hint=hint, path=file) from error

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text; special tokens show, so that a stop word may be one."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of the text, without any that the template would add."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def is_open(self, text: str) -> bool:
        """Tell whether the text ends with bytes that are no character yet."""
        return text.endswith(REPLACEMENT)
