"""One live request: tokens from the pipeline through bans and stop words to its caller."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass

from trtkit.engine.inflight.bans import Bans, surface_variants
from trtkit.engine.inflight.pipeline import Decoding, Logits, OracleSession, Pipeline
from trtkit.engine.inflight.request import FinishReason, GenerationRequest, OnTokens, TokenChunk
from trtkit.engine.inflight.sampling import choose
from trtkit.engine.inflight.stops import StopGuard, Token, stop_texts
from trtkit.engine.inflight.vocabulary import TextVocabulary, TokenIds

_log = logging.getLogger(__name__)


class Phase(enum.Enum):
    """Who chooses the next token."""

    WAITING = enum.auto()
    """No one: the pipeline has no room yet, or the request is on its way back into it."""
    IN_PIPELINE = enum.auto()
    BY_HAND = enum.auto()
    """The oracle: after a ban, when the pipeline could not count the tokens before it for its penalties."""
    ENDED = enum.auto()


@dataclass(frozen=True)
class Workshop:
    """What all generations of an engine share."""

    pipeline: Pipeline
    vocabulary: TextVocabulary | None = None
    open_oracle: Callable[[], OracleSession] | None = None
    """Gives the logits that a pipeline with a sampler of its own does not show; None where it has none."""


class Generation:
    """One live request. Lives on the engine's thread."""

    def __init__(self, request: GenerationRequest, on_tokens: OnTokens, workshop: Workshop) -> None:
        self.request = request
        self.phase = Phase.WAITING
        self._on_tokens = on_tokens
        self._workshop = workshop
        vocabulary = workshop.vocabulary or TokenIds()
        self._guard = StopGuard(stop_texts(request.stop_words, vocabulary), vocabulary)
        self._bans = Bans(surface_variants(request.bad_words, workshop.vocabulary))
        self._generated: list[int] = []
        self._ready: list[Token] = []
        self._cum_log_prob = 0.0
        self._finish: FinishReason | None = None
        self._message = ""
        self._oracle: OracleSession | None = None
        self._decoding: Decoding | None = None

    @property
    def ended(self) -> bool:
        """Whether the last chunk was handed out."""
        return self.phase is Phase.ENDED

    def enter(self) -> bool:
        """Go into the pipeline if there is room; raise RuntimeError on what it cannot take."""
        pipeline = self._workshop.pipeline
        if not pipeline.has_room(self.request, self._generated):
            return False
        self._decoding = pipeline.enter(self.request, self._generated)
        self.phase = Phase.IN_PIPELINE
        return True

    def advance(self) -> None:
        """Take the tokens of the last step and hand out what is certain."""
        if self.ended:
            return
        if self.phase is Phase.BY_HAND and self._oracle is not None:
            self._choose(self._oracle)
        elif self._decoding is not None:
            self._read(self._decoding)
        self._hand_out()

    def end(self, reason: FinishReason, message: str = "") -> None:
        """End from outside: cancelled, or the engine failed. What was held back is dropped."""
        self._close(reason, message)
        self._hand_out()

    def _read(self, decoding: Decoding) -> None:
        open_oracle = self._workshop.open_oracle
        for token in decoding.read(self._draw):
            if open_oracle is not None and token.id in self._banned():
                self._leave()
                self._oracle = self._oracle or open_oracle()
                self._choose(self._oracle)
                return
            self._take(token)
            if self.ended:
                return
        if decoding.dropped:
            self._close(FinishReason.ERROR, "the KV pool has no room for this sequence")

    def _choose(self, oracle: OracleSession) -> None:
        """Choose one token outside the pipeline, then go on."""
        self._take(self._draw(oracle.next_logits(self._history())))
        if not self.ended:
            penalized = self.request.presence_penalty or self.request.frequency_penalty
            self.phase = Phase.BY_HAND if penalized else Phase.WAITING

    def _draw(self, logits: Logits) -> Token:
        """Choose a token from the model's logits, none that completes a bad word."""
        return choose(logits, self.request, self._generated, self._banned())

    def _take(self, token: Token) -> None:
        if self.request.stops_at_end_id and token.id == self.request.end_id:
            self._ready += self._guard.flush()
            self._close(FinishReason.STOP_WORDS if self._guard.stopped else FinishReason.END_ID)
            return
        self._generated.append(token.id)
        self._ready += self._guard.push(token)
        full = len(self._generated) == self.request.max_tokens
        if full and not self._guard.stopped:
            self._ready += self._guard.flush()
        if self._guard.stopped:
            self._close(FinishReason.STOP_WORDS)
        elif full:
            self._close(FinishReason.LENGTH)

    def _close(self, reason: FinishReason, message: str = "") -> None:
        """Enter the last phase."""
        self._leave()
        self.phase = Phase.ENDED
        self._finish, self._message = reason, message

    def _leave(self) -> None:
        if self._decoding is not None:
            self._decoding.leave()
            self._decoding = None

    def _hand_out(self) -> None:
        if not self.ended and not (self._ready and self.request.streaming):
            return
        tokens, self._ready = self._ready, []
        if not deliver(self._on_tokens, self._chunk(tokens)) and not self.ended:
            self._close(FinishReason.ERROR)

    def _chunk(self, tokens: list[Token]) -> TokenChunk:
        log_probs = tuple(token.log_prob for token in tokens)
        self._cum_log_prob += sum(log_probs)
        asked = self.request.return_log_probs
        return TokenChunk(
            tokens=tuple(token.id for token in tokens),
            finish_reason=self._finish,
            message=self._message,
            log_probs=log_probs if asked else None,
            cum_log_prob=self._cum_log_prob if asked else None,
        )

    def _banned(self) -> set[int]:
        return self._bans.completing(self._history()) if self._bans else set()

    def _history(self) -> list[int]:
        return self.request.input_ids + self._generated


def deliver(on_tokens: OnTokens, chunk: TokenChunk) -> bool:
    """Call a receiver; return False if it failed, which must not stop the others."""
    try:
        on_tokens(chunk)
    except Exception:
        _log.exception("a receiver of tokens failed")
        return False
    return True
