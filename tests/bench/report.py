"""Results as a table, as JSON and as a chart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from account import GB, Result, Sample, Verdict
from chart import Bar, Better, Panel, draw
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

_HEAD = ("model", "", "CPU s", "wall s", "of cp", "GB/s", "memory", "read", "written")


def save(results: Sequence[Result], verdicts: Sequence[Verdict], out: Path) -> None:
    """Write ``convert.json`` with every run, and ``convert.svg``."""
    document = {
        "schema": 1,
        "results": [asdict(result) for result in results],
        "verdicts": [asdict(verdict) for verdict in verdicts],
    }
    (out / "convert.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    (out / "convert.svg").write_text(_chart(results), encoding="utf-8")


def show(results: Sequence[Result], verdicts: Sequence[Verdict], screen: Console) -> None:
    """Print a table of the best runs, and then each figure next to its goal."""
    table = Table(
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        title="Best runs (GB/s: source per CPU second; memory in MB, files in GB)",
    )
    for number, head in enumerate(_HEAD):
        table.add_column(head, justify="left" if number < 2 else "right", no_wrap=True)
    for of_size in _by_size(results):
        table.add_row(*_copy_row(of_size[0]))
        for result in of_size:
            table.add_row("", *_row(result))
        table.add_section()
    screen.print(table)
    for subject, group in groupby(verdicts, key=lambda verdict: verdict.subject):
        screen.print(f"{subject}: " + ", ".join(map(_text, group)), soft_wrap=True)
    missed = sum(not verdict.met for verdict in verdicts)
    screen.print(
        f"[red]{missed} of {len(verdicts)} goals missed" if missed else f"all {len(verdicts)} goals met"
    )


def _by_size(results: Sequence[Result]) -> Iterator[list[Result]]:
    for _, group in groupby(results, key=lambda result: result.source_bytes):
        yield list(group)


def _copy_row(result: Result) -> tuple[str, ...]:
    size = f"{result.source_bytes / GB:.2f}"
    return result.size, "cp", *_times(result.copies), "100%", f"{result.cp_gb_per_s:.2f}", "", size, size


def _row(result: Result) -> tuple[str, ...]:
    best = min(result.samples, key=lambda sample: sample.cpu_s)
    return (
        result.case.name,
        *_times(result.samples),
        f"{result.of_cp:.0%}",
        f"{result.gb_per_s:.2f}",
        f"{result.rss_mb:.1f}",
        f"{best.read_bytes / GB:.2f}",
        f"{best.written_bytes / GB:.2f}",
    )


def _times(samples: Sequence[Sample]) -> tuple[str, str]:
    return f"{min(each.cpu_s for each in samples):.2f}", f"{min(each.wall_s for each in samples):.2f}"


def _text(verdict: Verdict) -> str:
    goal = "" if verdict.figure == verdict.goal else f" ({verdict.goal})"
    text = f"{verdict.what} {verdict.figure}{goal}"
    return text if verdict.met else f"[red]{text} MISSED[/red]"


def _chart(results: Sequence[Result]) -> str:
    speeds: list[Bar] = []
    for of_size in _by_size(results):
        speeds.append(Bar(f"{of_size[0].size} cp", of_size[0].cp_gb_per_s))
        speeds += [Bar(each.name, each.gb_per_s, each.least_gb_per_s, Better.MORE) for each in of_size]
    memory = [Bar(each.name, each.rss_mb, each.case.most_rss_mb, Better.LESS) for each in results]
    panels = (Panel("GB of the source per CPU second", speeds), Panel("MB of memory", memory))
    return draw("Conversion to TensorRT-LLM checkpoints", panels)
