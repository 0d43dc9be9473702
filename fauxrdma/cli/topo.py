"""`fauxrdma topo`: list the presets, show a fabric, check a fabric's file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli.options import Format, FormatOption

if TYPE_CHECKING:
    from fauxrdma.topology.graph import Node, Topology

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Presets and fabric files: list, show, validate.",
)

FabricArgument = Annotated[
    str, typer.Argument(help="A preset (see `fauxrdma topo list`) or a YAML file.", show_default=False)
]
NodesArgument = Annotated[
    int | None,
    typer.Option("--nodes", "-n", min=1, help="Nodes. Default: 2 for a preset, all for a file.", show_default=False),
]


@app.command("list")
def list_presets(format_: FormatOption = Format.TABLE) -> None:
    """List the presets and the rates they come in.

    \b
    Examples:
      fauxrdma topo list
      fauxrdma topo list --format json
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.presets import PRESETS, SPEEDS

    presets = list(PRESETS.values())
    if format_ is Format.JSON:
        print_json(
            {
                "presets": [{"name": p.name, "summary": p.summary, "max_nodes": p.max_nodes} for p in presets],
                "rates_bps": {name: speed.cable.bits_per_s for name, speed in SPEEDS.items()},
            }
        )
        return
    width = max(len(preset.name) for preset in presets)
    for preset in presets:
        print(f"{preset.name:<{width}}  {preset.summary} (up to {preset.max_nodes} nodes)")
    rates = ", ".join(f":{name} ({speed.cable})" for name, speed in SPEEDS.items())
    print(f"\nA rate may follow the name, as in {presets[0].name}:ndr. Rates: {rates}; hdr if none is given.")


@app.command("show")
def show(
    fabric: FabricArgument,
    nodes: NodesArgument = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Draw it into this file.", show_default=False)
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Show a fabric: sizes, rates, latencies, and what is plugged in where.

    \b
    Examples:
      fauxrdma topo show seed-rail8
      fauxrdma topo show fat-tree:ndr --nodes 16 --svg fat-tree.svg
      fauxrdma topo show my-fabric.yaml --format json
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.topology.loading import load_topology

    topology = load_topology(fabric, nodes=nodes)
    if svg is not None:
        from fauxrdma.report.topology_svg import topology_svg

        try:
            svg.write_text(topology_svg(topology) + "\n")
        except OSError as error:
            raise ConfigError(f"--svg {svg}: cannot write there: {error.strerror}") from None
    if format_ is Format.JSON:
        print_json(topology.to_dict())
    else:
        print("\n".join(_describe(topology)))


@app.command("validate")
def validate(fabric: FabricArgument, nodes: NodesArgument = None, format_: FormatOption = Format.TABLE) -> None:
    """Check a fabric's file (or that a preset holds so many nodes). Exit code 2 and one line if it cannot be used.

    \b
    Examples:
      fauxrdma topo validate my-fabric.yaml
      fauxrdma topo validate fat-tree --nodes 72
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.topology.loading import load_topology

    topology = load_topology(fabric, nodes=nodes)
    topology.validate()
    if format_ is Format.JSON:
        print_json({"fabric": fabric, "valid": True, **_sizes(topology)})
    else:
        sizes = _sizes(topology)
        print(f"{fabric} is valid: {sizes['hosts']} nodes, {sizes['switches']} switches, {sizes['cables']} cables")


def _sizes(topology: Topology) -> dict[str, int]:
    return {
        "hosts": topology.hosts,
        "hcas": len(topology.hcas()),
        "switches": len(topology.switches()),
        "cables": sum(1 for link in topology.links if link.kind == "cable") // 2,
    }


def _describe(topology: Topology) -> list[str]:
    from fauxrdma.topology.graph import NodeKind
    from fauxrdma.units import format_ns

    cables = [link for link in topology.links if link.kind == "cable" and link.id < link.reverse]
    pcie = sorted({str(link.rate) for link in topology.links if link.kind == "pcie"})
    rates = sorted({str(link.rate) for link in cables})
    trunks = [c for c in cables if topology.nodes[c.src].kind is topology.nodes[c.dst].kind]
    lines = [
        f"{topology.name}: {topology.description}",
        f"  nodes     {topology.hosts}, each with {topology.gpus_per_host} GPUs and {topology.hcas_per_host} HCAs "
        f"behind PCIe at {' and '.join(pcie) or 'no rate'}",
        f"  switches  {len(topology.switches())}, {topology.switching}, {format_ns(topology.switch_latency_ns)} each, "
        f"MTU {topology.mtu}",
        f"  cables    {len(cables) - len(trunks)} to HCAs, {len(trunks)} between switches; {' and '.join(rates)}",
        "",
    ]
    rows = []
    for switch in reversed(topology.switches()):
        up, down, beside = _neighbours(topology, switch)
        hosts: dict[int, list[int]] = {}
        for name in down:
            node = topology.nodes[name]
            if node.kind is NodeKind.HCA and node.host is not None:
                hosts.setdefault(node.host, []).append(node.index)
        parts = [f"{name} x{count}" if count > 1 else name for name, count in {**up, **beside}.items()]
        parts += [f"{n} x{c}" if c > 1 else n for n, c in down.items() if topology.nodes[n].kind is NodeKind.SWITCH]
        parts += [f"n{host}.hca{_ranges(indices)}" for host, indices in hosts.items()]
        rows.append((switch.name, _ratio(topology, switch, up, down), ", ".join(parts)))
    if any(ratio for _, ratio, _ in rows):
        lines.append(
            "  down:up is bandwidth towards the nodes over bandwidth upwards; above 1 the uplinks may be too few"
        )
    width = max((len(name) for name, _, _ in rows), default=0)
    ratio_width = max((len(ratio) for _, ratio, _ in rows), default=0)
    return lines + [f"  {name:<{width}}  {ratio:<{ratio_width}}  {joined}" for name, ratio, joined in rows]


def _neighbours(topology: Topology, switch: Node) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Number of cables to each neighbour: in the tiers above, below (HCAs too), and in the same tier."""
    up: dict[str, int] = {}
    down: dict[str, int] = {}
    beside: dict[str, int] = {}
    for link in topology.links_from(switch.name):
        tier = topology.nodes[link.dst].tier
        own = switch.tier or 0
        side = down if tier is None or tier < own else up if tier > own else beside
        side[link.dst] = side.get(link.dst, 0) + 1
    return up, down, beside


def _ratio(topology: Topology, switch: Node, up: dict[str, int], down: dict[str, int]) -> str:
    """How much more can come in from below than go up: above 1 the uplinks can be a bottleneck."""
    if not up or not down:
        return ""
    rates: dict[bool, int] = {True: 0, False: 0}
    for link in topology.links_from(switch.name):
        if link.dst in up or link.dst in down:
            rates[link.dst in up] += link.rate.bits_per_s
    return f"down:up {rates[False] / rates[True]:.2g}"


def _ranges(numbers: list[int]) -> str:
    """``1-9`` for consecutive numbers, ``1,3,5`` otherwise."""
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))
