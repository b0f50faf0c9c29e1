"""Charts of a report, as inline SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from trtkit.quantize.gate.report import Measure

_COLORS = ("#2563a8", "#c2620c", "#18794e", "#8e3b8a", "#8a6d00", "#b42318", "#4b5563", "#0e7490")
_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 12, 38
_LAYER = re.compile(r"\.(\d+)\.")


def interval_chart(measure: Measure) -> str:
    """Return the interval as a bar on a line from the best value to a little beyond the limit."""
    interval, width, middle = measure.interval, 180, 10
    ends = [interval.low, interval.high, *([measure.limit] if measure.limit is not None else [])]
    best = 0.0 if measure.upper and measure.name == "KL" else 1.0
    if not all(map(math.isfinite, ends)):
        return ""
    low, high = min(best, *ends), max(best, *ends)
    spread = (high - low) * 1.08 or 1.0

    def place(value: float) -> float:
        return round(4 + (value - low) / spread * (width - 8), 1)

    color = _COLORS[0] if measure.passes else _COLORS[5]
    bar = max(2.0, place(interval.high) - place(interval.low))
    shapes = [f'<line x1="4" x2="{width - 4}" y1="{middle}" y2="{middle}" stroke="#cbd2d9"/>']
    shapes.append(
        f'<rect x="{place(interval.low)}" y="6" width="{bar:.1f}" height="8" rx="2" fill="{color}"/>'
    )
    if measure.limit is not None:
        at = place(measure.limit)
        shapes.append(f'<line x1="{at}" x2="{at}" y1="1" y2="19" stroke="#1f2933" stroke-width="2"/>')
    title = f"<title>{escape(measure.name)}: {interval.low:.4g} to {interval.high:.4g}</title>"
    return f'<svg width="{width}" height="20" role="img">{title}{"".join(shapes)}</svg>'


def layer_chart(errors: Sequence[float]) -> str:
    """Return the error of each layer's output over the layers."""
    frame = _Frame(len(errors), max(errors))
    points = " ".join(f"{frame.x(index):.1f},{frame.y(error):.1f}" for index, error in enumerate(errors))
    line = f'<polyline points="{points}" fill="none" stroke="{_COLORS[0]}" stroke-width="2"/>'
    dots = (
        frame.dot(index, error, _COLORS[0], f"layer {index}: {error:.4f}")
        for index, error in enumerate(errors)
    )
    return frame.draw([line, *dots])


def weight_chart(errors: Mapping[str, float]) -> str:
    """Return the error of each weight over the layers, kinds of layers in colours."""
    found = [(_layer_of(name), _kind_of(name), name, error) for name, error in errors.items()]
    kinds = list(dict.fromkeys(kind for _, kind, _, _ in found))
    frame = _Frame(1 + max(layer for layer, *_ in found), max(errors.values()))
    colors = {kind: _COLORS[index % len(_COLORS)] for index, kind in enumerate(kinds)}
    dots = [
        frame.dot(layer, error, colors[kind], f"{name}: {error:.4f}") for layer, kind, name, error in found
    ]
    legend = (f'<span style="color:{color}">●</span> {escape(kind)}&emsp;' for kind, color in colors.items())
    return frame.draw(dots) + f'<p class="quiet">{"".join(legend)}</p>'


def _layer_of(name: str) -> int:
    found = _LAYER.search(name)
    return int(found[1]) if found else 0


def _kind_of(name: str) -> str:
    """Return the name without what counts layers and experts."""
    return re.sub(r"\.\d+", "", name).rsplit(".", 1)[-1]


@dataclass(frozen=True)
class _Frame:
    """Axes: layers to the right, errors from 0 upwards."""

    layers: int
    largest: float

    @property
    def top(self) -> float:
        """The end of the axis, and four steps to it: 1, 2 or 5 times a power of ten each."""
        step = (self.largest or 1e-9) / 4
        power = 10.0 ** math.floor(math.log10(step))
        return 4 * next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= step * (1 - 1e-9))

    def x(self, layer: int) -> float:
        return _LEFT + (layer + 0.5) / self.layers * (_WIDTH - _LEFT - _RIGHT)

    def y(self, error: float) -> float:
        return _HEIGHT - _BOTTOM - error / self.top * (_HEIGHT - _TOP - _BOTTOM)

    def dot(self, layer: int, error: float, color: str, title: str) -> str:
        place = f'cx="{self.x(layer):.1f}" cy="{self.y(error):.1f}"'
        return f'<circle {place} r="3.5" fill="{color}" fill-opacity=".8"><title>{escape(title)}</title></circle>'

    def draw(self, shapes: Sequence[str]) -> str:
        content = "".join([*self._axes(), *shapes])
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">{content}</svg>'

    def _axes(self) -> Iterator[str]:
        for quarter in range(5):
            value = self.top * quarter / 4
            y = self.y(value)
            yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        every = max(1, math.ceil(self.layers / 16))
        for layer in range(0, self.layers, every):
            yield f'<text x="{self.x(layer):.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{layer}</text>'
        yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 2}" text-anchor="end">layer</text>'
