"""A topology as an SVG drawing, its cables coloured by load, every part with a native tooltip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from fauxrdma.report.layout import Box, Layout, lay_out
from fauxrdma.report.results import LinkLoad
from fauxrdma.report.ring_svg import RING_DEPTH, RING_STYLE, ring_arcs
from fauxrdma.topology.graph import Link, Node, NodeKind, Topology
from fauxrdma.topology.placement import Placement
from fauxrdma.units import format_bytes, format_ns

__all__ = ["LOAD_STEPS", "SVG_STYLE", "topology_svg"]

LOAD_STEPS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Upper ends of the load classes 1..5; class 0 is a link that carried nothing."""

SVG_STYLE = """
.topo { --ink:#1d2733; --soft:#66758a; --card:#ffffff; --line:#cfd8e3; --box:#eef2f7; --used:#dbe7f6; --edge:#8fa3ba;
  --l0:#cfd8e3; --l1:#4f9bd9; --l2:#35a86b; --l3:#d9a514; --l4:#e07b22; --l5:#d33a3a; }
@media (prefers-color-scheme: dark) { .topo { --ink:#e6edf5; --soft:#93a4b8; --card:#161d26; --line:#2e3947;
  --box:#212b37; --used:#24405f; --edge:#56687d; --l0:#34404f; --l1:#5fb0f0; --l2:#4cc884; --l3:#efc048;
  --l4:#f39a4a; --l5:#f26464; } }
.topo text { font:12px system-ui,sans-serif; fill:var(--ink); text-anchor:middle; }
.topo .small { font-size:10.5px; } .topo .soft { fill:var(--soft); }
.topo .host { fill:none; stroke:var(--line); stroke-width:1.2; }
.topo .dev { fill:var(--box); stroke:var(--line); } .topo .dev.used { fill:var(--used); stroke:var(--edge); }
.topo .switch { fill:var(--box); stroke:var(--line); } .topo .switch.used { fill:var(--used); stroke:var(--edge); }
.topo .idle { fill:var(--soft); }
.topo path { fill:none; } .topo path.hit { stroke:transparent; stroke-width:11; }
.topo .l0 { stroke:var(--l0); stroke-width:1; } .topo .l1 { stroke:var(--l1); stroke-width:2.2; }
.topo .l2 { stroke:var(--l2); stroke-width:2.6; } .topo .l3 { stroke:var(--l3); stroke-width:3; }
.topo .l4 { stroke:var(--l4); stroke-width:3.4; } .topo .l5 { stroke:var(--l5); stroke-width:3.8; }
.topo g.wire:hover path:not(.hit) { stroke-width:6; }
""".strip()


@dataclass(slots=True)
class _Wire:
    """All links, both directions, between two devices."""

    a: str
    b: str
    links: list[Link] = field(default_factory=list)
    loads: list[LinkLoad] = field(default_factory=list)


def topology_svg(
    topology: Topology,
    links: Sequence[LinkLoad] = (),
    *,
    placement: Placement | None = None,
    title: str = "",
) -> str:
    """One ``<svg>`` element, complete with its style. Without `links` all cables have the colour of no load. With
    a `placement` the GPUs show their ranks, and arcs below them the ring in rank order.

    Load is utilisation; where all of it is 0 (nothing was shaped) it is bytes relative to the busiest link.
    """
    layout = lay_out(topology)
    loads = {link.name: link for link in links}
    levels = _levels(links)
    wires = _wires(topology, layout, loads)
    ranks = {} if placement is None else {place.gpu_name: rank for rank, place in enumerate(placement.places)}
    arcs = [] if placement is None else ring_arcs(topology, layout, placement)
    height = layout.height + (RING_DEPTH if arcs else 0.0)
    used = {end for link in links for end in (link.src, link.dst)} | set(ranks)
    parts = [
        f'<svg class="topo" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {layout.width:.0f} {height:.0f}" '
        f'width="{layout.width:.0f}" role="img" aria-label="{escape(title or topology.name)}">',
        f"<style>{SVG_STYLE}{RING_STYLE if arcs else ''}</style>",
    ]
    parts += [_host(host, box) for host, box in layout.hosts.items()]
    wires.sort(key=lambda wire: max((levels[load.name] for load in wire.loads), default=0))  # the busy ones on top
    parts += [_wire(topology, layout, wire, levels) for wire in wires]
    parts += [
        _device(topology, topology.nodes[name], box, name in used, layout.pitch, ranks.get(name))
        for name, box in layout.boxes.items()
    ]
    parts += arcs
    if layout.left_out:
        x, y = layout.width - 90, height - 4
        parts.append(f'<text class="soft" x="{x:.0f}" y="{y:.0f}">and {layout.left_out} more nodes</text>')
    parts.append("</svg>")
    return "\n".join(parts)


def _levels(links: Sequence[LinkLoad]) -> dict[str, int]:
    shaped = any(link.utilisation > 0 for link in links)
    most = max((link.nbytes for link in links), default=0)
    levels = {}
    for link in links:
        load = link.utilisation if shaped else link.nbytes / max(1, most)
        levels[link.name] = next((i for i, step in enumerate(LOAD_STEPS, 1) if load <= step + 1e-9), len(LOAD_STEPS))
    return levels


