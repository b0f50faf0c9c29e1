"""What a bench found, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtkit.bench.experiment import BenchResult, Run
from trtkit.bench.tally import ClassResult

_HEAD = (
    *("class", "requests", "ok", "TTFT p50", "p99", "TPOT p50", "p99", "ITL p99"),
    *("attainment", "goodput", "refused in"),
)


def summary(result: BenchResult) -> str:
    """Return a table for each run, then what all of them say."""
    parts = [part for run in result.runs for part in (_title(run), _table(run), _line(run), "")]
    return "\n".join([*parts, *_end(result)])


def _title(run: Run) -> str:
    rho = f"rho {run.rho:.2f}, " if run.rho is not None else ""
    return f"{rho}{run.rate_per_s:.3g} requests/s for {run.duration_s:g} s, seed {run.seed}"


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


def _line(run: Run) -> str:
    tally = run.tally
    facts = [
        f"goodput {tally.goodput_per_s:.2f}/s",
        _share("attainment", tally.attainment),
        _share("wasted tokens", tally.wasted),
        "" if tally.inversions is None else f"{tally.inversions} inversions",
        "" if tally.fairness is None else f"fairness {tally.fairness:.2f}",
        "" if tally.recovery_s is None else f"recovered in {tally.recovery_s:.1f} s",
        f"send lag p99 {tally.lag_p99_ms:.1f} ms",
        f"load average {run.load_average}",
    ]
    return ", ".join(fact for fact in facts if fact)


def _share(name: str, value: float | None) -> str:
    return "" if value is None else f"{name} {value:.1%}"


def _end(result: BenchResult) -> Iterator[str]:
    if result.capacity is not None:
        levels: Sequence[str] = [
            f"{each.rate_per_s:.2f} at {each.workers}" for each in result.capacity.levels
        ]
        proof = f" (requests/s at so many under way: {', '.join(levels)})" if levels else " (given)"
        yield f"capacity: {result.capacity.rate_per_s:.2f}/s{proof}"
    good = result.goodput_capacity_per_s
    yield f"goodput capacity: {'below all rates tried' if good is None else f'{good:.2f}/s or more of those tried'}"
    yield from (f"warning: {each}" for each in result.warnings)
    yield from (f"missed: {each}" for each in result.missed)
