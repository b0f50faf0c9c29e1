"""The account as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from trtkit.bench.account import ClassAccount

if TYPE_CHECKING:
    from trtkit.bench.tally import ClassResult

_HEAD = ("class", "requests", "ok", "TTFT p50", "p99", "TPOT p50", "p99", "attainment", "goodput")


def render(rows: Sequence[ClassAccount]) -> str:
    """Return one aligned line per class; a dash stands for `nothing measured` or `nothing promised`."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    return "\n".join(
        line[0].ljust(widths[0])
        + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in cells
    )


def ends(rows: Sequence[ClassAccount | ClassResult]) -> Iterator[str]:
    """Yield why requests were not answered, and what those that were came too late for; nothing of who had all."""
    for row in rows:
        parts = [_counts({name: count for name, count in row.reasons.items() if name != "ok"})]
        if row.constraints:
            parts.append(f"bound by {_counts(row.constraints)}")
        if row.late:
            parts.append(f"answered and late: {_counts(row.late)}")
        if any(parts):
            yield f"{row.class_name}: {'; '.join(filter(None, parts))}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _cells(row: ClassAccount) -> tuple[str, ...]:
    return (
        row.class_name,
        str(row.requests),
        str(row.ok),
        *(_ms(value) for value in (row.ttft_p50_ms, row.ttft_p99_ms, row.tpot_p50_ms, row.tpot_p99_ms)),
        "-" if row.attainment is None else f"{row.attainment:.0%}",
        "-" if row.goodput_per_s is None else f"{row.goodput_per_s:.2f}/s",
    )


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
