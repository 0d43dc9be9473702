"""`fauxrdma routes`: the path between two ends, hop by hop, with the reason for each; or how evenly all are spread."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fauxrdma.cli.options import FabricArgument, Format, FormatOption
from fauxrdma.errors import ConfigError

if TYPE_CHECKING:
    from fauxrdma.fabric.route_balance import Balance
    from fauxrdma.fabric.route_trace import TracedRoute
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.fabric.sweep import Sweep

__all__ = ["routes"]

End = Annotated[
    str | None,
    typer.Argument(help="n0.hca1, n3.gpu2, n0.mem, n0.mem@hca2, a LID or a GID.", show_default=False, metavar="[END]"),
]


def _qp_num(text: str | int) -> int:
    """A queue pair number, decimal or as devices show it (0x4d21)."""
    try:
        number = int(str(text), 0)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number such as 19745 or 0x4d21") from None
    if not 0 <= number <= 0xFFFFFF:
        raise typer.BadParameter(f"{text}: queue pair numbers have 24 bits, 0 to 0xffffff")
    return number


def routes(
    fabric: FabricArgument,
    source: End = None,
    target: End = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", "-n", min=1, help="Nodes. Default: 2 for a preset, all for a file.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--routing",
            metavar="ENGINE",
            help="minhop, updn, ftree or dfsssp; updn and ftree take roots: updn:roots=spine1,spine2. On RoCE v2 ecmp, "
            "spray or adaptive. Default: the fabric's.",
            show_default=False,
        ),
    ] = None,
    down: Annotated[
        list[str] | None,
        typer.Option("--down", metavar="LINK", help="A cable that has failed; may be repeated.", show_default=False),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="How all routes are spread over the cables.")] = False,
    qp_num: Annotated[
        int,
        typer.Option(
            "--qp-num", parser=_qp_num, metavar="NUMBER", help="On RoCE v2: whose flow, by queue pair number."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Seed of every random choice of the fabric.")] = 0,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show the route between two ends, with what each hop costs and why it goes this way.

    Each end is an HCA (n0.hca1: the memory of its first GPU), a LID or a GID; a GPU (n3.gpu2: by the HCA it uses) or
    host memory (n0.mem: by hca1); or one of these or the HCA's own memory by an HCA of the node (n3.gpu2@hca5,
    n0.mem@hca2, n0.dm@hca2). With --all, count the routes over the cables instead: on InfiniBand what the forwarding
    tables say; on RoCE v2 what the engine chooses for a flow from every HCA to every other (ecmp: by its hash; spray:
    split evenly; adaptive: the least loaded way, one flow after the other). With --down, cables fail first and the
    subnet manager sweeps.

    \b
    Examples:
      fauxrdma routes seed-rail8 n0.gpu0 n1.gpu1
      fauxrdma routes seed-rail8,gpudirect=off n0.mem@hca2 n1.gpu0
      fauxrdma routes fat-tree n0.hca1 n5.hca3 --nodes 6 --routing ftree
      fauxrdma routes ring n0.hca1 n2.hca1 --nodes 4 --routing updn:roots=leaf1
      fauxrdma routes seed-rail8 n0.hca1 n1.hca2 --down leaf1->spine1:1
      fauxrdma routes seed-rail8 --all --nodes 8 --format json
      fauxrdma routes examples/fabrics/roce-two-tier.yaml --nodes 4 --all --routing spray
      fauxrdma routes examples/fabrics/roce-two-tier.yaml n0.hca1 n3.hca2 --nodes 4 --qp-num 0x4d21
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.fabric.route_balance import balance
    from fauxrdma.fabric.route_trace import trace_route
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.topology.loading import load_topology

    if not all_ and (source is None or target is None):
        raise ConfigError("name both ends of the route (n0.hca1 n1.hca2), or give --all")
    manager = SubnetManager(load_topology(fabric, nodes=nodes), seed, engine)
    sweeps = _fail(manager, down or [])
    for line in (*manager.routes.messages, *manager.routes.warnings):
        print(f"fauxrdma: {line}", file=sys.stderr)
    about: dict[str, Any] = {
        "fabric": manager.topology.name,
        "routing": {"asked": manager.routes.asked, "used": manager.routes.engine},
        "messages": list(manager.routes.messages),
        "warnings": list(manager.routes.warnings),
        "sweep": _sweep_json(sweeps),
    }
    if all_:
        found = balance(manager, qp_num)
        if format_ is Format.JSON:
            print_json({**about, **_balance_json(found)})
        else:
            _print_balance(manager, found, sweeps)
        return
    assert source is not None
    assert target is not None
    traced = trace_route(manager, source, target, qp_num)
    if format_ is Format.JSON:
        hops = [{**asdict(hop), "rate": None, "rate_bps": hop.rate.bits_per_s} for hop in traced.hops]
        for hop in hops:
            del hop["rate"]
        route = {**asdict(traced), "rate_bps": traced.rate.bits_per_s, "hops": hops}
        del route["rate"]
        print_json({**about, "route": route})
    else:
        _print_route(traced, sweeps)


def _fail(manager: SubnetManager, cables: list[str]) -> list[Sweep]:
    """Have cables fail, all at the same time, and let the manager sweep."""
    from fauxrdma.fabric.sweep import LivingSubnet

    subnet = LivingSubnet(manager)
    for cable in cables:
        subnet.link_down(cable, 0)
    while (due := subnet.next_ns()) is not None:
        subnet.poll(due)
    return subnet.sweeps[:1]


def _sweep_json(sweeps: list[Sweep]) -> dict[str, Any] | None:
    if not sweeps:
        return None
    sweep = sweeps[0]
    return {
        "down": list(sweep.down),
        "outage_ns": sweep.ended_ns,
        "changed_entries": [{"switch": switch, "lid": lid} for switch, lid in sorted(sweep.changed)],
    }


def _balance_json(found: Balance) -> dict[str, Any]:
    return {
        "routes": found.routes,
        "counted": found.counted,
        "cables": [
            {"kind": kind, "cables": count, "least": least, "mean": mean, "most": most}
            for kind, (count, least, mean, most) in found.by_kind.items()
        ],
        "by_switches": [{"switches": number, "routes": count} for number, count in found.by_switches.items()],
    }


def _print_route(traced: TracedRoute, sweeps: list[Sweep]) -> None:
    from rich.table import Table

    from fauxrdma.cli.output import console
    from fauxrdma.units import format_ns

    table = Table(box=None, pad_edge=False)
    for heading in ("from", "port", "to", "rate", "adds", "why"):
        table.add_column(heading, justify="right" if heading in ("port", "rate", "adds") else "left")
    for hop in traced.hops:
        rate = f"{hop.rate.in_gbps:.1f} Gb/s"
        table.add_row(hop.at, str(hop.port), hop.to, rate, format_ns(hop.latency_ns), hop.reason)
    out = console()
    _print_sweeps(sweeps)
    out.print(
        f"{traced.source} to {traced.target}: LID {traced.slid} to {traced.dlid}, {traced.switches} switches, "
        f"{format_ns(traced.latency_ns)}, {traced.rate.in_gbps:.1f} Gb/s of payload, {traced.engine}, "
        f"virtual lane {traced.lane}\n"
    )
    out.print(table)


def _print_balance(manager: SubnetManager, found: Balance, sweeps: list[Sweep]) -> None:
    from rich.table import Table

    from fauxrdma.cli.output import console

    out = console()
    _print_sweeps(sweeps)
    out.print(f"{manager.topology.name}: {found.routes} routes between HCAs by {manager.routes.engine}")
    crossing = ", ".join(f"{count} cross {number}" for number, count in found.by_switches.items())
    out.print(f"switches: {crossing}")
    out.print(f"counted: {found.counted}\n")
    table = Table(box=None, pad_edge=False)
    table.add_column("cables")
    for heading in ("number", "least routes", "mean", "most"):
        table.add_column(heading, justify="right")
    for kind, (count, least, mean, most) in found.by_kind.items():
        table.add_row(kind, str(count), f"{least:g}", f"{mean:.1f}", f"{most:g}")
    out.print(table)


def _print_sweeps(sweeps: list[Sweep]) -> None:
    from fauxrdma.cli.output import console
    from fauxrdma.units import format_ns

    for sweep in sweeps:
        console().print(
            f"down: {', '.join(sweep.down)}; after {format_ns(sweep.ended_ns)} the sweep has changed "
            f"{len(sweep.changed)} forwarding entries"
        )
