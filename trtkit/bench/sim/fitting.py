"""An engine's constants from the step times that a plan foresees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trtkit.bench.sim.engine import EngineModel
from trtkit.plan.pace import Speed
from trtkit.plan.types import Plan

_POINTS = 12
_FLAT = 1.05
"""Prompts that take less than so many times a single token hide behind the reading of the weights."""


@dataclass(frozen=True)
class Fitted:
    """Constants, and how far they are from the times that they stand for."""

    model: EngineModel
    worst_error: float
    """Largest relative difference at the points that were fitted."""


def fit_speed(speed: Speed, plan: Plan, beams: int = 1) -> Fitted:
    """Fit the model's constants to a plan's speed: prompts of one token to the longest, batches of one to all slots."""
    limits, zones = plan.limits, plan.zones
    contexts = _spread(limits.max_seq_len)[_POINTS // 2 :]
    steps = [(batch, context) for batch in _spread(zones.decode_slots) for context in contexts]
    step_s = [speed.step_ms(batch * beams, zones.seen_tokens(context)) / 1000 for batch, context in steps]
    rows = _array([(1, batch, batch * context) for batch, context in steps])
    base_s, sequence_s, context_s = factors_of(rows, step_s)
    model = replace(
        EngineModel(), step_s=float(base_s), sequence_s=float(sequence_s), context_s=float(context_s)
    )
    lengths = _spread(limits.max_input_len)
    prefill_s = [speed.prefill_ms(tokens) / 1000 for tokens in lengths]
    added = min(
        (_added(lengths, prefill_s), _hidden(lengths, prefill_s)), key=lambda prefill: prefill.worst_error
    )
    worst = max(added.worst_error, _worst(rows @ _array([base_s, sequence_s, context_s]), step_s))
    return Fitted(added.on(model), worst)


@dataclass(frozen=True)
class _Prefill:
    """A prompt of n tokens takes ``first_s + max(0, token_s * n + square_s * n^2 - hidden_s)``."""

    first_s: float
    token_s: float
    square_s: float
    hidden_s: float
    worst_error: float

    def on(self, model: EngineModel) -> EngineModel:
        """Return the model with it; no prompt is quicker than a step, which reads the same weights."""
        more_s = self.first_s - model.step_s
        return replace(
            model,
            prefill_s=max(0.0, more_s),
            prefill_tokens_per_s=1 / max(self.token_s, 1e-12),
            square_s=self.square_s,
            hidden_s=self.hidden_s + max(0.0, -more_s),
        )


def _added(lengths: Sequence[int], seconds: Sequence[float]) -> _Prefill:
    """Fit tokens that all add to the time, as an engine's own times say."""
    rows = _array([(1, n, n * n) for n in lengths])
    first, token, square = factors = factors_of(rows, seconds)
    return _Prefill(float(first), float(token), float(square), 0.0, _worst(rows @ factors, seconds))


def _hidden(lengths: Sequence[int], seconds: Sequence[float]) -> _Prefill:
    """Fit the slower of reading the weights and multiplying the tokens, as a roofline says."""
    first_s = seconds[0]
    slow = [(n, each) for n, each in zip(lengths, seconds, strict=True) if each > _FLAT * first_s]
    if not slow:
        return _Prefill(first_s, 0.0, 0.0, 0.0, _worst(first_s, seconds))
    token, square = factors = factors_of(_array([(n, n * n) for n, _ in slow]), [each for _, each in slow])
    found = np.maximum(first_s, _array([(n, n * n) for n in lengths]) @ factors)
    return _Prefill(first_s, float(token), float(square), first_s, _worst(found, seconds))


def _spread(most: int) -> list[int]:
    """Return numbers from 1 on, each about as many times the one before."""
    return sorted({round(most ** (step / (_POINTS - 1))) for step in range(_POINTS)})


def factors_of(terms: Any, seconds: Sequence[float]) -> Any:
    """Return factors that are not negative, by least squares of the relative error."""
    rows = _array(terms)
    factors, used = np.zeros(rows.shape[1]), list(range(rows.shape[1]))
    while used:
        scaled = rows[:, used] / _array(seconds)[:, None]
        # Of columns that differ by ten powers of ten, least squares would drop the smallest.
        sizes = scaled.max(axis=0)
        found = np.linalg.lstsq(scaled / sizes, np.ones(len(rows)), rcond=None)[0]
        if (found >= 0).all():
            factors[used] = found / sizes
            return factors
        del used[int(found.argmin())]
    return factors


def _worst(found: Any, seconds: Sequence[float]) -> float:
    return float(np.abs(found / _array(seconds) - 1).max())


def _array(numbers: Any) -> Any:
    return np.asarray(numbers, dtype=float)
