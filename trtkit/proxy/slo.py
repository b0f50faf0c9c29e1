"""Whether a request kept what its class was promised.

Counting rules: what was refused, timed out, failed or cut off is a miss of every promise. What the client cancelled
before a promise had run out is left out, and so is what could never be served (the client's mistake). A promise that a
request cannot show (time to first token without streaming, time per token of one token) does not apply to it, however
it ends. A class without promises counts nowhere.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Outcome


class Verdict(enum.Enum):
    """How one promise to one request came out."""

    MET = "met"
    MISSED = "missed"
    EXCLUDED = "excluded"


@dataclass(slots=True)
class Timeline:
    """When things happened to a request, measured at the proxy on one monotonic clock."""

    arrival_s: float
    streams: bool = True
    dispatched_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    most_tokens: float = math.inf
    """That it may answer with, where that is known."""

    @property
    def ttft_s(self) -> float | None:
        """Return arrival to first token; nothing without streaming, where the first token is not seen."""
        return None if self.first_token_s is None or not self.streams else self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Return (last - first) / (n - 1); nothing below two tokens."""
        if self.first_token_s is None or self.last_token_s is None or not self.streams or self.tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.tokens - 1)

    @property
    def total_s(self) -> float | None:
        """Return arrival to end."""
        return None if self.ended_s is None else self.ended_s - self.arrival_s


def judge(promise: ServiceClass, outcome: Outcome, timeline: Timeline) -> dict[str, Verdict]:
    """Return the verdict on each promise of the class: ``ttft``, ``tpot``, ``deadline``."""
    total_s = timeline.total_s
    streams, paces = timeline.streams, timeline.streams and timeline.most_tokens > 1
    promises = {
        "ttft": (promise.ttft_ms, streams, timeline.ttft_s, total_s),
        "tpot": (promise.tpot_ms, paces, timeline.tpot_s, None),
        "deadline": (promise.deadline_ms, True, total_s if outcome is Outcome.OK else None, total_s),
    }
    return {
        name: _judge_one(outcome, limit_ms / 1000, value_s, elapsed_s) if shows else Verdict.EXCLUDED
        for name, (limit_ms, shows, value_s, elapsed_s) in promises.items()
        if limit_ms is not None
    }


def _judge_one(outcome: Outcome, limit_s: float, value_s: float | None, elapsed_s: float | None) -> Verdict:
    if outcome is Outcome.INVALID:
        return Verdict.EXCLUDED
    if outcome is Outcome.CANCELLED:
        known_s = value_s if value_s is not None else elapsed_s
        return Verdict.MISSED if known_s is not None and known_s > limit_s else Verdict.EXCLUDED
    if outcome is not Outcome.OK:
        return Verdict.MISSED
    if value_s is None:
        return Verdict.EXCLUDED
    return Verdict.MET if value_s <= limit_s else Verdict.MISSED


def kept_all(verdicts: dict[str, Verdict]) -> Verdict:
    """Sum the verdicts up: one miss is a miss, and a request whose every promise was left out is left out."""
    if Verdict.MISSED in verdicts.values():
        return Verdict.MISSED
    return Verdict.MET if Verdict.MET in verdicts.values() else Verdict.EXCLUDED