def _wires(topology: Topology, layout: Layout, loads: Mapping[str, LinkLoad]) -> list[_Wire]:
    wires: dict[tuple[str, str], _Wire] = {}
    for link in topology.links:
        if link.src not in layout.boxes or link.dst not in layout.boxes:
            continue
        key = (min(link.src, link.dst), max(link.src, link.dst))
        wire = wires.setdefault(key, _Wire(*key))
        wire.links.append(link)
        if link.name in loads:
            wire.loads.append(loads[link.name])
    return list(wires.values())


def _wire(topology: Topology, layout: Layout, wire: _Wire, levels: Mapping[str, int]) -> str:
    upper, lower = layout.boxes[wire.a], layout.boxes[wire.b]
    if upper.y > lower.y:
        upper, lower = lower, upper
    if upper.y == lower.y:  # switches of one tier: an arc between them
        left, right = sorted((upper, lower), key=lambda box: box.x)
        y = left.y + left.h / 2
        path = f"M{left.x + left.w / 2:.1f} {y:.1f} L{right.left:.1f} {y:.1f}"
    elif topology.nodes[wire.a].kind is NodeKind.PCIE or topology.nodes[wire.b].kind is NodeKind.PCIE:
        x = min(max(lower.x, upper.left + 3), upper.left + upper.w - 3) if upper.w > lower.w else upper.x
        path = f"M{x:.1f} {upper.bottom:.1f} L{_inside(lower, x):.1f} {lower.y:.1f}"
    else:
        bend = (lower.y - upper.bottom) * 0.5
        path = (
            f"M{upper.x:.1f} {upper.bottom:.1f} C{upper.x:.1f} {upper.bottom + bend:.1f} "
            f"{lower.x:.1f} {lower.y - bend:.1f} {lower.x:.1f} {lower.y:.1f}"
        )
    level = max((levels[load.name] for load in wire.loads), default=0)
    return (
        f'<g class="wire"><path class="l{level}" d="{path}"/><path class="hit" d="{path}"/>'
        f"<title>{escape(_wire_tooltip(wire))}</title></g>"
    )


def _inside(box: Box, x: float) -> float:
    return min(max(x, box.left + 3), box.left + box.w - 3)


def _wire_tooltip(wire: _Wire) -> str:
    cables = len(wire.links) // 2
    first = wire.links[0]
    what = "PCIe" if first.kind == "pcie" else ("cable" if cables == 1 else f"{cables} cables, each")
    length = "" if first.kind == "pcie" else f", {first.length_m:g} m"
    lines = [f"{wire.a} - {wire.b}: {what} {first.rate.in_gbps:g} Gb/s{length}"]
    for load in sorted(wire.loads, key=lambda load: load.name):
        use = f", {load.utilisation:.0%} used" if load.utilisation else ""
        lines.append(f"{load.name}: {format_bytes(load.nbytes)}{use}")
    if not wire.loads:
        lines.append("carried nothing")
    return "\n".join(lines)


def _host(host: int, box: Box) -> str:
    return (
        f'<rect class="host" x="{box.left:.1f}" y="{box.y:.1f}" width="{box.w:.1f}" height="{box.h:.1f}" rx="9"/>'
        f'<text class="soft" x="{box.x:.1f}" y="{box.bottom - 7:.1f}">node {host}</text>'
    )


def _device(topology: Topology, node: Node, box: Box, used: bool, pitch: float, rank: int | None) -> str:
    style = "switch" if node.kind is NodeKind.SWITCH else "dev"
    labels = {
        NodeKind.GPU: f"G{node.index}",
        NodeKind.HCA: f"{node.index}",
        NodeKind.PCIE: "",
        NodeKind.MEMORY: "memory",
    }
    label = labels.get(node.kind, node.name)
    if node.kind is NodeKind.HCA and pitch > 40:
        label = f"hca{node.index}"
    if rank is not None:
        label = f"r{rank}"
    text = ""
    if label:
        classes = " ".join((["small"] if node.kind is not NodeKind.SWITCH else []) + ([] if used else ["idle"]))
        text = f'<text class="{classes}" x="{box.x:.1f}" y="{box.y + box.h / 2 + 4:.1f}">{escape(label)}</text>'
    return (
        f'<g><rect class="{style}{" used" if used else ""}" x="{box.left:.1f}" y="{box.y:.1f}" width="{box.w:.1f}" '
        f'height="{box.h:.1f}" rx="{3 if node.kind is NodeKind.PCIE else 5}"/>{text}'
        f"<title>{escape(_device_tooltip(topology, node) + ('' if rank is None else f', rank {rank}'))}</title></g>"
    )


def _device_tooltip(topology: Topology, node: Node) -> str:
    if node.kind is NodeKind.SWITCH:
        ports = "" if node.radix is None else f", {node.radix} ports"
        return f"{node.name}: switch{ports}, {topology.switching}, {format_ns(topology.switch_latency_ns)}"
    what = {NodeKind.GPU: "GPU", NodeKind.HCA: "HCA", NodeKind.PCIE: "PCIe switch"}.get(node.kind, "host memory")
    storage = " for storage" if node.kind is NodeKind.HCA and not topology.gpus_of(node) else ""
    return f"{node.name}: {what}{storage}"
