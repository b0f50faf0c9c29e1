"""What the client saw of one request, and what counts as a promise kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtkit.bench.account import Sample
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Outcome, Reason
from trtkit.proxy.slo import Timeline, Verdict, judge, kept_all

_BY_REASON = {each.value: each.outcome for each in Reason}
_BY_CODE = {
    "INVALID_ARGUMENT": Outcome.INVALID,
    "RESOURCE_EXHAUSTED": Outcome.REFUSED,
    "DEADLINE_EXCEEDED": Outcome.TIMED_OUT,
}


def outcome_of(reason: str, code: str) -> Outcome:
    """Return the kind of an end: the proxy's reason knows it, else the gRPC code."""
    return _BY_REASON.get(reason) or _BY_CODE.get(code, Outcome.FAILED)


@dataclass(frozen=True)
class Measured(Sample):
    """One request of a load. Times in seconds; those with ``at`` count from the run's start, others from sending."""

    kind: Outcome = Outcome.OK
    at_s: float = 0.0
    """When it was sent."""
    lag_s: float = 0.0
    """How much later than it should have been."""
    ended_s: float = 0.0
    queue_s: float | None = None
    """Wait before dispatch, as the proxy says; None without a proxy, and for a request that was not dispatched."""
    prompt_tokens: int = 0
    max_tokens: int = 0
    tenant: str = ""
    gaps_s: tuple[float, ...] = ()
    """Between messages."""
    slow_reader: bool = False
    proxied: bool = False
    """Whether a proxy of trtkit answered."""
    first_tokens: int = 1
    """In the first message: all came at the time of the first token, and took none after it."""

    @property
    def later_tokens(self) -> int:
        """Tokens that came after the first message."""
        return self.tokens - self.first_tokens

    @property
    def tpot_s(self) -> float | None:
        """From the first to the last message, per token between; None of an answer in one message."""
        if self.ttft_s is None or self.last_s is None or self.later_tokens < 1:
            return None
        return (self.last_s - self.ttft_s) / self.later_tokens

    @property
    def dispatched_at_s(self) -> float | None:
        """When the proxy sent it to the engine."""
        return None if self.queue_s is None else self.at_s + self.queue_s

    @property
    def engine_tokens(self) -> int:
        """Tokens that were surely worked on: the prompt of what reached the engine, and what came back."""
        refused = self.kind in {Outcome.REFUSED, Outcome.INVALID}
        unseen = self.queue_s is None and (self.proxied or refused or self.outcome.startswith("UNAVAILABLE"))
        return 0 if self.tokens == 0 and unseen else self.prompt_tokens + self.tokens


def verdict(sample: Measured, spec: ServiceClass) -> Verdict:
    """Judge a request by the proxy's own rules; a slow reader's answer is left out, since it measures the reader."""
    return kept_all(verdicts(sample, spec))


def verdicts(sample: Measured, spec: ServiceClass) -> dict[str, Verdict]:
    """Judge each promise to a request, by name; none to a slow reader."""
    if sample.slow_reader and sample.tokens:
        return {}
    first, last = sample.ttft_s, sample.last_s
    tokens = 1 + sample.later_tokens if sample.tokens else 0
    timeline = Timeline(
        0.0,
        first_token_s=first,
        last_token_s=last,
        ended_s=sample.ended_s,
        tokens=tokens,
        most_tokens=sample.max_tokens or math.inf,
    )
    return judge(spec, sample.kind, timeline)
