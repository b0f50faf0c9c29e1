"""What goes into the engine and what comes out of it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class FinishReason(str, enum.Enum):
    """Why a generation ended."""

    LENGTH = "length"
    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt and how to continue it. None means that the caller did not say."""

    request_id: str
    input_ids: list[int]
    max_tokens: int
    end_id: int | None = None
    pad_id: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    min_tokens: int | None = None
    """Tokens before which ``end_id`` cannot be chosen."""
    seed: int | None = None
    """Seed of the sampler; left out, 0 as in TensorRT-LLM: the same request gives the same text."""
    stop_words: tuple[tuple[int, ...], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    streaming: bool = True
    """Whether tokens are handed out as they come, or all in one last chunk."""
    return_log_probs: bool = False

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken: no field asks for a draw, or top-k 1 or temperature 0 rules it out."""
        if self.top_k == 1 or self.temperature == 0:
            return True
        draws = (self.temperature is not None, bool(self.top_k), bool(self.top_p) and self.top_p != 1)
        return not any(draws)

    @property
    def stops_at_end_id(self) -> bool:
        """Whether there is an end token; TensorRT-LLM's -1 means none."""
        return self.end_id is not None and self.end_id >= 0


@dataclass(frozen=True)
class TokenChunk:
    """Tokens of one request. The last chunk, and only that one, has a ``finish_reason``."""

    tokens: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    message: str = ""
    """What went wrong, when ``finish_reason`` is ERROR."""
    log_probs: tuple[float, ...] | None = None
    """Of each token in ``tokens``, when asked for."""
    cum_log_prob: float | None = None
    """Sum over all tokens so far, when asked for."""


OnTokens = Callable[[TokenChunk], None]
"""Receives chunks on the engine's thread, so it must hand over and return."""


@dataclass(frozen=True)
class EngineStats:
    """The engine's load after its last step."""

    active: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_max: int = 0
    tokens_per_block: int = 0
