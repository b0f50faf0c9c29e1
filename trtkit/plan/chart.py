"""A comparison as one HTML page: a bar of memory and a bar of rate for each candidate. No scripts, nothing to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from trtkit.plan.compare import Candidate
from trtkit.plan.render import render_candidates

_ROW, _LABEL, _MEMORY, _RATE, _TOP = 22, 250, 380, 260, 40
"""Pixels: height of a row, widths of labels, memory and rates, height of the titles."""
_PARTS = (("weights", "#3b7dd8"), ("buffers", "#e8a33d"), ("runtime", "#9aa0a6"), ("KV pool", "#4caf7d"))
_KEPT, _BROKEN = "#3b7dd8", "#d0453e"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px system-ui, sans-serif; margin: 2em }} pre {{ font-size: 12px }}</style></head>
<body><h1>{title}</h1>
{svg}
<pre>{table}</pre>
</body></html>
"""


def page(title: str, candidates: Sequence[Candidate], limit: int = 30) -> str:
    """Return the page; candidates come best first."""
    rows = [each for each in candidates if each.plan is not None][:limit]
    table = escape(render_candidates(rows, limit))
    return _PAGE.format(title=escape(title), svg=draw(rows), table=table)


def draw(rows: Sequence[Candidate]) -> str:
    """Return the bars as SVG: memory of a GPU to the scale of the largest one, requests per second and GPU."""
    width, height = _LABEL + _MEMORY + _RATE + 120, _TOP + _ROW * len(rows) + 30
    most_bytes = max((each.gpu.memory_bytes for each in rows), default=1)
    most_rate = max((each.per_gpu for each in rows), default=0.0) or 1.0
    parts = [part for number, each in enumerate(rows) for part in _row(each, number, most_bytes, most_rate)]
    legend = [
        _rect((_LABEL + 90 * i, 6), (10, 10), colour) + _text(_LABEL + 90 * i + 14, 15, name)
        for i, (name, colour) in enumerate(_PARTS)
    ]
    heads = [_text(_LABEL + _MEMORY + 20, 15, "requests/s and GPU, promises kept (red: one is broken)")]
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="font: 12px sans-serif">'
    return "\n".join([svg, *legend, *heads, *parts, "</svg>"])


def _row(each: Candidate, number: int, most_bytes: int, most_rate: float) -> Iterator[str]:
    plan, y = each.plan, _TOP + number * _ROW
    if plan is None:
        return
    yield _text(_LABEL - 8, y + 14, f"{each.world} x {each.gpu.name} {each.weights}", anchor="end")
    memory, x = plan.memory, float(_LABEL)
    sizes = (memory.weights_bytes, memory.activation_bytes, memory.overhead_bytes, memory.kv_pool_bytes)
    for (name, colour), size in zip(_PARTS, sizes, strict=True):
        length = _MEMORY * size / most_bytes
        yield _rect((x, y + 3), (length, _ROW - 8), colour, f"{name}: {size / 1e9:.1f} GB")
        x += length
    end = _LABEL + _MEMORY * each.gpu.memory_bytes / most_bytes
    yield _rect((end, y), (2, _ROW - 2), "black", f"{each.gpu.memory_bytes / 1e9:.1f} GB")
    left, length = _LABEL + _MEMORY + 20, _RATE * each.per_gpu / most_rate
    yield _rect((left, y + 3), (length, _ROW - 8), _KEPT if each.kept else _BROKEN, f"{each.per_gpu:.2f}")
    yield _text(left + length + 6, y + 14, f"{each.per_gpu:.3g}")


def _rect(corner: tuple[float, float], size: tuple[float, float], colour: str, title: str = "") -> str:
    (x, y), (width, height) = corner, size
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">{inner}</rect>'


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
