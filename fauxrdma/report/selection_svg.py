"""Predicted time over size, a line per algorithm, both axes logarithmic: a self-contained SVG picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

from fauxrdma.collectives.selector import SelectionTable
from fauxrdma.report.palette import SERIES_COLOURS
from fauxrdma.units import format_bytes, format_ns

__all__ = ["selection_svg"]

_W, _H = 860.0, 520.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 74.0, 190.0, 46.0, 52.0
_LABEL_STEP = 15.0

_STYLE = """
.chart { --ink:#1d2733; --soft:#66758a; --line:#d9e0e8; --paper:#ffffff; }
@media (prefers-color-scheme: dark) { .chart { --ink:#e6edf5; --soft:#93a4b8; --line:#2e3947; --paper:#10161d; } }
.chart .paper { fill:var(--paper); } .chart text { font:12px system-ui,sans-serif; fill:var(--ink); }
.chart .title { font-size:15px; font-weight:600; } .chart .tick { fill:var(--soft); font-size:11px; }
.chart .grid { stroke:var(--line); } .chart polyline { fill:none; stroke-width:1.8; } .chart .best { stroke-width:0; }
""".strip()


def selection_svg(table: SelectionTable, title: str) -> str:
    """One ``<svg>`` element: lines for all algorithms, a dot where one is chosen; hover for the figures. Ends without a
    newline."""
    return _Chart(table, title).text()


class _Chart:
    def __init__(self, table: SelectionTable, title: str) -> None:
        self._table = table
        self._title = title
        sizes = [max(1, choice.nbytes) for choice in table.choices]
        times = [max(1, ns) for choice in table.choices for ns in choice.predicted_ns.values()]
        self._x = _Axis(min(sizes), max(sizes), _LEFT, _W - _RIGHT)
        self._y = _Axis(min(times), max(times), _H - _BOTTOM, _TOP)

    def text(self) -> str:
        return "\n".join(
            [
                f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W:.0f} {_H:.0f}" '
                f'width="{_W:.0f}" role="img" aria-label="{escape(self._title)}">',
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{_W:.0f}" height="{_H:.0f}"/>',
                f'<text class="title" x="{_LEFT:.0f}" y="24">{escape(self._title)}</text>',
                *self._grid(),
                *self._lines(),
                "</svg>",
            ]
        )

    def _grid(self) -> list[str]:
        parts = []
        for size in self._x.powers(2, most=12):
            x = self._x.at(size)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_H - _BOTTOM}"/>')
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{_H - _BOTTOM + 17:.0f}" text-anchor="middle">'
                f"{format_bytes(size)}</text>"
            )
        for ns in self._y.powers(10, most=10):
            y = self._y.at(ns)
            parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_W - _RIGHT}" y2="{y:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{_LEFT - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{format_ns(ns)}</text>'
            )
        return parts

    def _lines(self) -> list[str]:
        parts = []
        names = self._table.algorithms
        ends = {name: self._points(name)[-1] for name in names}
        label_y = _spread([ends[name][1] for name in names])
        for number, name in enumerate(names):
            colour = SERIES_COLOURS[number % len(SERIES_COLOURS)]
            dashes = ' stroke-dasharray="6 4"' if number >= len(SERIES_COLOURS) else ""
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in self._points(name))
            parts.append(
                f'<polyline points="{points}" stroke="{colour}"{dashes}><title>{escape(name)}</title></polyline>'
            )
            for choice in self._table.choices:
                if choice.algorithm == name:
                    x, y = self._x.at(max(1, choice.nbytes)), self._y.at(max(1, choice.predicted_ns[name]))
                    told = f"{format_bytes(choice.nbytes)}: {name}, {format_ns(choice.predicted_ns[name])}"
                    parts.append(
                        f'<circle class="best" cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}">'
                        f"<title>{escape(told)}</title></circle>"
                    )
            parts.append(
                f'<text x="{_W - _RIGHT + 10:.0f}" y="{label_y[number] + 4:.1f}" style="fill:{colour}">'
                f"{escape(name)}</text>"
            )
        return parts

    def _points(self, name: str) -> list[tuple[float, float]]:
        return [
            (self._x.at(max(1, choice.nbytes)), self._y.at(max(1, choice.predicted_ns[name])))
            for choice in self._table.choices
            if name in choice.predicted_ns
        ]


class _Axis:
    """Values from `low` to `high` on a logarithmic scale between two coordinates."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = low, max(high, low * 2)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = math.log(value / self._low) / math.log(self._high / self._low)
        return self._start + share * (self._end - self._start)

    def powers(self, base: int, most: int) -> list[int]:
        """Powers of `base` on the axis; only every second, third ... one when there are more than `most`."""
        first = math.ceil(math.log(self._low, base) - 1e-9)
        last = math.floor(math.log(self._high, base) + 1e-9)
        step = max(1, -(-(last - first + 1) // most))
        return [base**exponent for exponent in range(first, last + 1, step)]


def _spread(wanted: Sequence[float]) -> list[float]:
    """Heights of labels near `wanted`, moved so that they do not cover each other."""
    placed = list(wanted)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + _LABEL_STEP)
    beyond = max(placed, default=0.0) - (_H - _BOTTOM)
    return [height - beyond for height in placed] if beyond > 0 else placed
