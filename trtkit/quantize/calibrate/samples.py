"""Samples: pieces of texts as token ids, no longer than asked, never padded."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import InputError
from trtkit.quantize.calibrate import texts
from trtkit.quantize.calibrate.data import Data, Record
from trtkit.quantize.fingerprint import Fingerprint

Ids = npt.NDArray[np.int64]
_LETTERS_OF_TOKEN = 8
"""That many of a text have more tokens than asked for in most languages; others are read on."""
_SPARE = 32
"""Tokens that are read beyond a piece, so that its last one is the same as in the whole text."""


@dataclass(frozen=True)
class Sample:
    """One piece."""

    ids: Ids
    origin: str


@dataclass(frozen=True)
class SampleSet:
    """What a calibration reads."""

    samples: Sequence[Sample]
    asked: int
    skipped: int
    """Texts without a token."""
    description: str
    fingerprint: Fingerprint
    """By which a gate knows the text again."""

    @property
    def used(self) -> int:
        """How many there are."""
        return len(self.samples)

    @property
    def tokens(self) -> int:
        """Tokens of all samples together."""
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest sample."""
        return max(len(sample.ids) for sample in self.samples)


def draw(source: HfCheckpoint, data: Data, *, count: int, max_tokens: int, seed: int) -> SampleSet:
    """Tokenize texts and draw samples of them.

    The start of each text goes first; only where there are too few texts do their later pieces follow.

    Raises:
        InputError: The model has no tokenizer or cannot read so many tokens, or the data has no text.
    """
    _check_length(source, max_tokens)
    cutter = _Cutter(source, max_tokens)
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    records, empty = _reservoir(data.records(), count, chance)
    # Of as many texts as samples only the starts are read.
    cut = [list(cutter.start(each) if len(records) == count else cutter.cut(each)) for each in records]
    pieces = [(depth, found[depth]) for found in cut for depth in range(len(found))]
    skipped = empty + sum(not found for found in cut)
    if not pieces:
        hint = "give texts that are not empty"
        raise InputError("there is no text in the data", path=data.path, hint=hint)
    chosen = _choose(pieces, count, chance)
    fingerprint = Fingerprint.of(map(cutter.text, chosen))
    return SampleSet(chosen, count, skipped, data.describe(), fingerprint)


def held_out(source: HfCheckpoint, *, count: int, max_tokens: int) -> list[Sample]:
    """Return up to ``count`` samples of the text that no built-in calibration reads.

    Raises:
        InputError: The model has no tokenizer, or cannot read so many tokens.
    """
    _check_length(source, max_tokens)
    record = Record(texts.held_out(), "held-out text (built in)")
    return list(_Cutter(source, max_tokens).cut(record))[:count]


def _reservoir(records: Iterable[Record], size: int, chance: random.Random) -> tuple[list[Record], int]:
    """Return up to ``size`` records, each equally likely, in their order, and how many were empty."""
    kept: list[tuple[int, Record]] = []
    seen = empty = 0
    for record in records:
        if not record.text.strip():
            empty += 1
            continue
        seen += 1
        place = chance.randrange(seen) if seen > size else seen - 1
        if seen <= size:
            kept.append((seen, record))
        elif place < size:
            kept[place] = (seen, record)
    return [record for _, record in sorted(kept, key=lambda pair: pair[0])], empty


def _choose(pieces: Sequence[tuple[int, Sample]], count: int, chance: random.Random) -> list[Sample]:
    """Return ``count`` pieces in their order: first pieces before all, of later ones a random choice."""
    first = [place for place, (depth, _) in enumerate(pieces) if depth == 0]
    later = [place for place, (depth, _) in enumerate(pieces) if depth > 0]
    missing = max(0, min(count - len(first), len(later)))
    places = sorted(first[:count] + chance.sample(later, missing))
    return [pieces[place][1] for place in places]


class _Cutter:
    """Cuts texts into pieces that begin as prompts of the model do."""

    def __init__(self, source: HfCheckpoint, max_tokens: int) -> None:
        self._tokenizer = _open_tokenizer(source)
        self._vocab_size = source.config.vocab_size
        special = self._tokenizer.encode("").ids
        # What a tokenizer puts around nothing is BOS, and with some EOS too.
        self._start = [each for each in special if each not in source.config.eos_token_ids][:1]
        self._step = max_tokens - len(self._start)

    def start(self, record: Record) -> Iterator[Sample]:
        """Yield the first piece of a text, and tokenize little more of it than that.

        Raises:
            InputError: The tokenizer has tokens that the model lacks.
        """
        letters = _LETTERS_OF_TOKEN * self._step
        # What is cut within a word has other tokens at its end, so some more are asked for.
        while letters < len(record.text) and self._num_tokens(record.text[:letters]) < self._step + _SPARE:
            letters *= 2
        yield from islice(self.cut(Record(record.text[:letters], record.origin)), 1)

    def _num_tokens(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def cut(self, record: Record) -> Iterator[Sample]:
        """Yield the pieces of a text.

        Raises:
            InputError: The tokenizer has tokens that the model lacks.
        """
        ids = self._tokenizer.encode(record.text, add_special_tokens=False).ids
        if ids and max(ids) >= self._vocab_size:
            message = f"the tokenizer gives token {max(ids)}, and the model has {self._vocab_size}"
            raise InputError(message, path=record.origin, hint="take tokenizer and model from one place")
        step = self._step
        for start in range(0, len(ids), step):
            piece = np.array([*self._start, *ids[start : start + step]], np.int64)
            yield Sample(piece, f"{record.origin}, tokens {start} to {min(start + step, len(ids)) - 1}")

    def text(self, sample: Sample) -> str:
        """Return what a sample says."""
        text: str = self._tokenizer.decode(sample.ids.tolist(), skip_special_tokens=True)
        return text


def _open_tokenizer(source: HfCheckpoint) -> Any:
    from tokenizers import Tokenizer

    path: Path | None = source.tokenizer_file
    if path is None:
        hint = "save it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise InputError("the model has no tokenizer.json to read texts with", path=source.folder, hint=hint)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"not a tokenizer: {error}", path=path) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _check_length(source: HfCheckpoint, max_tokens: int) -> None:
    limit = source.config.max_position_embeddings
    if not 2 <= max_tokens <= limit:
        message = f"samples of {max_tokens:,} tokens cannot be read: the model takes 2 to {limit:,}"
        raise InputError(message, path=source.folder, hint=f"--max-length {min(512, limit)}")
