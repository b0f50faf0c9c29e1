"""What one decision costs with ten thousand requests queued, in CPU time; exits 1 above the goal.

A pass is the same 60,000 events each time, down to every decision, which is checked. So a cost belongs to an event: it
is the median over the passes of that very event, and percentiles are taken over events. What the machine adds to some
event of each pass goes, what the code does at that event stays. Beside it stands the raw figure, the median over passes
of each pass's own percentile, with all that the machine adds.

An event that decides on several requests counts once as an event, which is how long the proxy's loop stands still, and
its cost in equal parts for its decisions.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import statistics
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from chart import Bar, Better, Panel, draw

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import Zones
from trtkit.proxy.admission import Admission, Decision, Dispatch, Request, TimeLimits, terms_of

QUEUED, TENANTS, EVENTS, GOAL_US = 10_000, 200, 60_000, 50.0
LEAST_PASSES, JUDGED = 5, "all decisions"
CLASSES = {
    "code": ServiceClass(priority=1, ttft_ms=600_000.0, tpot_ms=60.0),
    "chat": ServiceClass(priority=2, ttft_ms=900_000.0, tpot_ms=60.0),
    "batch": ServiceClass(priority=3, sheddable=True),
}


@dataclass
class Pass:
    """The events of a pass, one after the other."""

    kinds: list[str] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)
    """How many requests an event decided on, or 1."""
    costs_us: list[float] = field(default_factory=list)
    story: str = ""
    """A digest of every event and all that was decided at it."""


class Load:
    """Keeps the queue full: for each request that leaves it, another one comes."""

    def __init__(self, backends: int) -> None:
        self.rules = AdmissionRules(max_queue=1_000_000)
        self.admission = Admission(self.rules, Zones(3072, 285_000, 256), 32, backends=backends)
        self.terms = terms_of(CLASSES, self.rules.holdback)
        self.limits = {name: TimeLimits.of(promise) for name, promise in CLASSES.items()}
        self.draw = random.Random(7)
        self.now_s, self.serial = 0.0, 0
        self.waiting: OrderedDict[str, None] = OrderedDict()
        self.prefilling: list[str] = []
        self.decoding: list[str] = []
        self.seen = Pass()
        self._story = hashlib.sha256()

    def step(self) -> None:
        """Let one thing happen."""
        self.now_s += 0.001
        draw = self.draw.random()
        if len(self.waiting) < QUEUED:
            self.offer()
        elif draw < 0.1:
            key = self.draw.choice(list(islice(self.waiting, 100)))
            self.timed("cancel", lambda: self.admission.cancel(key, self.now_s))
            self.waiting.pop(key, None)
        elif draw < 0.2 or not (self.prefilling or self.decoding):
            self.timed("expire", lambda: self.admission.expire(self.now_s))
        elif self.prefilling and draw < 0.6:
            key = self.prefilling.pop(0)
            self.decoding.append(key)
            self.timed("first_token", lambda: self.admission.first_token(key, self.now_s))
        elif self.decoding:
            key = self.decoding.pop(0)
            self.timed("finish", lambda: self.admission.finish(key, self.now_s, tokens=50))

    def offer(self) -> None:
        """Let one request arrive."""
        name = self.draw.choices(list(CLASSES), (0.35, 0.5, 0.15))[0]
        self.serial += 1
        request = Request(
            *(str(self.serial), name, CLASSES[name].priority, int(self.draw.lognormvariate(7, 1)) + 1, 256),
            *(self.now_s, self.limits[name]),
            tenant=f"tenant-{self.draw.randrange(TENANTS)}",
            terms=self.terms[name],
        )
        self.waiting[request.id] = None
        self.timed("offer", lambda: self.admission.offer(request, self.now_s))

    def timed(self, kind: str, call: Callable[[], list[Decision]]) -> None:
        """Make a call, note what it cost, and do what it decided."""
        started_ns = time.thread_time_ns()
        decisions = call()
        for decision in decisions:
            _ = getattr(decision, "record", None)
        self.seen.costs_us.append((time.thread_time_ns() - started_ns) / 1000)
        self.seen.kinds.append(kind)
        self.seen.decisions.append(max(1, len(decisions)))
        self._story.update(kind.encode())
        for decision in decisions:
            self._story.update(f"{type(decision).__name__} {decision.id}".encode())
            self.waiting.pop(decision.id, None)
            if isinstance(decision, Dispatch):
                self.prefilling.append(decision.id)

    def run(self) -> Pass:
        """Fill the queue, and go on with it full."""
        while len(self.waiting) < QUEUED:
            self.offer()
        self.seen = Pass()
        gc.collect()
        for _ in range(EVENTS):
            self.step()
        return replace(self.seen, story=self._story.hexdigest())


Rows: TypeAlias = dict[str, dict[str, float]]
"""Figures by kind of event."""


@dataclass(frozen=True)
class Found:
    """What so many engines' decisions cost."""

    per_event: Rows
    """Of each event its median over the passes."""
    raw: Rows
    """Of each pass, and the median of those."""
    most_decisions: int
    """Of one event."""

    @classmethod
    def of(cls, passes: list[Pass]) -> Found:
        """Sum up passes that are the same but for what they cost."""
        if len({each.story for each in passes}) > 1:
            raise AssertionError("the passes are not the same: nothing can be said of an event")
        costs_us = zip(*(each.costs_us for each in passes), strict=True)
        medians = [statistics.median(same) for same in costs_us]
        rows = [_rows(each) for each in passes]
        raw = {
            kind: {name: statistics.median(each[kind][name] for each in rows) for name in figures}
            for kind, figures in rows[0].items()
        }
        return cls(_rows(replace(passes[0], costs_us=medians)), raw, max(passes[0].decisions))

    @property
    def is_met(self) -> bool:
        """Whether the goal is reached."""
        return self.per_event[JUDGED]["p99_us"] <= GOAL_US


