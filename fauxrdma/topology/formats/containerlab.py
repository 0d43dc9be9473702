"""Topology files of containerlab (containerlab.dev): hosts and switches as nodes, cables as links with two endpoints.

The switch end of a cable is `leaf1:eth7` (port 7), the host end `n0:hca1`. Ports, tier, rate and length are labels;
what is left to say is a note in the label ``fauxrdma``. A file without that label under `defaults` is read by
`foreign_graph`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.foreign_graph import GraphEdge, GraphNode, read_graph
from fauxrdma.topology.formats.notes import MARK, insides_of, note, notes_of_whole
from fauxrdma.topology.formats.records import Record, Records, overlay, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.formats.yaml_tree import Tree, parse_yaml
from fauxrdma.topology.graph import HCA_FABRIC_PORT, TIER_NAMES, NodeKind, Topology
from fauxrdma.units import parse_length_m, parse_rate

__all__ = ["read_containerlab", "write_containerlab"]

_LABEL = MARK.rstrip(":")
_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_-]{0,60}$")
_HOST = re.compile(r"^n(\d{1,6})$")
_DEVICE = re.compile(r"^(n\d{1,6})\.([a-z]+\d+)$")
_INTERFACE = re.compile(r"^eth(\d{1,6})$")


# -- writing


def write_containerlab(topology: Topology) -> str:
    """The fabric of `topology` as a containerlab topology file; every node is a Linux container."""
    records = take_apart(topology)
    heads = [note(head) for head in notes_of_whole(records)]
    lab = re.sub(r"[^A-Za-z0-9_-]+", "-", topology.name).strip("-") or "fabric"
    lines = [
        "# A fabric of fauxrdma as a containerlab topology. Labels carry what containerlab has no words for.",
        f"name: {_quoted(lab)}",
        "topology:",
        "  defaults:",
        "    kind: linux",
        "    image: alpine:3",
        "    labels:",
        *(f"      {_LABEL}{number or ''}: {_quoted(head)}" for number, head in enumerate(heads)),
        "  nodes:",
    ]
    called: dict[str, str] = {}
    index: Counter[Any] = Counter()
    for number, node in enumerate(records.shared, start=1):
        name = node["name"]
        called[name] = name if _NAME.match(name) and not _HOST.match(name) else f"node-{number}"
        index[node["tier"]] += 1
        lines += _node(called[name], node, index[node["tier"]])
    lines += [f"    n{host}: {{group: host}}" for host in records.insides]
    lines.append("  links:")
    names = {new: name for name, new in called.items()}
    for cable in records.cables:
        lines += _link(cable, called, names)
    return "\n".join([*lines, ""])


def _node(name: str, node: Record, index: int) -> list[str]:
    tier = node["tier"]
    group = TIER_NAMES[tier] if isinstance(tier, int) and 0 <= tier < len(TIER_NAMES) else "switch"
    labels = {} if node["radix"] is None else {"ports": str(node["radix"])}
    said = overlay(_implied_node(name, group, labels, index), node)
    if said:
        labels[_LABEL] = note({**said, "tier": tier})
    return [f"    {name}:", f"      group: {group}", *_labels(labels, "      ")]


def _link(cable: Record, called: dict[str, str], names: dict[str, str]) -> list[str]:
    ends = [_endpoint(cable[side], cable[f"{side}_port"], called) for side in ("src", "dst")]
    labels = {"rate": f"{cable['rate_bps'] / 1e9:g}Gbps", "length": f"{cable['length_m']:g}m"}
    labels = {key: value for key, value in labels.items() if re.match(r"^[0-9.]+[A-Za-z]+$", value)}
    said = overlay(_implied_cable(ends, labels, names), cable)
    if said:
        labels[_LABEL] = note(said)
    return [f"    - endpoints: [{', '.join(_quoted(end) for end in ends)}]", *_labels(labels, "      ")]


def _endpoint(name: str, port: int, called: dict[str, str]) -> str:
    if name in called:
        return f"{called[name]}:eth{port}"
    device = _DEVICE.match(name)
    return f"{device.group(1)}:{device.group(2)}" if device is not None else f"n0:eth{port}"


def _labels(labels: dict[str, str], margin: str) -> list[str]:
    if _LABEL not in labels:
        return (
            [f"{margin}labels: {{{', '.join(f'{key}: {_quoted(value)}' for key, value in labels.items())}}}"]
            if labels
            else []
        )
    return [f"{margin}labels:", *(f"{margin}  {key}: {_quoted(value)}" for key, value in labels.items())]


def _quoted(text: str) -> str:
    """ASCII text without line breaks as a YAML scalar, in quotes where YAML could take it for something else."""
    if re.match(r"^[a-zA-Z][a-zA-Z0-9_.-]*$", text) and text.lower() not in (
        "true",
        "false",
        "yes",
        "no",
        "on",
        "off",
        "null",
        "y",
        "n",
    ):
        return text
    return "'" + text.replace("'", "''") + "'"


# -- what both sides assume


def _implied_node(name: str, group: str, labels: dict[str, str], index: int) -> Record:
    ports = labels.get("ports", "")
    return {
        "name": name,
        "kind": NodeKind.SWITCH.value,
        "host": None,
        "index": index,
        "tier": TIER_NAMES.index(group) if group in TIER_NAMES else None,
        "radix": int(ports) if re.fullmatch(r"\d{1,9}", ports) else None,
    }


def _implied_cable(ends: list[str], labels: dict[str, str], names: dict[str, str]) -> Record:
    record: Record = {}
    for side, end in zip(("src", "dst"), ends, strict=True):
        node, _, interface = end.partition(":")
        if node in names:
            number = _INTERFACE.match(interface)
            record[side], record[f"{side}_port"] = names[node], int(number.group(1)) if number is not None else 1
        else:
            record[side], record[f"{side}_port"] = f"{node}.{interface}", HCA_FABRIC_PORT
    record["rate_bps"] = parse_rate(labels["rate"]).bits_per_s if "rate" in labels else None
    record["length_m"] = parse_length_m(labels["length"]) if "length" in labels else None
    record["kind"] = "cable"
    return record


# -- reading


def read_containerlab(source: Source) -> ReadFabric:
    """The fabric of such a file. Raises ConfigError with line and column for what is malformed."""
    root = parse_yaml(source)
    topology = root.child("topology").mapping()
    nodes = topology.child("nodes").mapping()
    links = topology.child("links").items() if "links" in topology.children else []
    defaults = _labels_of(topology.children["defaults"]) if "defaults" in topology.children else {}
    pairs = [(link, _endpoints(link, nodes)) for link in links]
    heads = [_parsed(source, tree) for key, tree in defaults.items() if key.startswith(_LABEL)]
    fabric = next((head["fabric"] for head, _, _ in heads if "fabric" in head), None)
    if isinstance(fabric, dict):
        return ReadFabric(_read_ours(source, fabric, heads, nodes, pairs))
    graph_nodes = [GraphNode(name, _data(tree), *tree.at) for name, tree in nodes.children.items()]
    edges = []
    for link, ends in pairs:
        (a, _, a_if), (b, _, b_if) = (end.partition(":") for end in ends)
        edges.append(GraphEdge(a, b, a_if or None, b_if or None, _data(link), *link.at))
    name = root.children["name"].scalar() if "name" in root.children else "containerlab"
    return read_graph(source, name, graph_nodes, edges)


def _endpoints(link: Tree, nodes: Tree) -> list[str]:
    ends = link.mapping().child("endpoints").items()
    if len(ends) != 2:
        raise link.children["endpoints"].refusal(f"a link has two endpoints, not {len(ends)}")
    texts = []
    for end in ends:
        text = end.scalar()
        if text.partition(":")[0] not in nodes.children:
            raise end.refusal(
                f"there is no node {text.partition(':')[0]!r} under 'nodes' (an endpoint is 'node:interface')"
            )
        texts.append(text)
    return texts


def _labels_of(tree: Tree) -> dict[str, Tree]:
    return tree.children["labels"].mapping().children if tree.is_mapping and "labels" in tree.children else {}


def _data(tree: Tree) -> Record:
    """Scalars of a node or link, those of its labels and vars too; whole numbers as such."""
    data: Record = {}
    if tree.is_mapping:
        for key, child in tree.children.items():
            if child.is_scalar:
                text = child.scalar()
                data[key] = int(text) if re.fullmatch(r"\d{1,15}", text) else text
            elif key in ("labels", "vars") and child.is_mapping:
                data.update(_data(child))
    return data


def _parsed(source: Source, tree: Tree) -> tuple[Record, int, int]:
    text = tree.scalar()
    if not text.startswith(MARK):
        raise tree.refusal(f"the label {_LABEL!r} holds a note that begins with {MARK}, not {text[:40]!r}")
    return source.parsed_note(text[len(MARK) :], *tree.at), *tree.at


def _read_ours(
    source: Source,
    fabric: Record,
    heads: list[tuple[Record, int, int]],
    nodes: Tree,
    pairs: list[tuple[Tree, list[str]]],
) -> Topology:
    records = Records(fabric)
    names: dict[str, str] = {}
    hosts: list[int] = []
    index: Counter[Any] = Counter()
    for name, tree in nodes.children.items():
        host = _HOST.match(name)
        if host is not None:
            hosts.append(int(host.group(1)))
            continue
        labels = _labels_of(tree)
        said = _parsed(source, labels[_LABEL])[0] if _LABEL in labels else {}
        group = tree.child("group").scalar()
        plain = {key: label.scalar() for key, label in labels.items()}
        tier = said.get("tier", _implied_node(name, group, plain, 0)["tier"])
        try:
            index[tier] += 1
        except TypeError:
            raise tree.refusal(f"a tier is a number, not {tier!r}") from None
        node = {**_implied_node(name, group, plain, index[tier]), **said}
        records.shared.append(node)
        names[name] = node["name"]
    for link, ends in pairs:
        labels = _labels_of(link)
        said = _parsed(source, labels[_LABEL])[0] if _LABEL in labels else {}
        try:
            implied = _implied_cable(ends, {key: label.scalar() for key, label in labels.items()}, names)
        except ConfigError as error:
            raise link.refusal(str(error)) from None
        cable = {**implied, **said}
        for key in ("rate", "length"):
            if cable["rate_bps" if key == "rate" else "length_m"] is None:
                raise link.refusal(f"this link needs the label {key!r}")
        records.cables.append(cable)
    records.insides = insides_of(source, heads, hosts)
    return source.topology(records)
