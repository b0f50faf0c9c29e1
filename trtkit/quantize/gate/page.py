"""The report as one HTML page: nothing in it is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from trtkit.quantize.gate.charts import interval_chart, layer_chart, weight_chart
from trtkit.quantize.gate.report import Measure, Report, WorstToken

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 60rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem; }
p { margin: .3rem 0; } .quiet { color: #616e7c; }
.verdict { display: inline-block; padding: .1rem .7rem; border-radius: .3rem; color: #fff; font-weight: 600; }
.pass { background: #18794e; } .fail { background: #b42318; }
td.fails { color: #b42318; font-weight: 600; background: none; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; color: #616e7c; }
th, td { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #e4e7eb; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
code { font: 13px ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #616e7c; }
"""


def page(report: Report) -> str:
    """Return the whole document."""
    verdict = "pass" if report.passes else "fail"
    body = [
        f'<h1>Quality gate <span class="verdict {verdict}">{verdict}</span></h1>',
        *(f"<p>{escape(reason)}</p>" for reason in report.reasons()),
        _about(report),
        "<h2>Measures</h2>",
        _measures(report),
        *_tasks(report),
        *_tried(report),
        *_layers(report),
        *_weights(report),
        *_worst(report.worst),
    ]
    title = f"{escape(report.candidate)}: {verdict}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    content = "\n".join(body)
    head += f"<style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{content}\n</body>\n</html>'


def _about(report: Report) -> str:
    rows = [
        ("candidate", f"{report.candidate} ({report.format})"),
        ("baseline", report.baseline),
        ("computed by", report.executor),
        ("text", f"{report.data}: {report.num_samples} samples, {report.num_tokens:,} tokens"),
    ]
    return f'<div class="quiet">{"".join(f"<p>{name}: {escape(value)}</p>" for name, value in rows)}</div>'


def _measures(report: Report) -> str:
    rows = [_measure(measure) for measure in report.measures]
    if report.baseline_accuracy is not None:
        cells = ("baseline accuracy", f"{report.baseline_accuracy:.4f}", "", "", "", "")
        rows.append(_row(cells, numbers=range(1, 5)))
    head = ("", "value", "95 % interval", "limit", "bf16 floor", "interval and limit")
    return _table(head, rows, numbers=range(1, 5))


def _measure(measure: Measure) -> str:
    interval = measure.interval
    limit = "" if measure.limit is None else f"{'≤' if measure.upper else '≥'} {measure.limit:.4f}"
    floor = "" if measure.floor is None else f"{measure.floor.value:.4f}"
    cells = [
        f'<td class="{"" if measure.passes else "fails"}">{escape(measure.name)}</td>',
        *(
            f'<td class="number">{text}</td>'
            for text in (f"{interval.value:.4f}", f"{interval.low:.4f} to {interval.high:.4f}", limit, floor)
        ),
        f"<td>{interval_chart(measure)}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _tasks(report: Report) -> list[str]:
    if not report.tasks:
        return []
    rows = [
        _row(
            (
                escape(each.task),
                escape(each.metric),
                f"{each.num_questions:,}",
                f"{each.candidate:.4f}",
                f"{each.baseline:.4f}",
            ),
            numbers=range(2, 5),
        )
        for each in report.tasks
    ]
    head = ("task", "metric", "questions", "candidate", "baseline")
    return ["<h2>Tasks of lm-eval</h2>", _table(head, rows, numbers=range(2, 5))]


def _tried(report: Report) -> list[str]:
    if not report.tried:
        return []
    rows = [_row((each["format"], escape("; ".join(each["reasons"]))), range(0)) for each in report.tried]
    return ["<h2>Tried before</h2>", _table(("format", "why not"), rows, range(0))]


def _layers(report: Report) -> list[str]:
    if not report.layer_errors:
        return []
    note = (
        "How far the output of each layer is from the baseline's on the first sample, relative to its size."
    )
    return [
        "<h2>Outputs of the layers</h2>",
        f'<p class="quiet">{note}</p>',
        layer_chart(report.layer_errors),
    ]


def _weights(report: Report) -> list[str]:
    if not any(report.weight_errors.values()):
        return []
    note = "How far each weight is from the source's, relative to its size; smoothing is taken back out."
    return ["<h2>Weights</h2>", f'<p class="quiet">{note}</p>', weight_chart(report.weight_errors)]


def _worst(worst: Sequence[WorstToken]) -> list[str]:
    if not worst:
        return []
    rows = [
        _row(
            (
                f"{token.kl:.3f}",
                f"{token.sample}:{token.position}",
                *map(_code, (token.context, token.baseline, token.candidate)),
            ),
            numbers=range(2),
        )
        for token in worst
    ]
    head = ("KL", "place", "text before", "baseline goes on", "candidate goes on")
    return ["<h2>Worst tokens</h2>", _table(head, rows, numbers=range(2))]


def _code(text: str) -> str:
    return f"<code>{escape(text.replace(chr(10), '⏎'))}</code>"


def _row(cells: Iterable[str], numbers: range) -> str:
    marked = (f"<td{_number(index, numbers)}>{cell}</td>" for index, cell in enumerate(cells))
    return f"<tr>{''.join(marked)}</tr>"


def _table(head: Iterable[str], rows: Iterable[str], numbers: range) -> str:
    names = "".join(f"<th{_number(index, numbers)}>{name}</th>" for index, name in enumerate(head))
    return f"<table><tr>{names}</tr>{''.join(rows)}</table>"


def _number(index: int, numbers: range) -> str:
    return ' class="number"' if index in numbers else ""
