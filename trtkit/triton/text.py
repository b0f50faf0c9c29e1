"""Text to tokens and back: tokenizer loading, incremental detokenization, encoded word lists.

This file is also copied into model repositories as ``trtkit_text.py``: it imports nothing of trtkit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What a tokenizer decodes an incomplete or invalid UTF-8 sequence to."""

Decode = Callable[[Sequence[int]], str]


class TextTokenizer:
    """A ``tokenizer.json`` with the few operations that serving needs."""

    def __init__(self, folder: Path, *, skip_special_tokens: bool = True) -> None:
        """Load ``folder/tokenizer.json``; never asks a hub. Raises FileNotFoundError."""
        from tokenizers import Tokenizer

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist: the tokenizer folder must hold a tokenizer.json")
        self._tokenizer: Any = Tokenizer.from_file(str(path))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._skip_special_tokens = skip_special_tokens

    def encode(self, prompt: str, *, add_special_tokens: bool = True) -> list[int]:
        """Tokenize a prompt; special tokens written out in it are recognised, and a written BOS is not doubled."""
        plain: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        if not add_special_tokens:
            return plain
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=True).ids
        if len(ids) > 1 and ids[1:] == plain and plain[0] == ids[0]:
            return plain
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, decoded on their own."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=self._skip_special_tokens)
        return text

    def encode_word(self, word: str) -> list[int]:
        """Tokenize a stop word without special tokens."""
        return self.encode(word, add_special_tokens=False)

    def surface_variants(self, word: str) -> list[list[int]]:
        """Return the token sequences that write ``word`` at a start, after a space and inside a line."""
        anchor = self.encode_word("\n")
        inside = self.encode_word("\n" + word)
        candidates = [self.encode_word(word), self.encode_word(" " + word)]
        if inside[: len(anchor)] == anchor:
            candidates.append(inside[len(anchor) :])
        return [list(ids) for ids in dict.fromkeys(tuple(ids) for ids in candidates if ids)]


class IncrementalDetokenizer:
    """Turn a token stream into text deltas whose sum does not depend on how the stream was cut.

    A delta is what decoding gains from the new token, given the tokens of the delta before: leading spaces
    survive, and nothing is released that ends inside a character.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        """Start after ``context``, tokens that end at a whole character and whose text is out already."""
        self._decode = decode
        self._window = list(context)
        self._shown_tokens = len(context)
        self._shown_text = decode(context) if context else ""

    def push(self, tokens: Iterable[int]) -> str:
        """Take tokens, return the text that they complete (possibly empty)."""
        return "".join(self._push_token(token) for token in tokens)

    def flush(self) -> str:
        """Return what is held back, incomplete as it may be."""
        if len(self._window) == self._shown_tokens:
            return ""
        delta = self._gain(self._decode(self._window))
        self._advance()
        return delta

    def _push_token(self, token: int) -> str:
        self._window.append(token)
        text = self._decode(self._window)
        if len(text) <= len(self._shown_text) or text.endswith(REPLACEMENT):
            return ""
        delta = self._gain(text)
        self._advance()
        return delta

    def _gain(self, text: str) -> str:
        if text.startswith(self._shown_text):
            return text[len(self._shown_text) :]
        # A late invalid byte can turn a whole run of byte tokens invalid, shown characters included.
        return self._decode(self._window[self._shown_tokens :])

    def _advance(self) -> None:
        del self._window[: self._shown_tokens]
        self._shown_tokens = len(self._window)
        self._shown_text = self._decode(self._window)


def decode_after(decode: Decode, context: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text that ``tokens`` add after ``context``; both start and end at whole characters."""
    detokenizer = IncrementalDetokenizer(decode, context)
    return detokenizer.push(tokens) + detokenizer.flush()


def encode_word_list(words: Sequence[Sequence[int]], length: int | None = None) -> npt.NDArray[np.int32]:
    """Return [2, L]: the words' ids end to end padded with 0, their end offsets padded with -1."""
    ids = [token for word in words for token in word]
    offsets = np.cumsum([len(word) for word in words], dtype=np.int64).tolist()
    size = max(len(ids), len(offsets), length or 0)
    rows = [ids + [0] * (size - len(ids)), offsets + [-1] * (size - len(offsets))]
    return np.array(rows, dtype=np.int32).reshape(2, size)


def decode_word_list(rows: npt.NDArray[np.int32]) -> list[list[int]]:
    """Invert :func:`encode_word_list`; raises ValueError for a list that TensorRT-LLM would refuse."""
    if rows.ndim != 2 or rows.shape[0] != 2:
        raise ValueError(f"Sparse list must have shape [2, L], got {list(rows.shape)}")
    ids, offsets = rows[0].tolist(), rows[1].tolist()
    count = next((i for i, offset in enumerate(offsets) if offset == -1), len(offsets))
    if any(offset != -1 for offset in offsets[count:]):
        raise ValueError("Sparse list must not have offsets after the first -1")
    bounds = [0, *offsets[:count]]
    if any(end <= start for start, end in pairwise(bounds)):
        raise ValueError("Sparse list must not have offsets that do not strictly increase")
    if bounds[-1] > len(ids):
        raise ValueError(f"Sparse list must not have an offset beyond its length {len(ids)}")
    return [ids[start:end] for start, end in pairwise(bounds)]
