"""Graphs of nodes and links by people who have no word for HCA: which are hosts, which switches, how fast the links.

The rules, the first that says something wins, are documented in docs/formats.md: a node's kind, type, role or group;
its name; else a node with one link is a host and all others are switches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.foreign import ForeignCable, ForeignFabric, ForeignSwitch, HcaPort
from fauxrdma.topology.formats.records import Record
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.graph import TIER_NAMES
from fauxrdma.units import Rate, parse_length_m, parse_rate

__all__ = ["GraphEdge", "GraphNode", "read_graph"]

_ROLE_KEYS = ("kind", "type", "role", "group")
_HOST = re.compile(r"^(?:host|server|client|compute|node|nic|gpu|hca|linux|worker|dgx|hgx|n)(?![a-z])", re.IGNORECASE)
_SWITCH = re.compile(
    r"^(?:switch|sw|leaf|spine|core|super-?spine|tor|rsw|router|bridge|ovs-bridge|aggregation|agg|edge)(?![a-z])",
    re.IGNORECASE,
)
_TIERS = {**{name: tier for tier, name in enumerate(TIER_NAMES)}, "tor": 0, "superspine": 2, "super-spine": 2}
_TIER = re.compile(r"^(leaf|spine|core|tor|super-?spine)(?![a-z])", re.IGNORECASE)
_PORT = re.compile(r"^.*?(\d{1,4})$")
_OWN_HCA = re.compile(r"^(.+)\.(hca\d+)$")
_RATE_KEYS = ("rate", "bandwidth", "speed", "capacity")


@dataclass(slots=True)
class GraphNode:
    """A node, what the file says about it, and where it stands."""

    name: str
    data: Record
    line: int
    column: int


@dataclass(slots=True)
class GraphEdge:
    """A link between two nodes, with the names of the interfaces if the file says them."""

    a: str
    b: str
    a_interface: str | None
    b_interface: str | None
    data: Record
    line: int
    column: int


def read_graph(source: Source, name: str, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> ReadFabric:
    """The fabric of such a graph. Raises ConfigError with the position of what cannot be part of one."""
    degree = Counter(end for edge in edges for end in (edge.a, edge.b))
    is_switch = {node.name: _is_switch(node, degree[node.name]) for node in nodes}
    fabric = ForeignFabric(name, f"Read from {source.path}")
    for node in nodes:
        if is_switch[node.name]:
            ports = node.data.get("radix", node.data.get("ports"))
            fabric.switches[node.name] = ForeignSwitch(node.name, ports if _is_count(ports) else None, _tier(node))
    taken: set[tuple[str, int]] = set()
    for number, edge in enumerate(edges):
        if edge.a == edge.b:
            raise source.refusal(edge.line, edge.column, f"a link from {edge.a} to itself")
        if not (is_switch[edge.a] or is_switch[edge.b]):
            raise source.refusal(
                edge.line,
                edge.column,
                f"this link joins {edge.a} and {edge.b}, which look like hosts: hosts are cabled to switches here "
                "(give the switch among them the kind 'switch')",
            )
        ends = [
            _end(end, interface, is_switch[end], number, taken)
            for end, interface in ((edge.a, edge.a_interface), (edge.b, edge.b_interface))
        ]
        rate, length_m = _quantities(source, edge)
        fabric.cables.append(ForeignCable(ends[0][0], ends[1][0], ends[0][1], ends[1][1], rate, length_m))
    return fabric.read(source)


def _is_switch(node: GraphNode, links: int) -> bool:
    said = [str(node.data[key]) for key in _ROLE_KEYS if key in node.data]
    for text in (*(word for word in said if word.lower() != "linux"), node.name, *said):
        if _SWITCH.match(text):
            return True
        if _HOST.match(text):
            return False
    return links != 1


def _tier(node: GraphNode) -> int | None:
    told = node.data.get("tier")
    if isinstance(told, int) and 0 <= told < 64:
        return int(told)
    for text in (str(told), *(str(node.data.get(key)) for key in _ROLE_KEYS), node.name):
        match = _TIER.match(text)
        if match is not None:
            return _TIERS[match.group(1).lower()]
    return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 4096


def _end(
    node: str, interface: str | None, is_switch: bool, number: int, taken: set[tuple[str, int]]
) -> tuple[str | HcaPort, int | None]:
    """The end of a cable and its port. An interface's number is the port, where no other interface had it before."""
    if not is_switch:
        own = _OWN_HCA.match(node)
        if own is not None:
            return HcaPort(own.group(1), own.group(2)), None
        return HcaPort(node, interface if interface is not None else f"{number}"), None
    match = _PORT.match(interface or "")
    port = int(match.group(1)) if match is not None else 0
    if port < 1 or (node, port) in taken:
        return node, None
    taken.add((node, port))
    return node, port


def _quantities(source: Source, edge: GraphEdge) -> tuple[Rate | None, float | None]:
    rate = length_m = None
    try:
        for key in _RATE_KEYS:
            if isinstance(edge.data.get(key), str):
                rate = rate or parse_rate(edge.data[key])
            elif _is_number(edge.data.get(f"{key}_gbps")):
                rate = rate or Rate.gbps(edge.data[f"{key}_gbps"])
            elif _is_number(edge.data.get(f"{key}_bps")):
                rate = rate or Rate(round(edge.data[f"{key}_bps"]))
        if isinstance(edge.data.get("length"), str):
            length_m = parse_length_m(edge.data["length"])
        elif _is_number(edge.data.get("length_m")):
            length_m = float(edge.data["length_m"])
    except ConfigError as error:
        raise source.refusal(edge.line, edge.column, f"of the link {edge.a} to {edge.b}: {error}") from None
    return rate, length_m


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e18
