"""Line and area charts as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLORS = ("#2563a8", "#c2620c", "#18794e", "#8e3b8a", "#8a6d00", "#b42318", "#4b5563", "#0e7490")
_WIDTH, _HEIGHT = 900, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 38


@dataclass(frozen=True)
class Line:
    """One curve; where ``filled``, the area below it down to the next curve's is coloured."""

    name: str
    points: Sequence[tuple[float, float]]
    color: str
    filled: bool = False
    dots: bool = False


def plot(
    lines: Sequence[Line], x_name: str, *, top: float | None = None, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Return a chart with a legend; y starts at 0, ``marks`` are vertical lines with their meaning."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return '<p class="quiet">nothing was measured</p>'
    frame = _Frame(
        min(0.0, *(x for line in drawn for x, _ in line.points)),
        max(x for line in drawn for x, _ in line.points) or 1.0,
        top or _nice(max(y for line in drawn for _, y in line.points)),
    )
    shapes = [*frame.axes(x_name), *(shape for line in drawn for shape in frame.curve(line))]
    shapes += [shape for row, (x, name) in enumerate(marks) for shape in frame.mark(x, name, row)]
    legend = (f'<span style="color:{line.color}">●</span> {escape(line.name)}&emsp;' for line in drawn)
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img">{"".join(shapes)}</svg>'
    return f'{svg}<p class="quiet">{"".join(legend)}</p>'


def _nice(value: float) -> float:
    """Round up to 1, 2, 2.5 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= value * (1 - 1e-9))


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    top: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)

    def curve(self, line: Line) -> Iterator[str]:
        places = [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in line.points]
        if line.filled:
            ends = (f"{self.x(line.points[at][0]):.1f},{self.y(0):.1f}" for at in (-1, 0))
            yield f'<polygon points="{" ".join([*places, *ends])}" fill="{line.color}" fill-opacity=".85"/>'
        else:
            yield f'<polyline points="{" ".join(places)}" fill="none" stroke="{line.color}" stroke-width="2"/>'
        for x, y in line.points if line.dots else ():
            title = f"<title>{escape(line.name)}: {y:.3g} at {x:.3g}</title>"
            yield f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{line.color}">{title}</circle>'

    def mark(self, value: float, name: str, row: int) -> Iterator[str]:
        if self.left <= value <= self.right:
            x = self.x(value)
            yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#1f2933" '
            yield f'stroke-dasharray="4 3"><title>{escape(name)}</title></line>'
            yield f'<text x="{x + 4:.1f}" y="{_TOP + 10 + 14 * row}">{escape(name)}</text>'

    def axes(self, x_name: str) -> Iterator[str]:
        for step in range(5):
            value = self.top * step / 4
            y = self.y(value)
            yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
            yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
        tick = _nice((self.right - self.left) / 10)
        for step in range(math.ceil(self.left / tick), math.floor(self.right / tick + 1e-9) + 1):
            x = self.x(step * tick)
            yield f'<text x="{x:.1f}" y="{_HEIGHT - 20}" text-anchor="middle">{step * tick:.4g}</text>'
        yield f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 3}" text-anchor="end">{escape(x_name)}</text>'
