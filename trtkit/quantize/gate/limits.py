"""How far a candidate may be from its baseline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds; None is no bound. The end of the interval counts that speaks against the candidate."""

    max_kl: float = 0.05
    """Largest KL divergence per token, nats."""
    min_top1: float = 0.90
    """Smallest share of positions with the same likeliest token, times what bfloat16 itself reaches."""
    max_ppl_ratio: float | None = None
    """Largest perplexity, times the baseline's."""
    min_accuracy: float | None = None
    """Smallest share of questions that are answered rightly."""
    max_task_loss: float | None = None
    """Largest loss of any score of a task of lm-eval."""
