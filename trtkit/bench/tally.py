"""From what the client saw to figures: per class, per prompt length, and of the run as a whole."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtkit.bench.account import percentile_ms
from trtkit.bench.measured import Measured, verdict, verdicts
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Outcome
from trtkit.proxy.slo import Verdict

_CLOCK_S = 0.05
"""Client and proxy see a request at times that differ by less; who waited no longer was not overtaken."""
_RECOVERY_WINDOW_S = 5.0
_LONGEST_REASON = 100


@dataclass(frozen=True)
class ClassResult:
    """What one class got; None where nothing was measured or promised."""

    class_name: str
    requests: int
    ok: int
    kept: int
    missed: int
    excluded: int
    """Left out of attainment: cancelled by the client in time, never servable, read slowly."""
    attainment: float | None
    goodput_per_s: float | None
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p99_ms: float | None
    refusal_p99_ms: float | None
    """From sending to being turned away, whether at once or after its time in the queue."""
    reasons: dict[str, int]
    """How its requests ended."""
    constraints: dict[str, int]
    """What bound those that were not answered, as the proxy says; empty without one."""
    late: dict[str, int]
    """Promises (``ttft``, ``tpot``, ``deadline``) that answered requests missed; one may miss several."""


@dataclass(frozen=True)
class BucketResult:
    """Attainment of one class at one range of prompt lengths."""

    class_name: str
    up_to_tokens: int | None
    requests: int
    attainment: float | None


@dataclass(frozen=True)
class Tally:
    """All figures of one run."""

    requests: int
    attainment: float | None
    goodput_per_s: float
    """Requests per second of the arrivals' time that kept every promise of their class."""
    wasted: float | None
    """Share of the tokens that were worked on for requests that missed or were given up."""
    inversions: int | None
    """Requests that waited while the proxy sent a less urgent one that it got later or had; None without a proxy."""
    refusal_p99_ms: float | None
    fairness: float | None
    """Jain's index over tenants of the share of their tokens that was served; None with fewer than two."""
    recovered: bool | None
    """Whether the objective was kept again after a step; None without a step."""
    recovery_s: float | None
    """After a step, until the next five seconds of arrivals keep the objective; None without a step, or if never."""
    overrun_s: float
    """From the end of the arrivals to the last answer."""
    lag_p99_ms: float
    """How much later than planned the client sent."""
    classes: tuple[ClassResult, ...]
    buckets: tuple[BucketResult, ...]


class Tallier:
    """Counts runs of one contract."""

    def __init__(self, classes: Mapping[str, ServiceClass], buckets: Sequence[int], objective: float) -> None:
        self._classes = classes
        self._buckets = buckets
        self._objective = objective

    def tally(self, samples: Sequence[Measured], duration_s: float, step_end_s: float | None = None) -> Tally:
        """Sum up samples whose arrivals took so long."""
        judged = [(each, verdict(each, self._classes[each.class_name])) for each in samples]
        rows = [
            self._class(name, [pair for pair in judged if pair[0].class_name == name], duration_s)
            for name in self._classes
        ]
        kept = sum(row.kept for row in rows)
        counted = kept + sum(row.missed for row in rows)
        ends_s = [each.at_s + each.ended_s for each in samples]
        back_s = None if step_end_s is None else recovery_s(judged, step_end_s, self._objective)
        return Tally(
            requests=len(samples),
            attainment=kept / counted if counted else None,
            goodput_per_s=kept / duration_s,
            wasted=_wasted(judged),
            inversions=count_inversions(samples, {n: c.priority for n, c in self._classes.items()}),
            refusal_p99_ms=_refusal_p99_ms(samples),
            fairness=jain(_served_shares(samples)),
            recovered=None if step_end_s is None else back_s is not None,
            recovery_s=back_s,
            overrun_s=max(0.0, max(ends_s, default=0.0) - duration_s),
            lag_p99_ms=percentile_ms([each.lag_s for each in samples], 99) or 0.0,
            classes=tuple(rows),
            buckets=tuple(row for name in self._classes for row in self._by_length(name, judged)),
        )

    def _class(self, name: str, judged: Sequence[tuple[Measured, Verdict]], duration_s: float) -> ClassResult:
        mine, verdicts = [sample for sample, _ in judged], Counter(found for _, found in judged)
        kept, missed = verdicts[Verdict.MET], verdicts[Verdict.MISSED]
        ttft = [each.ttft_s for each in mine if each.ttft_s is not None]
        tpot = [each.tpot_s for each in mine if each.tpot_s is not None]
        gaps = [gap for each in mine for gap in each.gaps_s]
        promised = self._classes[name].has_slo and kept + missed > 0
        return ClassResult(
            class_name=name,
            requests=len(mine),
            ok=sum(each.kind is Outcome.OK for each in mine),
            kept=kept,
            missed=missed,
            excluded=verdicts[Verdict.EXCLUDED] if self._classes[name].has_slo else 0,
            attainment=kept / (kept + missed) if promised else None,
            goodput_per_s=kept / duration_s if promised else None,
            ttft_p50_ms=percentile_ms(ttft, 50),
            ttft_p99_ms=percentile_ms(ttft, 99),
            tpot_p50_ms=percentile_ms(tpot, 50),
            tpot_p99_ms=percentile_ms(tpot, 99),
            itl_p50_ms=percentile_ms(gaps, 50),
            itl_p99_ms=percentile_ms(gaps, 99),
            refusal_p99_ms=_refusal_p99_ms(mine),
            reasons=dict(Counter(each.outcome[:_LONGEST_REASON] for each in mine)),
            constraints=dict(
                Counter(each.constraint for each in mine if each.constraint and each.kind is not Outcome.OK)
            ),
            late=self._late(name, mine),
        )

    def _late(self, name: str, mine: Sequence[Measured]) -> dict[str, int]:
        judged = (verdicts(each, self._classes[name]) for each in mine if each.kind is Outcome.OK)
        return dict(
            Counter(promise for each in judged for promise, found in each.items() if found is Verdict.MISSED)
        )

    def _by_length(self, name: str, judged: Sequence[tuple[Measured, Verdict]]) -> list[BucketResult]:
        if not self._classes[name].has_slo:
            return []
        found: dict[int, Counter[Verdict]] = defaultdict(Counter)
        for sample, each in judged:
            if sample.class_name == name:
                found[bisect_left(self._buckets, sample.prompt_tokens)][each] += 1
        edges = [*self._buckets, None]
        return [
            BucketResult(name, edges[index], count.total(), _share(count))
            for index, count in sorted(found.items())
        ]


