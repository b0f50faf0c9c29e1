"""What the policy and each of its elements is worth in the model, and how fast the model runs.

Prints tables, writes JSON and a plot, and exits 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from chart import Bar, Panel, draw

from trtkit.bench.interval import interval_of
from trtkit.bench.sim.engine import EngineModel
from trtkit.bench.sim.study import CLASSES, FULL, Cell, Policy, bounds, compare
from trtkit.contract.scheduling import OnInfeasible, Order

REQUESTS_PER_S = 20_000
SPEED_RUNS = ((Cell(8.0), 20), (Cell(8.0, engines=1000, duration_s=12.5), 5))
"""What is timed, how often: 1600 requests at one engine, 100,000 at a thousand."""
SHEDDABLE = {**CLASSES, "batch": CLASSES["batch"].model_copy(update={"sheddable": True})}
DIRECT = Policy("pass-through", proxied=False)
ABLATIONS = (
    FULL,
    DIRECT,
    FULL.with_classes("without bands", priority=1),
    FULL.with_rules("without hold-back", holdback=(1.0,)),
    FULL.with_classes("without refusal", on_infeasible=OnInfeasible.QUEUE),
    FULL.with_rules("without prefill zone", prefill_ms=3_600_000.0),
    Policy("without KV budget", kv_fraction=1.0),
    FULL.with_rules("without skip-ahead", skip_ahead=0),
    FULL.with_rules("without minimum share", minimum_share=0.0),
    FULL.with_rules("without feedback", feedback=False),
    FULL.with_rules("by deadline only", order=Order.DEADLINE),
    FULL.with_rules("shortest first only", order=Order.SHORTEST),
    FULL.with_rules("without refusal margin", refusal_margin=1.0),
    FULL.with_rules("prefill 200 ms", prefill_ms=200.0),
    FULL.with_rules("hold-back 1 / .9 / .3", holdback=(1.0, 0.9, 0.3)),
    Policy("batch may be stopped", classes=SHEDDABLE),
)
SPLIT = replace(FULL, name="3 + 1 for > 8 k", long_engines=1)
DECODE_BOUND = EngineModel(sequence_s=1.5e-3)


@dataclass(frozen=True)
class Table:
    """One kind of cell over several loads."""

    title: str
    cell: Cell
    rates: Sequence[int]
    policies: Sequence[Policy] = (FULL, DIRECT)
    goals: Mapping[int, float] = field(default_factory=dict)
    stretch: Mapping[int, float] = field(default_factory=dict)


TABLES = (
    Table(
        "one engine, gamma arrivals cv 2.5",
        Cell(0.0),
        (4, 6, 8, 12),
        ABLATIONS,
        goals={4: 0.85, 6: 0.78, 8: 0.76, 12: 0.71},
        stretch={4: 0.87, 6: 0.81, 8: 0.79, 12: 0.75},
    ),
    Table(
        "KV-bound (60 k tokens), cv 2.5",
        Cell(0.0, engine=EngineModel(kv_tokens=60_000)),
        (4, 6, 8),
        ABLATIONS,
        goals={4: 0.92, 6: 0.87, 8: 0.83},
        stretch={4: 0.93, 6: 0.88, 8: 0.85},
    ),
    Table("Poisson arrivals", Cell(0.0, cv=1.0), (4, 6, 8, 12)),
    Table("decode-bound (1.5 ms a sequence and step), cv 2.5", Cell(0.0, engine=DECODE_BOUND), (4, 6, 8)),
    Table("four engines, load per engine, cv 2.5", Cell(0.0, engines=4), (4, 6, 8), (FULL, DIRECT, SPLIT)),
)


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    cells, missed = [], []
    for table in TABLES:
        found = [_measure(table, rate, range(options.seeds)) for rate in table.rates]
        _show(table, found)
        cells += found
        missed += [
            f"{table.title}, {cell['rate_per_s']}/s: {cell['full'][0]:.3f}, goal {cell['goal']}"
            for cell in found
            if cell["goal"] and cell["full"][0] < cell["goal"]
        ]
    speeds = {cell.engines: _speed(cell, runs) for cell, runs in SPEED_RUNS}
    told = [f"{n} engine(s): {speed:.0f} simulated requests per CPU second" for n, speed in speeds.items()]
    missed += [line for line, speed in zip(told, speeds.values(), strict=True) if speed < REQUESTS_PER_S]
    _write(options.out, {"seeds": options.seeds, "requests_per_s": speeds, "cells": cells})
    print(f"\nspeed (goal {REQUESTS_PER_S}):", "; ".join(told))
    for line in missed:
        print("missed:", line)
    judged = [
        f"{c['full'][0]:.3f} [{_text(c['full'][1])} {_text(c['full'][2])}] / {c['goal']}"
        for c in cells
        if c["goal"]
    ]
    print("attainment [95 % over seeds] / goal, by the mean:", "  ".join(judged))
    return 1 if missed else 0


def _measure(table: Table, rate: int, seeds: Sequence[int]) -> dict:
    cell = replace(table.cell, rate_per_s=float(rate))
    scores = compare(table.policies, cell, seeds)
    full = [each.attainment for each in scores["full"]]
    # The bound is for one engine that can do anything at once; of several it says nothing.
    ceiling = _over(bounds(cell, seeds))[0] if cell.engines == 1 else None
    return {
        "table": table.title,
        "rate_per_s": rate,
        "goal": table.goals.get(rate),
        "stretch": table.stretch.get(rate),
        "upper_bound": ceiling,
        "full": _over(full),
        "policies": {
            name: {
                "attainment": _over([each.attainment for each in runs]),
                "difference": _over([a.attainment - b for a, b in zip(runs, full, strict=True)]),
                "by_class": [_over([each.by_class[n] for each in runs])[0] for n in range(3)],
                "wasted": _over([each.wasted for each in runs])[0],
                "runs": [asdict(each) for each in runs],
            }
            for name, runs in scores.items()
        },
    }


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _over(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Return the mean over seeds, and its interval."""
    found = interval_of(values)
    return found.mean, found.low, found.high


