"""What two texts have in common: all runs of eight words, however they are cut into records.

Two writers rarely agree on so many. A fingerprint keeps enough of a text's runs to know them again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

_RUN = 8
_WORD = re.compile(r"[^\W_]+")
_KEPT = 1024
"""Of 45,000 runs, which are 128 samples of 512 tokens: every 44th, and so 270 of a gate's 12,000."""
_HASH_BYTES = 6
FINGERPRINT = "calibrated_with"
"""Key of what a file of ranges says of itself, and of the block ``trtkit`` in the checkpoints that are made by it."""
SOME, ALL = 0.02, 0.9
"""Below the one, two texts share phrases; above the other, only seams of records differ."""


def shared_part(held: Iterable[str], read: Iterable[str], *, most_words: int | None = None) -> float:
    """Return the part of the runs of words of ``held``, of which so many are looked at, that ``read`` has too."""
    wanted = set(_runs(islice(_words(held), most_words)))
    if not wanted:
        return 0.0
    missing = set(wanted)
    for run in _runs(_words(read)):
        missing.discard(run)
    return 1 - len(missing) / len(wanted)


@dataclass(frozen=True)
class Fingerprint:
    """The runs of a text with the smallest hashes."""

    hashes: frozenset[int]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Fingerprint:
        """Read a text."""
        return cls(frozenset(heapq.nsmallest(_KEPT, {_hash(run) for run in _runs(_words(texts))})))

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Read what :meth:`spelled` gave.

        Raises:
            ValueError: It is something else.
        """
        try:
            raw = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ValueError(f"not a fingerprint: {error}") from None
        if len(raw) % _HASH_BYTES:
            raise ValueError("not a fingerprint: it ends within a number")
        starts = range(0, len(raw), _HASH_BYTES)
        return cls(frozenset(int.from_bytes(raw[start : start + _HASH_BYTES], "big") for start in starts))

    def spelled(self) -> str:
        """Return it as letters, 8 for each run."""
        return base64.b64encode(
            b"".join(each.to_bytes(_HASH_BYTES, "big") for each in sorted(self.hashes))
        ).decode()

    def part_of(self, held: Iterable[str]) -> float:
        """Return the part of the runs of ``held`` that the text has too, by those that it would have kept."""
        # A text of fewer runs has kept all of them.
        bound = max(self.hashes) if len(self.hashes) == _KEPT else 1 << 8 * _HASH_BYTES
        wanted = {each for each in map(_hash, _runs(_words(held))) if each <= bound}
        return len(wanted & self.hashes) / len(wanted) if wanted else 0.0


def _hash(run: tuple[str, ...]) -> int:
    digest = hashlib.blake2b(" ".join(run).encode(), digest_size=_HASH_BYTES).digest()
    return int.from_bytes(digest, "big")


def _words(parts: Iterable[str]) -> Iterator[str]:
    return (word.lower() for part in parts for word in _WORD.findall(part))


def _runs(words: Iterator[str]) -> Iterator[tuple[str, ...]]:
    """Yield all runs, of fewer words the only one."""
    run = tuple(islice(words, _RUN))
    if run:
        yield run
    for word in words:
        run = (*run[1:], word)
        yield run
