"""What a bench found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.bench.experiment import BenchResult, RateResult, Run
from trtkit.bench.render import ends
from trtkit.bench.tally import BucketResult, ClassResult, Tally

_HEAD = (
    *("class", "requests", "ok", "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99"),
    *("attainment", "goodput", "refused in"),
)


def summary(result: BenchResult) -> str:
    """Return a table for each run, then what all of them say."""
    parts = [part for run in result.runs for part in (_title(run), _table(run), *_lines(run), "")]
    return "\n".join([*parts, *_end(result)])


def _title(run: Run) -> str:
    rho = f"rho {run.rho:.2f}, " if run.rho is not None else ""
    sent = f" ({run.sent_per_s:.3g}/s sent)"
    discarded = ", DISCARDED" if run.discarded else ""
    return f"{rho}{run.rate_per_s:.3g} requests/s{sent} for {run.duration_s:g} s, seed {run.seed}{discarded}"


def _table(run: Run) -> str:
    lines = [_HEAD, *(_cells(row) for row in run.tally.classes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(
        line[0].ljust(widths[0])
        + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    )


def _cells(row: ClassResult) -> tuple[str, ...]:
    times = (
        *(row.ttft_p50_ms, row.ttft_p99_ms, row.tpot_p50_ms, row.tpot_p99_ms, row.itl_p99_ms),
        row.refusal_p99_ms,
    )
    *latencies, refusal = ("-" if value is None else f"{value:.0f} ms" for value in times)
    return (
        *(row.class_name, str(row.requests), str(row.ok)),
        *latencies,
        "-" if row.attainment is None else f"{row.attainment:.1%}",
        "-" if row.goodput_per_s is None else f"{row.goodput_per_s:.2f}/s",
        refusal,
    )


def _lines(run: Run) -> Iterator[str]:
    tally = run.tally
    facts = [
        f"goodput {tally.goodput_per_s:.2f}/s",
        _share("attainment", tally.attainment),
        _share("wasted tokens", tally.wasted),
        "" if tally.inversions is None else f"{tally.inversions} inversions",
        "" if tally.fairness is None else f"fairness {tally.fairness:.2f}",
        _recovery(tally),
        f"last answer {tally.overrun_s:.1f} s after the last arrival",
        f"send lag p99 {tally.lag_p99_ms:.1f} ms",
        f"load average {run.load_average}",
    ]
    yield ", ".join(fact for fact in facts if fact)
    yield from ends(tally.classes)
    for name in dict.fromkeys(row.class_name for row in tally.buckets):
        yield f"{name} by prompt length: " + ", ".join(
            _bucket(row) for row in tally.buckets if row.class_name == name
        )


def _recovery(tally: Tally) -> str:
    if tally.recovered is None:
        return ""
    return "not recovered" if tally.recovery_s is None else f"recovered in {tally.recovery_s:.1f} s"


def _bucket(row: BucketResult) -> str:
    share = "-" if row.attainment is None else f"{row.attainment:.1%}"
    return f"{'longer' if row.up_to_tokens is None else f'to {row.up_to_tokens}'} {share} of {row.requests}"


def _share(name: str, value: float | None) -> str:
    return "" if value is None else f"{name} {value:.1%}"


def _end(result: BenchResult) -> Iterator[str]:
    for name, what in result.traffic.items():
        yield f"{name}: {what}" + (f", lengths times {result.scale:g}" if result.scale != 1 else "")
    if result.capacity is not None:
        levels: Sequence[str] = [
            f"{each.rate_per_s:.2f} at {each.workers}" for each in result.capacity.levels
        ]
        proof = f" (requests/s at so many under way: {', '.join(levels)})" if levels else " (given)"
        yield f"capacity: {result.capacity.rate_per_s:.2f}/s{proof}"
    yield from (_rate(each) for each in result.rates if each.seeds > 1)
    yield f"goodput capacity: {_goodput_capacity(result)}"
    yield from (f"warning: {each}" for each in result.warnings)
    yield from (f"missed: {each}" for each in result.missed)


def _rate(rate: RateResult) -> str:
    shares = [
        f"{name} {each.text('.1%')}" for name, each in rate.attainment_by_seed.items() if each is not None
    ]
    return f"at {rate.rate_per_s:.3g}/s: " + "; ".join([f"goodput {rate.goodput_per_s.text('.2f')}", *shares])


def _goodput_capacity(result: BenchResult) -> str:
    good, seeds = result.goodput_capacity_per_s, result.goodput_capacity_by_seed
    if not result.binding:
        return "-"
    text = "below all rates tried" if good is None else f"{good:.2f}/s sent or more"
    each = ", ".join("below" if seed is None else f"{seed:.2f}" for seed in seeds)
    return text + (f" (by seed {each})" if len(seeds) > 1 else "")
