"""GraphML, as networkx, igraph, Gephi and yEd read it (graphml.graphdrawing.org): every device and every link.

Hosts' insides are nodes and edges like all others, an edge is a full-duplex cable or lane bundle, and all fields of the
graph are typed `<data>`; what is no number, text or truth value is JSON, under a key whose id begins with ``json.``.
A file without our graph data is read by `foreign_graph`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from fauxrdma.topology.formats.foreign_graph import GraphEdge, GraphNode, read_graph
from fauxrdma.topology.formats.records import Inside, Record, Records, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.formats.xml_document import Element, attributes, escaped, parse_xml
from fauxrdma.topology.graph import Topology

__all__ = ["read_graphml", "write_graphml"]

_TYPES = {bool: "boolean", int: "long", float: "double", str: "string"}
_JSON = "json."
_OURS = "switch_latency_ns"
"""Graph data that only our files have."""


def write_graphml(topology: Topology) -> str:
    """The whole topology as one undirected GraphML graph. Raises ConfigError for a name that XML cannot hold."""
    records = take_apart(topology)
    insides = [records.inside(host) for host in sorted(records.insides)]
    nodes = [*records.shared, *(node for inside in insides for node in inside.nodes)]
    edges = [*(link for inside in insides for link in inside.links), *records.cables]
    keys = {
        "graph": _keys("graph", [records.fabric], ()),
        "node": _keys("node", nodes, ("name",)),
        "edge": _keys("edge", edges, ("src", "dst")),
    }
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    for domain, known in keys.items():
        for name, (key, kind) in known.items():
            lines.append(f"  <key{attributes({'id': key, 'for': domain, 'attr.name': name, 'attr.type': kind})}/>")
    lines.append('  <graph id="fabric" edgedefault="undirected">')
    lines += [f"    {data}" for data in _data(records.fabric, keys["graph"])]
    for node in nodes:
        lines.append(f"    <node{attributes({'id': node['name']})}>{''.join(_data(node, keys['node']))}</node>")
    for number, edge in enumerate(edges):
        ends = attributes({"id": f"e{number}", "source": edge["src"], "target": edge["dst"]})
        lines.append(f"    <edge{ends}>{''.join(_data(edge, keys['edge']))}</edge>")
    return "\n".join([*lines, "  </graph>", "</graphml>", ""])


def _keys(domain: str, records: Iterable[Record], native: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """For every field, the id of its key and its type. A field that holds several types is JSON."""
    kinds: dict[str, set[str]] = {}
    for record in records:
        for name, value in record.items():
            if name not in native:
                found = kinds.setdefault(name, set())
                if value is not None:
                    found.add(_TYPES.get(type(value), "json") if _plain(value) else "json")
    return {
        name: (f"{domain}.{name}", next(iter(found), "string"))
        if len(found) <= 1 and "json" not in found
        else (f"{_JSON}{domain}.{name}", "string")
        for name, found in kinds.items()
    }


def _plain(value: object) -> bool:
    """Whether XML keeps this value as it is: no text with control characters."""
    return not isinstance(value, str) or value.isprintable()


def _data(record: Record, keys: dict[str, tuple[str, str]]) -> Iterator[str]:
    for name, (key, kind) in keys.items():
        value = record.get(name)
        if value is not None:
            text = json.dumps(value) if key.startswith(_JSON) else _said(value)
            number = kind in ("long", "double", "boolean")  # has nothing to escape
            yield f'<data key="{key}">{text if number else escaped(text)}</data>'


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_graphml(source: Source) -> ReadFabric:
    """The fabric of a GraphML file. Raises ConfigError with line and column for what is malformed."""
    root = parse_xml(source, "graphml")
    graph = next(root.all("graph"), None)
    if graph is None:
        raise source.refusal(root.line, root.column, "<graphml> holds no <graph>")
    keys = {key.get(source, "id"): key for key in root.all("key")}
    fabric = _values(source, graph, keys)
    nodes: dict[str, Record] = {}
    for element in graph.all("node"):
        name = element.get(source, "id")
        if name in nodes:
            raise source.refusal(element.line, element.column, f"there are two nodes {name!r}")
        nodes[name] = _values(source, element, keys)
    edges = []
    for element in graph.all("edge"):
        ends = [element.get(source, "source"), element.get(source, "target")]
        for end in ends:
            if end not in nodes:
                raise source.refusal(element.line, element.column, f"this edge ends at {end!r}, which is no <node>")
        edges.append((element, ends, _values(source, element, keys)))
    if _OURS in fabric:
        return ReadFabric(source.topology(_records(fabric, nodes, edges, keys)))
    return read_graph(
        source,
        str(graph.attributes.get("id") or "graphml"),
        [
            GraphNode(name, data, element.line, element.column)
            for (name, data), element in zip(nodes.items(), graph.all("node"), strict=True)
        ],
        [GraphEdge(a, b, None, None, data, element.line, element.column) for element, (a, b), data in edges],
    )


def _records(
    fabric: Record,
    nodes: dict[str, Record],
    edges: list[tuple[Element, list[str], Record]],
    keys: dict[str, Element],
) -> Records:
    def unsaid(domain: str) -> Record:
        found = [_name(key) for key in keys.values() if key.attributes.get("for") == domain]
        return {name: None for name in found if name not in ("name", "back")}

    insides: dict[int, Inside] = {}
    records = Records({**unsaid("graph"), "name": "", **fabric})
    host_of: dict[str, Any] = {}
    for name, data in nodes.items():
        node = {"name": name, **unsaid("node"), **data}
        host_of[name] = node.get("host")
        if host_of[name] is None:
            records.shared.append(node)
        else:
            insides.setdefault(host_of[name], Inside()).nodes.append(node)
    for _, (a, b), data in edges:
        within = host_of[a] is not None and host_of[a] == host_of[b]
        (insides[host_of[a]].links if within else records.cables).append({"src": a, "dst": b, **unsaid("edge"), **data})
    records.insides = {**insides}
    return records


def _name(key: Element) -> str:
    return key.attributes.get("attr.name") or key.attributes["id"]


def _values(source: Source, element: Element, keys: dict[str, Element]) -> Record:
    """The `<data>` of an element by the names of their keys."""
    values: Record = {}
    for data in element.all("data"):
        key = keys.get(data.get(source, "key"))
        if key is None:
            raise source.refusal(data.line, data.column, f"there is no <key> with the id {data.attributes['key']!r}")
        values[_name(key)] = _value(source, data, key)
    return values


def _value(source: Source, data: Element, key: Element) -> Any:
    kind = key.attributes.get("attr.type", "string")
    try:
        if key.attributes["id"].startswith(_JSON):
            return json.loads(data.text)
        if kind in ("int", "long"):
            return int(data.text)
        if kind in ("float", "double"):
            return float(data.text)
        if kind == "boolean":
            return {"true": True, "1": True, "false": False, "0": False}[data.text.strip().lower()]
    except (ValueError, KeyError, RecursionError):
        what = "JSON" if key.attributes["id"].startswith(_JSON) else f"a {kind}"
        raise source.refusal(
            data.line, data.column, f"{_name(key)!r} must be {what}, not {data.text.strip()[:60]!r}"
        ) from None
    return data.text