def _spread(_: float, low: float | None, high: float | None) -> str:
    return f" [{low:+.3f} {high:+.3f}]" if low is not None and high is not None else " [one seed]"


def _show(table: Table, cells: list[dict]) -> None:
    print(f"\n{table.title}: attainment, paired difference to the full policy with its 95 % interval")
    heads = "".join(f"{cell['rate_per_s']:>18} req/s" for cell in cells)
    print(f"{'':24}{heads}   at the last: wasted, code/chat/batch")
    for policy in table.policies:
        line, found = f"{policy.name:24}", {}
        for cell in cells:
            found = cell["policies"][policy.name]
            mean, spread = found["attainment"][0], " " * 16
            if policy is not FULL:
                spread = _spread(*found["difference"])
            line += f"{f'{mean:.3f}{spread}':>24}"
        print(f"{line}   {found['wasted']:.0%} {'/'.join(f'{share:.2f}' for share in found['by_class'])}")
    for name in ("goal", "stretch", "upper_bound"):
        if cells[0][name] is not None:
            print(
                f"{name.replace('_', ' '):24}" + "".join(f"{f'{c[name]:.3f}' + ' ' * 16:>24}" for c in cells)
            )


def _speed(cell: Cell, runs: int) -> float:
    """Return simulated requests per CPU second, the median of some runs; drawing and judging them counts."""
    rates = []
    for _ in range(runs):
        started_s = time.process_time()
        requests = FULL.run(cell, 1).requests
        rates.append(requests / (time.process_time() - started_s))
    return statistics.median(rates)


def _write(folder: Path, report: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sim.json").write_text(json.dumps(report, indent=1))
    panels = [
        Panel(f"{cell['table']}, {cell['rate_per_s']}/s", [_bar(cell, name) for name in _CHARTED])
        for cell in report["cells"]
        if cell["goal"]
    ]
    (folder / "sim.svg").write_text(draw("Share of requests that kept every promise", panels))


_CHARTED = ("pass-through", "without bands", "without hold-back", "without refusal", "full")


def _bar(cell: dict, name: str) -> Bar:
    return Bar(name, cell["policies"][name]["attainment"][0], cell["goal"] if name == "full" else None)


if __name__ == "__main__":
    sys.exit(main())
