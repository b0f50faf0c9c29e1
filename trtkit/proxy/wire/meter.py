"""The tokens of an answer's text, piece by piece."""

from __future__ import annotations

from trtkit.proxy.wire.prompt import PromptCounter


class TextMeter:
    """Measures one answer, whose pieces are what is new of it, or all of it so far.

    Which of both is seen from the pieces: each of the latter kind begins with the piece before it.
    """

    def __init__(self, counter: PromptCounter, *, streams: bool = False, echo: bytes = b"") -> None:
        self._counter = counter
        self._streams = streams
        self._echo = echo
        """The prompt, where the answer may begin with it."""
        self._last = b""
        self._cumulative = True
        """Whether it may still be of the second kind."""

    def __call__(self, piece: bytes) -> int:
        """Return the tokens that a piece adds.

        A streamed message is one token, except where characters take several, which come when they are whole, and
        where a server that lags sends several at once: a token never spans two words.
        """
        text = self._new(piece)
        if self._streams and text.isascii() and len(text.split()) < 2:
            return 1
        return max(1, self._counter.count_answer(text))

    def _new(self, piece: bytes) -> bytes:
        begins, self._echo = self._echo, b""
        text = piece.removeprefix(begins)
        self._cumulative = self._cumulative and piece.startswith(self._last)
        if self._cumulative and len(piece) > len(self._last) > 0:
            text = piece[len(self._last) :]
        self._last = piece if self._cumulative else b""
        return text