def _rows(seen: Pass) -> Rows:
    events = list(zip(seen.kinds, seen.decisions, seen.costs_us, strict=True))
    return {
        **{kind: _figures(_shared(e for e in events if e[0] == kind)) for kind in sorted(set(seen.kinds))},
        JUDGED: _figures(_shared(events)),
        "all events": _figures(seen.costs_us),
    }


def _shared(events: Iterable[tuple[str, int, float]]) -> Iterator[float]:
    """Yield each decision's part of its event."""
    for _, decisions, cost_us in events:
        yield from [cost_us / decisions] * decisions


def _figures(costs_us: Iterable[float]) -> dict[str, float]:
    ordered = sorted(costs_us)
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    return {
        "count": len(ordered),
        **{name: ordered[int(share * len(ordered))] for name, share in shares.items()},
        "max_us": ordered[-1],
    }


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=LEAST_PASSES, help=f"at least {LEAST_PASSES}")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    options = parser.parse_args()
    passes = max(LEAST_PASSES, options.passes)
    report = {engines: Found.of([Load(engines).run() for _ in range(passes)]) for engines in (1, 16)}
    options.out.mkdir(parents=True, exist_ok=True)
    by_engines = {engines: asdict(found) for engines, found in report.items()}
    document = {"passes": passes, "load_average": os.getloadavg()[0], "by_engines": by_engines}
    (options.out / "decision.json").write_text(json.dumps(document, indent=1))
    panels = [_panel(engines, found) for engines, found in report.items()]
    (options.out / "decision.svg").write_text(draw(f"CPU time of a decision, {QUEUED} queued", panels))
    for engines, found in report.items():
        print(f"\n{engines} engine(s), {QUEUED} queued, {TENANTS} tenants: CPU time in us, {passes} passes")
        _show("of each event, its median over the passes", found.per_event)
        _show("raw: of each pass, and the median of those", found.raw)
        print(f"one event decides on up to {found.most_decisions} requests")
    print(f"\nload average {os.getloadavg()[0]:.1f}; the machine's neighbours count")
    for engines, found in report.items():
        judged, raw = (rows[JUDGED]["p99_us"] for rows in (found.per_event, found.raw))
        missed = "" if found.is_met else "   MISSED"
        print(f"decision p99, {engines} engine(s): {judged:.1f} us, raw {raw:.1f}; goal {GOAL_US:g}{missed}")
    return 0 if all(found.is_met for found in report.values()) else 1


def _panel(engines: int, found: Found) -> Panel:
    bars = [
        Bar(kind, row["p99_us"], GOAL_US if kind == JUDGED else None, Better.LESS)
        for kind, row in found.per_event.items()
    ]
    raw = Bar(f"{JUDGED}, raw", found.raw[JUDGED]["p99_us"])
    return Panel(f"{engines} engine(s), p99 in us", [*bars, raw])


def _show(title: str, rows: Rows) -> None:
    print(f"{title}\n{'':14}{'count':>8}{'p50':>8}{'p99':>8}{'p99.9':>8}{'max':>9}")
    for kind, row in rows.items():
        times = "".join(f"{row[name]:>8.1f}" for name in ("p50_us", "p99_us", "p999_us"))
        print(f"{kind:14}{row['count']:>8.0f}{times}{row['max_us']:>9.1f}")


if __name__ == "__main__":
    sys.exit(main())
