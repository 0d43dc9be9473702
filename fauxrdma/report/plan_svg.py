"""A plan in space and time: a line per rank, an arrow per message, from its first bit to its arrival."""

from __future__ import annotations

from html import escape
from itertools import count

from fauxrdma.collectives.fabric_cost import FabricCost
from fauxrdma.collectives.plan_rounds import SentMessage
from fauxrdma.report.palette import SERIES_COLOURS
from fauxrdma.topology.rank_places import RankPlace
from fauxrdma.units import format_bytes, format_ns

__all__ = ["MOST_MESSAGES", "plan_svg"]

MOST_MESSAGES = 4000
"""More arrows than that are one blot."""

_LEFT, _TOP, _BOTTOM, _W, _ROW = 150.0, 56.0, 44.0, 1100.0, 54.0

_STYLE = """
.plan { --ink:#1d2733; --soft:#66758a; --line:#cfd8e3; --paper:#ffffff; }
@media (prefers-color-scheme: dark) { .plan { --ink:#e6edf5; --soft:#93a4b8; --line:#2e3947; --paper:#10161d; } }
.plan .paper { fill:var(--paper); } .plan text { font:12px system-ui,sans-serif; fill:var(--ink); }
.plan .title { font-size:15px; font-weight:600; } .plan .tick { fill:var(--soft); font-size:11px; }
.plan .rank { stroke:var(--line); stroke-width:1.2; } .plan .grid { stroke:var(--line); stroke-dasharray:2 4; }
.plan .sending { stroke-width:5; stroke-opacity:0.55; } .plan .flight { stroke-width:1.1; }
.plan .end { fill:var(--ink); } .plan g:hover .sending { stroke-opacity:1; } .plan g:hover .flight { stroke-width:2.4; }
""".strip()


def plan_svg(cost: FabricCost, messages: list[SentMessage], places: list[RankPlace], title: str, itemsize: int) -> str:
    """One ``<svg>`` element. `cost` must have its messages' times, and `messages` be those of the same plan, whose
    elements have `itemsize` bytes. Hover an arrow to read what it carries. Ends without a newline.

    A thick bar on the sender's line lasts while the message leaves; the thin line ends where and when it arrives.
    """
    told = {(m.source, m.target, m.index): m for m in messages}
    height = _TOP + _ROW * max(1, len(places)) + _BOTTOM
    span = max(1, cost.predicted_ns)

    def x(ns: int) -> float:
        return _LEFT + (_W - _LEFT - 30) * ns / span

    def y(rank: int) -> float:
        return _TOP + _ROW * (rank + 0.5)

    parts = [
        f'<svg class="plan" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W:.0f} {height:.0f}" width="{_W:.0f}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" width="{_W:.0f}" height="{height:.0f}"/>',
        f'<text class="title" x="16" y="26">{escape(title)}</text>',
    ]
    for ns in _ticks(span):
        at, low = f"{x(ns):.1f}", height - _BOTTOM
        parts.append(f'<line class="grid" x1="{at}" y1="{_TOP:.0f}" x2="{at}" y2="{low:.0f}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{low + 18:.0f}" text-anchor="middle">{format_ns(ns)}</text>')
    for rank, place in enumerate(places):
        parts.append(f'<line class="rank" x1="{_LEFT:.0f}" y1="{y(rank):.1f}" x2="{x(span):.1f}" y2="{y(rank):.1f}"/>')
        parts.append(
            f'<text x="16" y="{y(rank) + 4:.1f}">rank {rank} <tspan class="tick">{place.gpu_name}</tspan></text>'
        )
        parts.append(f'<circle class="end" cx="{x(cost.end_ns[rank]):.1f}" cy="{y(rank):.1f}" r="3"/>')
    for time in cost.messages_ns:
        message = told[time.source, time.target, time.index]
        colour = SERIES_COLOURS[time.source % len(SERIES_COLOURS)]
        here, there = y(time.source), y(time.target)
        how = f" {message.what}" if message.what else ""
        then = f", then {message.then}" if message.then else ""
        what = (
            f"round {message.round}: rank {time.source} to {time.target}, {format_bytes(message.count * itemsize)}{how}"
            f"{then}; {format_ns(time.started_ns)} to {format_ns(time.arrived_ns)}"
        )
        parts.append(
            f'<g stroke="{colour}"><line class="sending" x1="{x(time.started_ns):.1f}" y1="{here:.1f}" '
            f'x2="{x(time.departed_ns):.1f}" y2="{here:.1f}"/><line class="flight" x1="{x(time.departed_ns):.1f}" '
            f'y1="{here:.1f}" x2="{x(time.arrived_ns):.1f}" y2="{there:.1f}"/><circle cx="{x(time.arrived_ns):.1f}" '
            f'cy="{there:.1f}" r="2" fill="{colour}"/><title>{escape(what)}</title></g>'
        )
    return "\n".join([*parts, "</svg>"])


def _ticks(span: int) -> list[int]:
    """Round times, at most eleven of them, from 0 up to `span`."""
    steps = (digit * 10**power for power in count() for digit in (1, 2, 5))
    step = next(step for step in steps if span / step <= 10)
    return list(range(0, span + 1, step))
