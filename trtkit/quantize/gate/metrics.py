"""How two models differ on the same tokens, token by token, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtkit.checkpoint.safetensors import Array
from trtkit.quantize.gate.executor import Floats, Tokens

Doubles = npt.NDArray[np.float64]
_ROWS = 16
"""Positions that are worked on at once: 16 of a vocabulary of 49152 are 3 MB."""
_RESAMPLES = 2000
_SEED = 0
_NORMAL_95 = 1.96
"""Within so many standard deviations lie 95 % of a normal distribution."""


@dataclass(frozen=True)
class Comparison:
    """One sample: a value for each of its positions; the last position has no next token to be right about."""

    kl: Doubles
    """KL(baseline || candidate), nats."""
    agrees: Doubles
    """1 where both put the same token first."""
    cosine: Doubles
    """Of the logits, each less their mean: adding a constant to all changes no probability."""
    baseline_nll: Doubles
    """Of the token that comes next, nats."""
    candidate_nll: Doubles
    baseline_top: npt.NDArray[np.int64]
    candidate_top: npt.NDArray[np.int64]

    @property
    def is_finite(self) -> bool:
        """Whether all of it is numbers."""
        values = (self.kl, self.cosine, self.baseline_nll, self.candidate_nll)
        return all(bool(np.isfinite(each).all()) for each in values)


@dataclass(frozen=True)
class Interval:
    """A figure and where it lies with 95 % confidence, were other samples drawn of the same kind."""

    value: float
    low: float
    high: float


def compare(tokens: Tokens, baseline: Array, candidate: Floats) -> Comparison:
    """Compare logits or log-probabilities ``(length, vocab)`` of one sequence."""
    rows = [
        _compare_rows(baseline[start : start + _ROWS], candidate[start : start + _ROWS], tokens[start + 1 :])
        for start in range(0, len(tokens), _ROWS)
    ]
    return Comparison(*(np.concatenate(each) for each in zip(*rows, strict=True)))


def log_softmax(logits: Floats) -> Floats:
    """Return the logarithm of the probabilities, row by row."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    result: Floats = shifted - np.log(total).astype(np.float32)
    return result


def mean(samples: Sequence[Doubles]) -> Interval:
    """Return the mean over all positions; whole samples are drawn again, as their positions depend on each other."""
    sums, counts = np.array([each.sum() for each in samples]), np.array([len(each) for each in samples])
    drawn = np.random.default_rng(_SEED).integers(0, len(samples), (_RESAMPLES, len(samples)))
    low, high = np.percentile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), (2.5, 97.5))
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def share(right: Sequence[bool]) -> Interval:
    """Return how many are right, with Wilson's interval: one right answer of one is 0.21 to 1, not 1 to 1."""
    count, value = len(right), sum(right) / len(right)
    square = _NORMAL_95**2 / count
    middle = (value + square / 2) / (1 + square)
    width = math.sqrt(square * (value * (1 - value) + square / 4)) / (1 + square)
    # Rounding may put an end that is the value itself on its wrong side.
    return Interval(value, max(0.0, min(value, middle - width)), min(1.0, max(value, middle + width)))


def loss(baseline: Doubles, candidate: Doubles) -> Interval:
    """Return how much lower scores of 0 to 1 have become on the same questions.

    Two questions more, of which one was lost and one was won by half each, keep the interval open where all are equal
    (Agresti and Min, 2005): of n equal answers it is 1.96 / (n + 2) to each side, 0.019 for n = 100.
    """
    lost = baseline - candidate
    count = len(lost) + 2
    middle = float(lost.sum()) / count
    variance = (float((lost**2).sum()) + 1) / count - middle**2
    width = _NORMAL_95 * math.sqrt(variance / count)
    value = float(lost.mean())
    return Interval(value, min(value, middle - width), max(value, middle + width))


def perplexity_ratio(comparisons: Sequence[Comparison]) -> Interval:
    """Return the candidate's perplexity by the baseline's."""
    found = mean([each.candidate_nll - each.baseline_nll for each in comparisons])
    return Interval(*(float(np.exp(each)) for each in (found.value, found.low, found.high)))


def _compare_rows(
    baseline: Array, candidate: Floats, following: Tokens
) -> tuple[npt.NDArray[np.generic], ...]:
    one, other = log_softmax(np.asarray(baseline, np.float32)), log_softmax(candidate)
    kl = np.einsum("tv,tv->t", np.exp(one), one - other, dtype=np.float64)
    tops = one.argmax(axis=-1), other.argmax(axis=-1)
    next_tokens = following[: len(one)]
    places = (np.arange(len(next_tokens)), next_tokens)
    nlls = (-each[places].astype(np.float64) for each in (one, other))
    return kl, (tops[0] == tops[1]).astype(np.float64), _cosine(one, other), *nlls, *tops


def _cosine(one: Floats, other: Floats) -> Doubles:
    one, other = (
        each - each.mean(axis=-1, keepdims=True, dtype=np.float64).astype(np.float32) for each in (one, other)
    )
    product = np.einsum("tv,tv->t", one, other, dtype=np.float64)
    sizes = (np.einsum("tv,tv->t", each, each, dtype=np.float64) for each in (one, other))
    size = np.sqrt(next(sizes) * next(sizes))
    # A constant row has no direction: the same as another constant one, different from all else.
    same = np.where((one == other).all(axis=-1), 1.0, 0.0)
    result: Doubles = np.where(size > 0, product / np.where(size > 0, size, 1), same)
    return result
