"""Choose a token from one row of logits, as a request's sampling fields ask."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from trtkit.engine.inflight.pipeline import Logits
from trtkit.engine.inflight.request import GenerationRequest
from trtkit.engine.inflight.stops import Token
from trtkit.errors import InputError, StageError

Row = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.intp]

_FEW = 1024
"""Tokens that are sorted at first: to sort a vocabulary of 49k takes 9 ms, and a nucleus is seldom larger."""


def choose(
    logits: Logits, request: GenerationRequest, generated: Sequence[int], masked: Collection[int]
) -> Token:
    """Choose the next token after ``generated`` without any of ``masked``.

    The draw depends on the row, the request and the number of tokens before it, on nothing else.

    Raises:
        InputError: No token is left.
        StageError: The model overflowed.
    """
    row = penalized(logits, request, generated)
    row[list(masked)] = -np.inf
    if request.stops_at_end_id and len(generated) < (request.min_tokens or 0):
        row[request.end_id] = -np.inf
    best = int(row.argmax())
    if row[best] == -np.inf:
        raise InputError("the bad words leave no token to go on with")
    if not np.isfinite(row[best]):  # argmax finds a NaN before all else
        raise StageError("the model's logits are not finite")
    if request.greedy:
        return Token(best, float(log_softmax(row)[best]) if request.return_log_probs else 0.0)
    row = log_softmax(row / (1.0 if request.temperature is None else request.temperature))
    kept = nucleus(row, request.top_k or 0, request.top_p or 1.0)
    mass = np.cumsum(np.exp(row[kept]))
    drawn = np.random.default_rng([request.seed or 0, len(generated)]).random() * mass[-1]
    # Rounding can make it the whole mass, behind the last token.
    token = int(kept[min(int(np.searchsorted(mass, drawn, side="right")), len(kept) - 1)])
    return Token(token, float(row[token]))


def penalized(logits: Logits, request: GenerationRequest, generated: Sequence[int]) -> Row:
    """Return the logits after the three penalties; repetition counts the prompt, the other two do not."""
    row = logits.astype(np.float64)
    if (repetition := request.repetition_penalty) not in {None, 1.0}:
        seen = np.unique([*request.input_ids, *generated])
        row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    if generated and (request.presence_penalty or request.frequency_penalty):
        tokens, counts = np.unique(generated, return_counts=True)
        row[tokens] -= (request.presence_penalty or 0.0) + counts * (request.frequency_penalty or 0.0)
    return row


def nucleus(log_probs: Row, top_k: int, top_p: float) -> Tokens:
    """Return the most probable tokens: at most ``top_k`` (0: all), then the fewest that reach ``top_p``."""
    vocab = len(log_probs)
    most = min(top_k or vocab, vocab)
    if most == vocab and top_p == 1:
        return np.flatnonzero(np.isfinite(log_probs))
    kept = likeliest(log_probs, most if top_k else min(_FEW, vocab))
    mass = np.cumsum(np.exp(log_probs[kept]))
    if not top_k and mass[-1] < top_p:
        kept = likeliest(log_probs, vocab)
        mass = np.cumsum(np.exp(log_probs[kept]))
    whole = mass[-1] if top_k else 1.0
    return kept[: int(np.searchsorted(mass, top_p * whole)) + 1]


def likeliest(log_probs: Row, count: int) -> Tokens:
    """Return the ``count`` most probable tokens that are possible, the most probable first."""
    kept = np.argpartition(log_probs, -count)[-count:]
    kept = kept[np.isfinite(log_probs[kept])]
    return np.asarray(kept[np.argsort(-log_probs[kept], kind="stable")])


def log_softmax(row: Row) -> Row:
    """Return log-probabilities."""
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
