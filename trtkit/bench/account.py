"""From samples to what was kept: latency percentiles, attainment and goodput per class.

An errored, refused or cut-off request is a miss. A class that was promised nothing has no attainment.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trtkit.contract.service import ServiceClass


@dataclass(frozen=True)
class Sample:
    """One finished request, measured by the client."""

    class_name: str
    outcome: str
    """``ok``, or the reason of the failure."""
    ttft_s: float | None
    last_s: float | None
    """From send to last token."""
    tokens: int
    text: str = ""
    constraint: str = ""
    """What bound it, as the proxy's record says; empty where nobody said."""

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (n - 1); None below two tokens."""
        if self.ttft_s is None or self.last_s is None or self.tokens < 2:
            return None
        return (self.last_s - self.ttft_s) / (self.tokens - 1)


@dataclass(frozen=True)
class ClassAccount:
    """What one class got. Times in milliseconds; None where nothing was measured."""

    class_name: str
    requests: int
    ok: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None
    attainment: float | None
    """Share of the requests that kept every promise; None for a class without promises."""
    goodput_per_s: float | None
    reasons: dict[str, int] = field(default_factory=dict)
    """How its requests ended."""
    constraints: dict[str, int] = field(default_factory=dict)
    """What bound those that were refused; of what was stopped at an engine nobody says."""
    late: dict[str, int] = field(default_factory=dict)
    """Promises (``ttft``, ``tpot``, ``deadline``) that answered requests missed; one may miss several."""


def kept(sample: Sample, spec: ServiceClass) -> bool:
    """Return whether the request kept every promise of its class."""
    if sample.outcome != "ok" or sample.ttft_s is None or sample.last_s is None:
        return False
    return not any(True for _ in _late(sample, spec))


def _late(sample: Sample, spec: ServiceClass) -> Iterator[str]:
    """Yield the promises that an answer came too late for."""
    if spec.ttft_ms is not None and sample.ttft_s is not None and sample.ttft_s * 1e3 > spec.ttft_ms:
        yield "ttft"
    if spec.tpot_ms is not None and (tpot_s := sample.tpot_s) is not None and tpot_s * 1e3 > spec.tpot_ms:
        yield "tpot"
    if spec.deadline_ms is not None and sample.last_s is not None and sample.last_s * 1e3 > spec.deadline_ms:
        yield "deadline"


def binds(spec: ServiceClass) -> bool:
    """Return whether a class's promises are the objective's: it was promised something and may not be shed."""
    return spec.has_slo and not spec.sheddable


def account(
    samples: Sequence[Sample], classes: Mapping[str, ServiceClass], duration_s: float
) -> list[ClassAccount]:
    """Return one row per class, in the contract's order."""
    return [
        _row(name, spec, [sample for sample in samples if sample.class_name == name], duration_s)
        for name, spec in classes.items()
    ]


def _row(name: str, spec: ServiceClass, samples: list[Sample], duration_s: float) -> ClassAccount:
    good = sum(kept(sample, spec) for sample in samples)
    promised = spec.has_slo and bool(samples)
    ttft = [sample.ttft_s for sample in samples if sample.ttft_s is not None]
    tpot = [tpot_s for sample in samples if (tpot_s := sample.tpot_s) is not None]
    answered = [sample for sample in samples if sample.outcome == "ok"]
    return ClassAccount(
        class_name=name,
        requests=len(samples),
        ok=len(answered),
        ttft_p50_ms=percentile_ms(ttft, 50),
        ttft_p99_ms=percentile_ms(ttft, 99),
        tpot_p50_ms=percentile_ms(tpot, 50),
        tpot_p99_ms=percentile_ms(tpot, 99),
        attainment=good / len(samples) if promised else None,
        goodput_per_s=good / duration_s if promised else None,
        reasons=dict(Counter(sample.outcome for sample in samples)),
        constraints=dict(
            Counter(each.constraint for each in samples if each.outcome != "ok" and each.constraint)
        ),
        late=dict(Counter(name for sample in answered for name in _late(sample, spec))),
    )


def percentile_ms(values_s: Iterable[float], percent: int) -> float | None:
    """Return a percentile in milliseconds, interpolated between samples; None of no samples."""
    values = sorted(values_s)
    if not values:
        return None
    if len(values) == 1:
        return values[0] * 1e3
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1] * 1e3
