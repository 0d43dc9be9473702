"""The comparison as one HTML file: no external assets, light and dark, nothing that needs a script to be read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fauxrdma.report.building import DEBT_LIMIT_PERCENT
from fauxrdma.report.dimensions import is_product, value_of, varied
from fauxrdma.report.histogram import histogram_svg, shared_range
from fauxrdma.report.notes import common_notes
from fauxrdma.report.product_table import product_columns
from fauxrdma.report.results import Comparison, RunResult
from fauxrdma.report.table import comparison_rows
from fauxrdma.report.topology_svg import LOAD_STEPS, topology_svg
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.placement import Placement
from fauxrdma.topology.rank_places import RankPlace
from fauxrdma.units import format_bytes, format_ns

__all__ = ["render_html"]

_LINKS_LISTED = 16


def render_html(comparison: Comparison, topologies: Mapping[str, Topology]) -> str:
    """The report as text. `topologies` has the graph of each run under the run's `name`."""
    environment = Environment(
        loader=PackageLoader("fauxrdma.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(ns=format_ns, size=format_bytes)
    span = shared_range([run.main_all_reduce_ns for run in comparison.runs])
    return environment.get_template("report.html.j2").render(
        comparison=comparison,
        title=_title(comparison.runs),
        rows=[] if is_product(comparison.runs) else comparison_rows(comparison.runs),
        columns=product_columns(comparison.runs) if is_product(comparison.runs) else [],
        notes=common_notes(comparison.runs),
        panels=[_panel(run, topologies[run.name], span) for run in comparison.runs],
        load_steps=LOAD_STEPS,
        debt_limit=DEBT_LIMIT_PERCENT,
        shaped=all(run.clock != "none" for run in comparison.runs),
        commands=list(dict.fromkeys(shlex.join(run.command) for run in comparison.runs)),
    )


def _title(runs: Sequence[RunResult]) -> str:
    if not is_product(runs):
        return " against ".join(run.name for run in runs)
    counts = ", ".join(f"{len({value_of(run, name) for run in runs})} {name}s" for name in varied(runs))
    return f"{len(runs)} combinations: {counts}"


def _panel(run: RunResult, topology: Topology, span: tuple[float, float]) -> dict[str, Any]:
    histogram = histogram_svg(run.main_all_reduce_ns, span, run.time_name) if run.main_all_reduce_ns else ""
    placement = Placement(run.placement, tuple(RankPlace(seat.node, seat.gpu, seat.hca) for seat in run.places))
    return {
        "run": run,
        "drawing": Markup(
            topology_svg(topology, run.links, placement=placement, title=f"{run.name}: {run.description}")
        ),
        "histogram": Markup(histogram),
        "links": run.links[:_LINKS_LISTED],
        "more_links": max(0, len(run.links) - _LINKS_LISTED),
    }
