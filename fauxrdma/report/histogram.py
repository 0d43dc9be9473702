"""A histogram of durations as inline SVG, on an axis that several runs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fauxrdma.units import format_ns

__all__ = ["histogram_svg", "shared_range"]

_BINS = 44
_WIDTH, _HEIGHT = 1040.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 40.0, 20.0, 22.0, 26.0
_TICKS = 6
_CHARACTER_W = 6.6


def shared_range(samples: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The axis for all of `samples` (ns): from the smallest value to the largest 99th percentile, widened a little.

    A few outliers would squeeze everything else into one bar; they are counted in the last one.
    """
    filled = [np.asarray(values, dtype=np.float64) for values in samples if len(values)]
    if not filled:
        return 0.0, 1.0
    low = min(float(values.min()) for values in filled)
    high = max(float(np.percentile(values, 99)) for values in filled)
    pad = max(0.04 * (high - low), 0.005 * high, 1.0)
    return max(0.0, low - pad), high + pad


def histogram_svg(durations_ns: Sequence[float], span: tuple[float, float], time_name: str) -> str:
    """One ``<svg>`` with the distribution of `durations_ns` over `span`, its median and its 99th percentile marked."""
    low, high = span
    values = np.asarray(durations_ns, dtype=np.float64)
    counts, edges = np.histogram(np.clip(values, low, high), bins=_BINS, range=(low, high))
    tallest = max(1, int(counts.max()))
    plot_w, plot_h = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    base = _TOP + plot_h

    def x_of(value: float) -> float:
        return _LEFT + (min(max(value, low), high) - low) / (high - low) * plot_w

    parts = [
        f'<svg class="histogram" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" '
        f'aria-label="histogram of {len(values)} durations">'
    ]
    bar_w = plot_w / _BINS
    for count, start, end in zip(counts, edges[:-1], edges[1:], strict=True):
        if not count:
            continue
        h = plot_h * int(count) / tallest
        more = " or more" if end >= high and values.max() > high else ""
        parts.append(
            f'<rect class="bar" x="{x_of(float(start)) + 0.7:.1f}" y="{base - h:.1f}" width="{bar_w - 1.4:.1f}" '
            f'height="{h:.1f}" rx="1.5"><title>{int(count)} of {len(values)}: {format_ns(float(start))} to '
            f"{format_ns(float(end))}{more}</title></rect>"
        )
    parts.append(f'<line class="axis" x1="{_LEFT}" y1="{base}" x2="{_WIDTH - _RIGHT}" y2="{base}"/>')
    for place, value in enumerate(np.linspace(low, high, _TICKS)):
        anchor = {0: "tick start", _TICKS - 1: "tick end"}.get(place, "tick")
        label = format_ns(float(value))
        parts.append(f'<text class="{anchor}" x="{x_of(float(value)):.1f}" y="{base + 15:.1f}">{label}</text>')
    parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{_TOP + 5}">{tallest}</text>')
    taken = 0.0
    for name, percent in (("p50", 50), ("p99", 99)):
        value = float(np.percentile(values, percent))
        x = x_of(value)
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{base}"/>')
        label = f"{name} {format_ns(value)} {time_name}"
        width = _CHARACTER_W * len(label) + 6
        # To the left of its line while that is free, else to the right; left out where neither is.
        if x - width >= taken:
            parts.append(f'<text class="marked end" x="{x - 5:.1f}" y="{_TOP - 8}">{label}</text>')
            taken = x
        elif x >= taken and x + width <= _WIDTH:
            parts.append(f'<text class="marked start" x="{x + 5:.1f}" y="{_TOP - 8}">{label}</text>')
            taken = x + width
    parts.append("</svg>")
    return "\n".join(parts)
