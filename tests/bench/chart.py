"""A bar chart as SVG, small enough to need no library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#9aa0a6", "#f4b400", "#db4437", "#4285f4", "#0f9d58")
_HEIGHT, _LEFT, _TOP, _BAR, _GAP = 240, 44, 56, 26, 30


def bars(title: str, series: Mapping[str, Sequence[tuple[str, float]]], top: float = 1.0) -> str:
    """Return groups of bars, one per label of the points, with their values on top."""
    labels = [label for label, _ in next(iter(series.values()))]
    group = _BAR * len(series) + _GAP
    width = _LEFT + group * len(labels) + _GAP
    size = f'width="{width}" height="{_TOP + _HEIGHT + 40}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    for tick in range(6):
        y = _TOP + _HEIGHT * (1 - tick / 5)
        parts.append(f'<line x1="{_LEFT}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{top * tick / 5:g}</text>')
    for index, (name, points) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{_LEFT + 130 * index}" y="28" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 130 * index + 14}" y="37">{escape(name)}</text>')
        for place, (_, value) in enumerate(points):
            x, tall = _LEFT + _GAP / 2 + place * group + index * _BAR, _HEIGHT * value / top
            y = _TOP + _HEIGHT - tall
            parts.append(
                f'<rect x="{x}" y="{y:.1f}" width="{_BAR - 3}" height="{tall:.1f}" fill="{colour}"/>'
            )
            parts.append(
                f'<text x="{x + _BAR / 2 - 2}" y="{y - 3:.1f}" text-anchor="middle" font-size="9">{value:.2f}</text>'
            )
    for place, label in enumerate(labels):
        x = _LEFT + place * group + group / 2
        parts.append(f'<text x="{x}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
