"""How a request's sampling fields are understood: by the pipeline, and by hand for one row of logits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from trtkit.engine.cpu.request import GenerationRequest
from trtkit.errors import InputError

Logits = npt.NDArray[np.float32]


def pipeline_config(request: GenerationRequest, generated: int = 0) -> Any:
    """Return the ``GenerationConfig`` for what is left of a request after ``generated`` tokens."""
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request.max_tokens - generated
    # The pipeline wants an end token even when it is told to ignore it.
    config.set_eos_token_id(request.end_id if request.stops_at_end_id else 0)
    config.ignore_eos = not request.stops_at_end_id
    if request.stops_at_end_id:
        config.min_new_tokens = max(0, (request.min_tokens or 0) - generated)
    config.logprobs = 1 if request.return_log_probs else 0
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
        if (value := getattr(request, name)) is not None:
            setattr(config, name, value)
    config.do_sample = not request.greedy
    if not request.greedy:
        # A draw must not repeat the random numbers of the part before it.
        config.rng_seed = ((request.seed or 0) + generated) % 2**64
        config.temperature = 1.0 if request.temperature is None else request.temperature
        config.top_p = request.top_p or 1.0
        if request.top_k:
            config.top_k = request.top_k
    return config


def choose(
    logits: Logits, request: GenerationRequest, generated: Sequence[int], masked: Iterable[int]
) -> tuple[int, float]:
    """Choose the next token after ``generated`` without any of ``masked``; return it and its log-probability.

    Raises:
        InputError: No token is left.
    """
    row = penalized(logits, request, generated)
    row[list(masked)] = -np.inf
    if request.stops_at_end_id and len(generated) < (request.min_tokens or 0):
        row[request.end_id] = -np.inf
    if not np.isfinite(row).any():
        raise InputError("the bad words leave no token to go on with")
    if request.greedy:
        token = int(row.argmax())
        return token, float(log_softmax(row)[token])
    row = log_softmax(row / (1.0 if request.temperature is None else request.temperature))
    kept = nucleus(row, request.top_k or 0, request.top_p or 1.0)
    rng = np.random.default_rng([request.seed or 0, len(generated)])
    weights = np.exp(row[kept])
    token = int(rng.choice(kept, p=weights / weights.sum()))
    return token, float(row[token])


def penalized(
    logits: Logits, request: GenerationRequest, generated: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Return the logits after the three penalties; repetition counts the prompt, the other two do not."""
    row = logits.astype(np.float64)
    if (repetition := request.repetition_penalty) not in {None, 1.0}:
        seen = np.unique([*request.input_ids, *generated])
        row[seen] = np.where(row[seen] > 0, row[seen] / repetition, row[seen] * repetition)
    if generated and (request.presence_penalty or request.frequency_penalty):
        tokens, counts = np.unique(generated, return_counts=True)
        row[tokens] -= (request.presence_penalty or 0.0) + counts * (request.frequency_penalty or 0.0)
    return row


def nucleus(log_probs: npt.NDArray[np.float64], top_k: int, top_p: float) -> npt.NDArray[np.intp]:
    """Return the most probable tokens: at most ``top_k`` (0: all), then the fewest that reach ``top_p``."""
    order = np.argsort(-log_probs, kind="stable")[: top_k or None]
    order = order[np.isfinite(log_probs[order])]
    mass = np.cumsum(np.exp(log_probs[order]))
    return np.asarray(order[: int(np.searchsorted(mass, top_p * mass[-1])) + 1])


def log_softmax(row: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return log-probabilities."""
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
