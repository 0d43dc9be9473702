"""A fabric as a self-contained SVG picture: tiers in rows, bundles of parallel cables as one line with their count."""

from __future__ import annotations

import re
from html import escape

from fauxrdma.topology.drawing.names import runs
from fauxrdma.topology.drawing.picture import Box, Bundle, Picture, picture_of
from fauxrdma.topology.graph import Topology

__all__ = ["svg"]

_MARGIN, _LABELS = 20.0, 64.0
_BOX_H, _ROW_GAP, _BOX_GAP, _TITLE_H = 40.0, 96.0, 18.0, 40.0
_CHARACTER_W, _BOX_MIN_W = 7.4, 66.0
_LABELLED_BUNDLES = 40
"""More bundles than that between two rows get their counts only as tooltips."""

_STYLE = """
.fabric { --ink:#1d2733; --soft:#66758a; --box:#eef2f7; --line:#8fa3ba; --hosts:#e5f3ea; --paper:#ffffff;
  --hot:#1f6fd1; }
@media (prefers-color-scheme: dark) { .fabric { --ink:#e6edf5; --soft:#93a4b8; --box:#212b37; --line:#62748a;
  --hosts:#1f3a2b; --paper:#10161d; --hot:#6db1ff; } }
.fabric .paper { fill:var(--paper); }
.fabric text { font:12px system-ui,sans-serif; fill:var(--ink); text-anchor:middle; }
.fabric .title { font-size:15px; font-weight:600; text-anchor:start; }
.fabric .tier { fill:var(--soft); text-anchor:start; } .fabric .small { font-size:10.5px; fill:var(--soft); }
.fabric rect.switch { fill:var(--box); stroke:var(--line); }
.fabric rect.hosts { fill:var(--hosts); stroke:var(--line); }
.fabric .wire path { fill:none; stroke:var(--line); } .fabric .wire path.hit { stroke:transparent; stroke-width:10; }
.fabric .wire:hover path:not(.hit) { stroke:var(--hot); } .fabric .wire:hover text { fill:var(--hot); }
.fabric .wire text { font-size:10.5px; paint-order:stroke; stroke:var(--paper); stroke-width:4px; }
""".strip()


