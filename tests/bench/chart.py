"""A bar chart as SVG, with a mark at each goal."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_ROW, _LABEL, _BARS, _TOP = 22, 170, 300, 46
"""Pixels: height of a row, widths of labels and of the longest bar, height of the titles."""
_MET, _MISSED, _PLAIN = "#3b7dd8", "#d0453e", "#9aa0a6"


class Better(enum.Enum):
    """Which side of a goal is the right one."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True)
class Bar:
    """One value; without a goal it is there for comparison."""

    label: str
    value: float
    goal: float | None = None
    better: Better = Better.MORE

    @property
    def met(self) -> bool:
        """Return whether the value is on the right side of the goal."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.better is Better.MORE else self.value <= self.goal


@dataclass(frozen=True)
class Panel:
    """Bars of one unit."""

    title: str
    bars: Sequence[Bar]


def draw(title: str, panels: Sequence[Panel]) -> str:
    """Return the panels side by side."""
    width = len(panels) * (_LABEL + _BARS + 80)
    height = _TOP + 28 + _ROW * max(len(panel.bars) for panel in panels)
    parts = [part for number, panel in enumerate(panels) for part in _panel(panel, number)]
    style = "font: 12px system-ui, sans-serif; background: white"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}">',
            _text(10, 18, title, weight="bold"),
            *parts,
            _text(10, height - 8, "| goal", fill="#5f6368"),
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, number: int) -> Iterator[str]:
    left = number * (_LABEL + _BARS + 80)
    longest = max(max(bar.value, bar.goal or 0) for bar in panel.bars) or 1
    yield _text(left + _LABEL, _TOP - 8, panel.title)
    for row, bar in enumerate(panel.bars):
        x, y = left + _LABEL, _TOP + row * _ROW
        length = bar.value / longest * _BARS
        colour = _PLAIN if bar.goal is None else _MET if bar.met else _MISSED
        yield _text(x - 8, y + 14, bar.label, anchor="end")
        yield f'<rect x="{x}" y="{y + 3}" width="{length:.1f}" height="{_ROW - 7}" fill="{colour}"/>'
        yield _text(x + length + 6, y + 14, f"{bar.value:.3g}")
        if bar.goal is not None:
            mark = x + bar.goal / longest * _BARS
            yield f'<rect x="{mark:.1f}" y="{y}" width="2" height="{_ROW - 1}" fill="black"/>'


def _text(x: float, y: float, text: str, **attributes: str) -> str:
    names = {"anchor": "text-anchor", "weight": "font-weight"}
    extra = "".join(f' {names.get(key, key)}="{value}"' for key, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'
