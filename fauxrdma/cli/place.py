"""`fauxrdma place`: which rank sits where, as a table and drawn, without running anything."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import (
    FabricArgument,
    Format,
    FormatOption,
    GpusOption,
    NodesOption,
    OnNodesOption,
    PlacementOption,
    SeedOption,
)
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from fauxrdma.topology.graph import Topology
    from fauxrdma.topology.placement import Placement, RingHops

__all__ = ["place"]


def place(
    fabric: FabricArgument,
    nodes: NodesOption = 2,
    gpus: GpusOption = 1,
    placement: PlacementOption = "block",
    on_nodes: OnNodesOption = None,
    seed: SeedOption = 0,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Draw the fabric with the ranks in it.", show_default=False),
    ] = None,
    places: Annotated[
        Path | None,
        typer.Option("--places", metavar="FILE", help="Write a file of places for --placement.", show_default=False),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show which node, GPU and HCA each rank of a job gets, and how a ring in rank order runs over the fabric.

    \b
    Examples:
      fauxrdma place seed-rail8 --nodes 3 --gpus 2 --placement rail-aligned
      fauxrdma place fat-tree --nodes 6 --on-nodes 0,3,5 --placement cyclic --gpus 2 --svg seats.svg
      fauxrdma place seed-rail8 --gpus 4 --placement random:7 --places my.places
      fauxrdma place seed-rail8 --placement my.places --format json
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.loading import load_topology
    from fauxrdma.topology.placement import choose_placement
    from fauxrdma.topology.placement.choosing import parse_nodes
    from fauxrdma.topology.placement.places_file import places_text

    topology = load_topology(fabric, nodes, gpus)
    wanted = parse_nodes(on_nodes) if on_nodes is not None else None
    chosen = choose_placement(placement, topology, gpus, on_nodes=wanted, seed=seed)
    topology.active_gpus = chosen.active_gpus
    if places is not None:
        _write("--places", places, places_text(chosen.places))
    if svg is not None:
        from fauxrdma.report.topology_svg import topology_svg

        _write("--svg", svg, topology_svg(topology, placement=chosen, title=f"{fabric}, {placement}") + "\n")
    rows = _rows(topology, chosen)
    hops = chosen.ring_hops(topology)
    if format_ is Format.JSON:
        print_json(
            {
                "fabric": fabric,
                "placement": chosen.name,
                "world_size": chosen.world_size,
                "places": chosen.text,
                "ranks": rows,
                "ring": asdict(hops),
            }
        )
        return
    _print(topology, chosen, rows, hops)


def _rows(topology: Topology, placement: Placement) -> list[dict[str, Any]]:
    from fauxrdma.topology.placement import rails_of_places

    rails = rails_of_places(topology, placement.places)
    groups = placement.nodes
    return [
        {
            "rank": rank,
            "node": seat.node,
            "gpu": seat.gpu,
            "hca": seat.hca,
            "leaf": topology.fabric_link(topology.nodes[seat.hca_name]).dst,
            "rail": rails[rank],
            "local_rank": placement.local_rank(rank),
            "group_rank": groups.index(seat.node),
        }
        for rank, seat in enumerate(placement.places)
    ]


def _print(topology: Topology, placement: Placement, rows: list[dict[str, Any]], hops: RingHops) -> None:
    from rich.table import Table

    from fauxrdma.cli.output import console
    from fauxrdma.topology.drawing.seats import draw_ring, draw_seats

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if name == "leaf" else "right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    out = console()
    ranks = f"{placement.world_size} rank{'s' if placement.world_size > 1 else ''}"
    print(f"{placement.name} on {topology.name}: {ranks} on {len(placement.nodes)} of {topology.hosts} nodes\n")
    out.print(table)
    print(f"\n{draw_seats(topology, placement)}\n")
    print(draw_ring(topology, placement))
    print(
        f"ring in rank order: {hops.inside} hops inside nodes (-), {hops.along} along a rail (=), {hops.across} from "
        f"rail to rail (~); of those between nodes {hops.between_leaves} cross a spine"
    )


def _write(option: str, path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{option} {path}: cannot write there: {error.strerror}") from None
