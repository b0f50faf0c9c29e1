"""Held-out tokens: what baseline and candidate both read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import InputError
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.gate.executor import Tokens

BUILTIN = "held-out text (built in)"
"""What reports call the text that comes with trtkit; nothing is calibrated with it."""
MIN_SAMPLES = 2
"""One sample has no spread to draw an interval from."""


@dataclass(frozen=True)
class Samples:
    """Sequences of tokens, all of one length."""

    sequences: tuple[Tokens, ...]
    origin: str
    asked: int
    """How many were asked for."""
    end: int | None = None
    """Characters of the built-in text up to the end of the last one; None for other texts."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all of them."""
        return sum(map(len, self.sequences))

    def logits_bytes(self, vocab_size: int) -> int:
        """Return the size of all logits in float16."""
        return self.num_tokens * vocab_size * np.dtype(np.float16).itemsize

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the tokens."""
        digest = hashlib.sha256()
        for tokens in self.sequences:
            digest.update(len(tokens).to_bytes(8, "little") + tokens.tobytes())
        return digest.hexdigest()


def take_samples(source: HfCheckpoint, data: Path | None, *, count: int, length_tokens: int) -> Samples:
    """Return ``count`` consecutive pieces of the texts; ``data`` is a file or folder, None for the built-in text.

    Each begins as the tokenizer begins a text (most have a token for that). Texts are joined by blank lines.

    Raises:
        InputError: There is no tokenizer, the model reads no samples of that length, or the texts have too few tokens.
    """
    if length_tokens > (limit := source.config.max_position_embeddings):
        message = f"samples of {length_tokens:,} tokens cannot be read: the model takes {limit:,}"
        raise InputError(message, path=source.folder, hint=f"--sample-tokens {min(512, limit)}")
    tokenizer = open_tokenizer(source)
    start = start_tokens(tokenizer, source)
    room = length_tokens - len(start)
    origin = BUILTIN if data is None else str(data)
    pieces: list[Tokens] = []
    for piece in _pieces(tokenizer, data, room):
        pieces.append(np.concatenate([start, piece]))
        if len(pieces) == count:
            break
    largest = max((int(piece.max()) for piece in pieces), default=0)
    if largest >= source.config.vocab_size:
        message = f"the tokenizer gives token {largest}, and the model has {source.config.vocab_size}"
        raise InputError(message, path=source.folder, hint="take tokenizer and model from one place")
    if len(pieces) < MIN_SAMPLES:
        message = f"the text fills {len(pieces)} samples of {room} tokens, at least {MIN_SAMPLES} are needed"
        raise InputError(message, path=origin, hint="give more text, or shorter samples")
    end = _end(tokenizer, len(pieces) * room) if data is None else None
    return Samples(tuple(pieces), origin, count, end)


def _end(tokenizer: Any, count: int) -> int:
    """Return how many characters of the built-in text the first tokens are."""
    offsets = tokenizer.encode(next(_texts(None)), add_special_tokens=False).offsets
    return int(offsets[min(count, len(offsets)) - 1][1])


def open_tokenizer(source: HfCheckpoint) -> Any:
    """Return the source's tokenizer.

    Raises:
        InputError: There is none, or it cannot be read.
    """
    from tokenizers import Tokenizer

    if source.tokenizer_file is None:
        raise InputError("there is no tokenizer.json", path=source.folder, hint="save the tokenizer there")
    try:
        tokenizer = Tokenizer.from_file(str(source.tokenizer_file))
    except Exception as error:  # the binding raises bare Exception
        raise InputError(f"the tokenizer cannot be read: {error}", path=source.tokenizer_file) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def start_tokens(tokenizer: Any, source: HfCheckpoint) -> Tokens:
    """Return the tokens that stand before every text; what stands behind it would be in the middle of ours."""
    added = tokenizer.encode("", add_special_tokens=True).ids
    ends = set(source.config.eos_token_ids) - {source.config.bos_token_id}
    return np.array([token for token in added if token not in ends], np.int64)


def _pieces(tokenizer: Any, data: Path | None, room: int) -> Iterator[Tokens]:
    held: list[int] = []
    for text in _texts(data):
        held += tokenizer.encode(text + "\n\n", add_special_tokens=False).ids
        while len(held) >= room:
            yield np.array(held[:room], np.int64)
            held = held[room:]


def _texts(data: Path | None) -> Iterator[str]:
    if data is not None:
        yield from (record.text for record in Data(data).records())
        return
    yield texts.held_out()