def _share(count: Counter[Verdict]) -> float | None:
    counted = count[Verdict.MET] + count[Verdict.MISSED]
    return count[Verdict.MET] / counted if counted else None


def _wasted(judged: Sequence[tuple[Measured, Verdict]]) -> float | None:
    """A class without promises wastes what it does not complete."""
    worked = sum(sample.engine_tokens for sample, _ in judged)
    useful = sum(
        sample.engine_tokens
        for sample, found in judged
        if found is Verdict.MET or (found is Verdict.EXCLUDED and sample.kind is Outcome.OK)
    )
    return 1 - useful / worked if worked else None


def _refusal_p99_ms(samples: Sequence[Measured]) -> float | None:
    return percentile_ms([each.ended_s for each in samples if _turned_away(each)], 99)


def _turned_away(sample: Measured) -> bool:
    """Return whether it was refused, or ended in the proxy's queue; what timed out at an engine was not."""
    queued = sample.proxied and sample.queue_s is None
    return sample.kind is Outcome.REFUSED or (sample.kind is Outcome.TIMED_OUT and queued)


def _served_shares(samples: Sequence[Measured]) -> list[float]:
    asked: dict[str, int] = defaultdict(int)
    served: dict[str, int] = defaultdict(int)
    for each in samples:
        asked[each.tenant] += each.prompt_tokens + each.max_tokens
        served[each.tenant] += each.prompt_tokens + each.tokens if each.kind is Outcome.OK else 0
    return [served[tenant] / asked[tenant] for tenant in asked if asked[tenant]]


def jain(shares: Sequence[float]) -> float | None:
    """Return Jain's index, (sum x)^2 / (n sum x^2): 1 when all got the same, 1/n when one got all."""
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if len(shares) > 1 and squares else None


def recovery_s(
    judged: Sequence[tuple[Measured, Verdict]], step_end_s: float, objective: float
) -> float | None:
    """Return when, after the step's end, arrivals begin to keep the objective again; None if they never do."""
    counted = sorted(
        (sample.at_s, found is Verdict.MET) for sample, found in judged if found is not Verdict.EXCLUDED
    )
    after = [(at_s, good) for at_s, good in counted if at_s >= step_end_s]
    for start_s, _ in after:
        window = [good for at_s, good in after if start_s <= at_s < start_s + _RECOVERY_WINDOW_S]
        if after[-1][0] >= start_s + _RECOVERY_WINDOW_S and sum(window) >= objective * len(window):
            return start_s - step_end_s
    return None


def count_inversions(samples: Sequence[Measured], priorities: Mapping[str, int]) -> int | None:
    """Count requests that waited at the proxy while it dispatched a less urgent one."""
    if not any(each.proxied for each in samples):
        return None
    dispatched: dict[int, list[float]] = defaultdict(list)
    for each in samples:
        if each.dispatched_at_s is not None:
            dispatched[priorities[each.class_name]].append(each.dispatched_at_s)
    for times in dispatched.values():
        times.sort()

    def overtaken(each: Measured) -> bool:
        start_s = each.at_s + _CLOCK_S
        end_s = (each.dispatched_at_s or each.at_s + each.ended_s) - _CLOCK_S
        return any(
            bisect_left(times, start_s) < bisect_left(times, end_s)
            for priority, times in dispatched.items()
            if priority > priorities[each.class_name]
        )

    return sum(overtaken(each) for each in samples if each.kind is not Outcome.CANCELLED)
