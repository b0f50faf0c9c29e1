"""Who asks for what, when: arrivals drawn once from a seed, so that a run can be repeated."""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass


class Shape(str, enum.Enum):
    """How arrivals are spread."""

    POISSON = "poisson"
    GAMMA = "gamma"
    STEP = "step"
    MMPP = "mmpp"
    REPLAY = "replay"


@dataclass(frozen=True)
class Shot:
    """One request to come."""

    at_s: float
    class_name: str
    prompt: str
    max_tokens: int
    prompt_tokens: int = 0
    """Length of the prompt, where it is known."""
    tenant: str = ""
    whole_answer: bool = False
    """Ask the model not to stop before ``max_tokens``."""
    deadline_s: float | None = None
    """The client's own gRPC deadline, from sending."""
    cancel_after_tokens: int | None = None
    """The client leaves after so many tokens; 0 before the first."""
    read_pause_s: float = 0.0
    """A slow reader waits so long after each message."""


QUESTIONS = (
    "What is the capital of France?",
    "Name three colours of the rainbow.",
    "Why is the sky blue? Answer in two sentences.",
    "Write a haiku about the sea.",
    "Give one tip for learning to cook.",
    "What does a librarian do?",
    "Explain what a proxy server is to a child.",
    "List four animals that live in the forest.",
)

OUTPUT_TOKENS = (12, 24, 32, 48)
"""Short answers: the mix is to show the road, not to measure it."""


def poisson_mix(class_names: Sequence[str], *, requests: int, rate_per_s: float, seed: int) -> list[Shot]:
    """Return Poisson arrivals whose classes, questions and lengths are drawn uniformly, in order of time."""
    draw = random.Random(seed)  # noqa: S311 - a workload, not a secret
    shots, at_s = [], 0.0
    for _ in range(requests):
        at_s += draw.expovariate(rate_per_s)
        shots.append(Shot(at_s, draw.choice(class_names), draw.choice(QUESTIONS), draw.choice(OUTPUT_TOKENS)))
    return shots