def svg(topology: Topology) -> str:
    """One ``<svg>`` element with its style; hover over anything to read what it is. Ends without a newline."""
    picture = picture_of(topology)
    return _Drawing(picture).text()


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._w = {index: _width(box) for index, box in enumerate(picture.boxes)}
        needed = [sum(self._w[i] for i in own) + _BOX_GAP * (len(own) - 1) for _, own in picture.rows]
        inner = max(560.0, *needed)
        self._width = inner + 2 * _MARGIN + _LABELS
        self._height = _TITLE_H + len(picture.rows) * (_BOX_H + _ROW_GAP) - _ROW_GAP + 2 * _MARGIN
        self._at: dict[int, tuple[float, float]] = {}
        self._row: dict[int, int] = {}
        for row, (_, own) in enumerate(picture.rows):
            free = (inner - sum(self._w[i] for i in own)) / len(own)
            x = _MARGIN + _LABELS + free / 2
            y = _MARGIN + _TITLE_H + row * (_BOX_H + _ROW_GAP)
            for index in own:
                self._at[index] = (x + self._w[index] / 2, y)
                self._row[index] = row
                x += self._w[index] + free

    def text(self) -> str:
        picture = self._picture
        parts = [
            '<svg class="fabric" xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self._width:.0f} {self._height:.0f}" width="{self._width:.0f}" role="img" '
            f'aria-label="{_safe(picture.title)}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{self._width:.0f}" height="{self._height:.0f}"/>',
            f'<text class="title" x="{_MARGIN:.0f}" y="{_MARGIN + 14:.0f}">{_safe(picture.title)}</text>',
        ]
        for row, (name, _) in enumerate(picture.rows):
            y = _MARGIN + _TITLE_H + row * (_BOX_H + _ROW_GAP) + _BOX_H / 2 + 4
            parts.append(f'<text class="tier" x="{_MARGIN:.0f}" y="{y:.1f}">{_safe(name)}</text>')
        between: dict[tuple[int, int], list[Bundle]] = {}
        for bundle in picture.bundles:
            between.setdefault((self._row[bundle.a], self._row[bundle.b]), []).append(bundle)
        for bundles in between.values():
            parts += [
                self._wire(bundle, number, labelled=len(bundles) <= _LABELLED_BUNDLES)
                for number, bundle in enumerate(bundles)
            ]
        parts += [self._box(index, box) for index, box in enumerate(picture.boxes)]
        return "\n".join([*parts, "</svg>"])

    def _wire(self, bundle: Bundle, number: int, *, labelled: bool) -> str:
        (ax, ay), (bx, by) = self._at[bundle.a], self._at[bundle.b]
        width = min(6.0, 1.0 + bundle.cables**0.5 / 2)
        if bundle.a == bundle.b:  # within one box of many: a loop above it
            top = ay - 34
            path = f"M{ax - 14:.1f} {ay:.1f} C{ax - 26:.1f} {top:.1f} {ax + 26:.1f} {top:.1f} {ax + 14:.1f} {ay:.1f}"
            x, y = ax, ay - 28
        elif ay == by:  # two boxes of one row: an arc above them
            rise = 22.0 + min(40.0, abs(ax - bx) / 12)
            path = f"M{ax:.1f} {ay:.1f} Q{(ax + bx) / 2:.1f} {ay - 2 * rise:.1f} {bx:.1f} {by:.1f}"
            x, y = (ax + bx) / 2, ay - rise + 4
        else:
            top, bottom = ay + _BOX_H, by
            path = f"M{ax:.1f} {top:.1f} L{bx:.1f} {bottom:.1f}"
            share = (0.3, 0.5, 0.7)[number % 3]  # counts of neighbouring lines do not cover each other
            x, y = ax + (bx - ax) * share, top + (bottom - top) * share + 4
        count = f'<text x="{x:.1f}" y="{y:.1f}">{bundle.cables}</text>' if labelled and bundle.cables > 1 else ""
        return (
            f'<g class="wire"><path d="{path}" stroke-width="{width:.1f}"/><path class="hit" d="{path}"/>{count}'
            f"<title>{_safe(self._told(bundle))}</title></g>"
        )

    def _told(self, bundle: Bundle) -> str:
        a, b = (runs(self._picture.boxes[index].members) for index in (bundle.a, bundle.b))
        each = f" between {len(bundle.pairs)} pairs" if len(bundle.pairs) > 1 else ""
        return f"{a} - {b}: {bundle.text()}{each}"

    def _box(self, index: int, box: Box) -> str:
        (x, y), w = self._at[index], self._w[index]
        many = len(box.members) > 1
        below = f'<text class="small" x="{x:.1f}" y="{y + 33:.1f}">{len(box.members)} alike</text>' if many else ""
        return (
            f'<g><rect class="{"hosts" if box.is_hosts else "switch"}" x="{x - w / 2:.1f}" y="{y:.1f}" width="{w:.1f}" '
            f'height="{_BOX_H:.0f}" rx="{9 if box.is_hosts else 4}"/>'
            f'<text x="{x:.1f}" y="{y + (19 if many else 25):.1f}">{_safe(box.label)}</text>{below}'
            f"<title>{_safe(box.detail)}</title></g>"
        )


def _width(box: Box) -> float:
    return max(_BOX_MIN_W, len(box.label) * _CHARACTER_W + 16)


def _safe(text: str) -> str:
    """Text as XML can hold it."""
    return escape(re.sub("[\\x00-\\x1f\\ud800-\\udfff\\ufffe\\uffff]", " ", text))
