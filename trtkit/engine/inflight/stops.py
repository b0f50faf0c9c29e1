"""Find stop words in the text as it grows; release only tokens that cannot belong to one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trtkit.engine.inflight.vocabulary import Vocabulary
from trtkit.errors import InputError


@dataclass(frozen=True)
class Token:
    """A sampled token and its log-probability."""

    id: int
    log_prob: float = 0.0


@dataclass(frozen=True)
class Piece:
    """The fewest consecutive tokens that decode to whole characters."""

    tokens: tuple[Token, ...]
    text: str


def stop_texts(words: Sequence[Sequence[int]], vocabulary: Vocabulary) -> list[str]:
    """Return the text of each stop word; raise :class:`InputError` on one that ends within a character."""
    texts = [vocabulary.decode(word) for word in words]
    for word, text in zip(words, texts, strict=True):
        if vocabulary.is_open(text) and vocabulary.encode(text) != list(word):
            raise InputError(f"stop word {list(word)} ends within a character")
    return texts


class Detokenizer:
    """Cut the stream of tokens into pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._before: tuple[Token, ...] = ()
        self._open: tuple[Token, ...] = ()

    def push(self, token: Token) -> Piece | None:
        """Return the piece that the token completes, or None while a character is open."""
        self._open = (*self._open, token)
        text = self._text()
        return None if self._vocabulary.is_open(text) else self._close(text)

    def flush(self) -> Piece | None:
        """Return the open character at the end of a generation, whatever it decodes to."""
        return self._close(self._text()) if self._open else None

    def _close(self, text: str) -> Piece:
        piece = Piece(self._open, text)
        self._before, self._open = self._open, ()
        return piece

    def _text(self) -> str:
        # Decoded after the tokens before it: decoders treat the first token of a text differently.
        before = [token.id for token in self._before]
        shown = self._vocabulary.decode(before)
        return self._vocabulary.decode([*before, *(token.id for token in self._open)])[len(shown) :]


class StopGuard:
    """Between sampler and caller: what is released decodes to the text before the earliest stop word."""

    def __init__(self, stops: Iterable[str], vocabulary: Vocabulary) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary)
        self._held: deque[Piece] = deque()
        self._before: tuple[Token, ...] = ()
        """Tokens of the piece released last."""
        self.stopped = False

    def push(self, token: Token) -> list[Token]:
        """Take one token, return those that are certain. Sets ``stopped`` once a stop word is."""
        piece = self._detokenizer.push(token)
        if piece is None:
            return []
        self._held.append(piece)
        return self._settle(final=False)

    def flush(self) -> list[Token]:
        """Return what is held when the generation ends by itself; the beginning of a stop word is none."""
        piece = self._detokenizer.flush()
        if piece is not None:
            self._held.append(piece)
        return self._settle(final=True)

    def _settle(self, *, final: bool) -> list[Token]:
        window = "".join(piece.text for piece in self._held)
        begun = len(window) if final else self._earliest_beginning(window)
        found = min((at for at in (window.find(stop) for stop in self._stops) if at >= 0), default=None)
        # With "abcd" and "bc", "abc" is not decided yet: the longer word may still come true at an earlier place.
        if found is None or found > begun:
            return self._release(begun)
        self.stopped = True
        return self._cut(found)

    def _earliest_beginning(self, window: str) -> int:
        """Return where the earliest unfinished stop word may have begun."""
        for start in range(len(window)):
            tail = window[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stops):
                return start
        return len(window)

    def _release(self, end: int) -> list[Token]:
        """Release the pieces that end at or before ``end`` in the held text."""
        released: list[Token] = []
        while self._held and len(self._held[0].text) <= end:
            piece = self._held.popleft()
            end -= len(piece.text)
            released += piece.tokens
            self._before = piece.tokens
        return released

    def _cut(self, end: int) -> list[Token]:
        """Release the text before ``end``, part of a piece included, and drop the rest."""
        length = sum(len(piece.text) for piece in self._held)
        released = self._release(end)
        rest = end - (length - sum(len(piece.text) for piece in self._held))
        if rest:
            released += self._re_encode(self._held[0], rest)
        self._held.clear()
        return released

    def _re_encode(self, piece: Piece, length: int) -> list[Token]:
        """Return tokens that decode to the first ``length`` characters of a piece after what was released."""
        wanted = piece.text[:length]
        before = [token.id for token in self._before]
        shown = self._vocabulary.decode(before)
        # Some tokenizers put a space before every text they encode, hence the second try.
        for candidate in (wanted, wanted.removeprefix(" ")):
            ids = self._vocabulary.encode(candidate)
            if ids and self._vocabulary.decode([*before, *ids]) == shown + wanted:
                first, *others = ids
                total = sum(token.log_prob for token in piece.tokens)
                return [Token(first, total), *(Token(other) for other in others)]
        return []
