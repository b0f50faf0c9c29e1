"""What a bench found, as one HTML page: nothing in it is loaded from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from trtkit.bench.experiment import BenchResult, Run
from trtkit.bench.measured import Measured, verdict
from trtkit.bench.plots import COLORS, Line, plot
from trtkit.bench.summary import summary
from trtkit.contract.service import ServiceClass
from trtkit.proxy.admission import Outcome
from trtkit.proxy.slo import Verdict

_KEPT, _LATE, _TURNED_AWAY, _OTHER = "kept", "missed, though answered", "refused or timed out", "other"
_FATE_COLORS = {_OTHER: "#9aa0a6", _TURNED_AWAY: "#e8a33d", _LATE: "#d0453e", _KEPT: "#3b7dd8"}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem; }
p { margin: .3rem 0; } .quiet { color: #616e7c; } .missed { color: #b42318; }
pre { font: 12px/1.45 ui-monospace, monospace; overflow-x: auto; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #616e7c; }
"""

Samples = Mapping[tuple[float, int], Sequence[Measured]]
"""By rate and seed."""


def page(result: BenchResult, samples: Samples, classes: Mapping[str, ServiceClass]) -> str:
    """Return the whole document."""
    title = escape(f"{result.contract} at {result.target}")
    body = [f"<h1>{title}</h1>", _about(result), *_misses(result), *_over_load(result, classes)]
    for rate in sorted({run.rate_per_s for run in result.runs}):
        runs = [run for run in result.runs if run.rate_per_s == rate]
        body += _at_rate(runs, samples, classes)
    body += ["<h2>Figures</h2>", f"<pre>{escape(summary(result))}</pre>"]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    head += f"<style>{_STYLE}</style>"
    content = "\n".join(body)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body>\n</html>'


def _about(result: BenchResult) -> str:
    traffic = ", ".join(f"{name}: {what}" for name, what in result.traffic.items())
    lines = [f"{result.arrivals} arrivals, {traffic}, lengths times {result.scale:g}"]
    if result.capacity is not None:
        lines.append(f"capacity {result.capacity.rate_per_s:.2f} requests/s ({result.capacity.how})")
    lines.append(f"objective: {result.objective:.1%} of each class; a refusal is a miss")
    return "".join(f'<p class="quiet">{escape(line)}</p>' for line in lines)


def _misses(result: BenchResult) -> list[str]:
    return [f'<p class="missed">{escape(each)}</p>' for each in (*result.missed, *result.warnings)]


def _over_load(result: BenchResult, classes: Mapping[str, ServiceClass]) -> list[str]:
    if len(result.rates) < 2:
        return []
    at = [each.rho if each.rho is not None else each.rate_per_s for each in result.rates]
    shares = [each.attainment for each in result.rates]
    lines = [
        Line(name, [(x, share[name] or 0.0) for x, share in zip(at, shares, strict=True) if share[name] is not None],
             COLORS[index % len(COLORS)], dots=True)
        for index, name in enumerate(classes)
    ]  # fmt: skip
    good = [each.goodput_per_s.mean for each in result.rates]
    goodput = Line("goodput, requests/s", list(zip(at, good, strict=True)), COLORS[0], dots=True)
    x_name = "requests/s" if result.capacity is None else "load, as a multiple of the capacity (rho)"
    return [
        *("<h2>Attainment over load</h2>", plot(lines, x_name, top=1.0)),
        *("<h2>Goodput over load</h2>", plot([goodput], x_name)),
    ]


def _at_rate(runs: Sequence[Run], samples: Samples, classes: Mapping[str, ServiceClass]) -> list[str]:
    run = runs[0]
    load = f"{run.rate_per_s:.3g} requests/s" + (f" (rho {run.rho:.2f})" if run.rho is not None else "")
    pooled = [each for run in runs for each in samples[run.rate_per_s, run.seed]]
    first = samples[run.rate_per_s, run.seed]
    marks = [
        (each.ttft_ms / 1000, f"{name}: {each.ttft_ms:g} ms")
        for name, each in classes.items()
        if each.ttft_ms is not None
    ]
    # A class without a promise may wait for minutes, and is not what the plot is about.
    end_s = 3 * max((at_s for at_s, _ in marks), default=math.inf)
    return [
        f"<h2>Time to first token at {load}</h2>",
        '<p class="quiet">Share of all requests of the class; what never got a token keeps its curve below 1.</p>',
        plot(list(_first_tokens(pooled, classes, end_s)), "seconds", top=1.0, marks=marks),
        f"<h2>Requests per second by time of sending, seed {run.seed}</h2>",
        plot(list(_timeline(first, classes, run.duration_s)), "seconds"),
    ]


def _first_tokens(
    samples: Sequence[Measured], classes: Mapping[str, ServiceClass], end_s: float
) -> Iterator[Line]:
    for index, name in enumerate(classes):
        mine = [each for each in samples if each.class_name == name]
        times_s = sorted(each.ttft_s for each in mine if each.ttft_s is not None)
        points = [
            (time_s, (number + 1) / len(mine)) for number, time_s in enumerate(times_s) if time_s <= end_s
        ]
        yield Line(name, [(0.0, 0.0), *points] if points else [], COLORS[index % len(COLORS)])


def _timeline(
    samples: Sequence[Measured], classes: Mapping[str, ServiceClass], duration_s: float
) -> Iterator[Line]:
    """Yield stacked areas, the tallest first, so that the lower ones are drawn over it."""
    width_s = max(1.0, duration_s / 60)
    slots = max(1, math.ceil(duration_s / width_s))
    counts = {fate: [0] * slots for fate in _FATE_COLORS}
    for each in samples:
        counts[_fate(each, classes[each.class_name])][min(slots - 1, int(each.at_s / width_s))] += 1
    fates = list(_FATE_COLORS)
    for index, fate in enumerate(fates):
        heights = [sum(counts[below][slot] for below in fates[index:]) / width_s for slot in range(slots)]
        points = [((slot + 0.5) * width_s, height) for slot, height in enumerate(heights)]
        yield Line(fate, points, _FATE_COLORS[fate], filled=True)


def _fate(sample: Measured, spec: ServiceClass) -> str:
    found = verdict(sample, spec)
    if found is Verdict.MET:
        return _KEPT
    if found is Verdict.EXCLUDED:
        return _OTHER
    return _TURNED_AWAY if sample.kind in {Outcome.REFUSED, Outcome.TIMED_OUT} else _LATE
