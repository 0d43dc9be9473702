"""A topology taken apart into the things that file formats list, and put together again without loss.

A format lists switches, hosts and cables; a topology also knows what is inside the hosts, in which order everything
stands, and what every link is called. `take_apart` separates these and leaves out whatever `put_together` can say by
itself: the second direction of a cable, ids, names made by the usual rule, insides that
follow from the shape of the hosts. Everything
is plain data made from `Topology.to_dict`, so that fields which the graph gets one day travel without a change here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.topology.host_shape import HostShape

__all__ = ["Inside", "Record", "Records", "first_hosts", "is_switch", "overlay", "put_together", "take_apart"]

Record = dict[str, Any]

_MIRRORED = (("src", "dst"), ("src_port", "dst_port"))
_ORDER = ("node_order", "link_order")


def overlay(implied: Record, actual: Record) -> Record:
    """What must be said of `actual` to somebody who assumes `implied`."""
    return {key: value for key, value in actual.items() if key not in implied or implied[key] != value}


@dataclass(slots=True)
class Inside:
    """What is inside one host: its nodes, and the links that do not leave it."""

    nodes: list[Record] = field(default_factory=list)
    links: list[Record] = field(default_factory=list)

    def moved(self, from_host: int, to_host: int) -> Inside:
        """The same inside in another host."""
        if from_host == to_host:
            return self
        old, new = f"n{from_host}.", f"n{to_host}."

        def move(record: Record) -> Record:
            return {
                key: to_host
                if key == "host" and value == from_host
                else new + value[len(old) :]
                if isinstance(value, str) and value.startswith(old)
                else value
                for key, value in record.items()
            }

        return Inside([move(node) for node in self.nodes], [move(link) for link in self.links])


@dataclass(slots=True)
class Records:
    """The parts of a topology.

    `fabric` is said of the whole, `shared` are nodes outside all hosts (switches), `insides` are by host number: None
    for one like host 0's, and there for what the shape says. `cables` are all links that leave a host or never were in
    one, a record per full-duplex cable.
    """

    fabric: Record
    shared: list[Record] = field(default_factory=list)
    insides: dict[int, Inside | None] = field(default_factory=dict)
    cables: list[Record] = field(default_factory=list)
    _usual: Inside | None = None

    def inside(self, host: int) -> Inside:
        """What is inside `host`."""
        own = self.insides.get(host)
        if own is not None:
            return own
        return (self.insides.get(0) or self._by_shape()).moved(0, host)

    def _by_shape(self) -> Inside:
        if self._usual is None:
            self._usual = _inside_by_shape(self.fabric["shape"])
        return self._usual


def take_apart(topology: Topology) -> Records:
    """The parts of `topology`."""
    data = topology.to_dict()
    nodes: list[Record] = data.pop("nodes")
    links: list[Record] = data.pop("links")
    shared, insides, cables = _sorted_out(nodes, links, topology.hosts)
    usual = _inside_by_shape(data["shape"])
    kept: dict[int, Inside | None] = dict(insides)
    if insides[0] == usual:
        kept[0] = None
    for host, inside in insides.items():
        if host and inside == insides[0].moved(0, host):
            kept[host] = None
    records = Records(data, shared, kept, cables)
    listed_nodes, listed_links = _listing(records)
    for key, listed, actual in (("node_order", listed_nodes, nodes), ("link_order", listed_links, links)):
        names = [record["name"] for record in actual]
        if [record["name"] for record in listed] != names:
            records.fabric[key] = names
    return records


def put_together(records: Records) -> Topology:
    """The topology of which these are the parts. Raises ConfigError when they do not make a consistent one."""
    nodes, links = _listing(records)
    fabric = {key: value for key, value in records.fabric.items() if key not in _ORDER}
    nodes = _ordered(nodes, records.fabric.get("node_order", ()))
    links = _ordered(links, records.fabric.get("link_order", ()))
    place = {link.pop("key"): number for number, link in enumerate(links)}
    for number, link in enumerate(links):
        link["id"], link["reverse"] = number, place[link.pop("reverse_key")]
    return Topology.from_dict({**fabric, "nodes": nodes, "links": links})


def first_hosts(topology: Topology, hosts: int) -> Topology:
    """The fabric with only its first `hosts` hosts; cables of the others are unplugged."""
    if hosts >= topology.hosts:
        return topology
    records = take_apart(topology)
    for host in [host for host in records.insides if host >= hosts]:
        del records.insides[host]
    known = {node["name"] for node in _listing(records)[0]}
    records.cables = [cable for cable in records.cables if cable["src"] in known and cable["dst"] in known]
    records.fabric["hosts"] = hosts
    islands = topology.members_of_islands()
    records.fabric["islands"] = sum(any((hca.host or 0) < hosts for hca in members) for members in islands)
    return put_together(records)


def _sorted_out(
    nodes: list[Record], links: list[Record], hosts: int
) -> tuple[list[Record], dict[int, Inside], list[Record]]:
    """Shared nodes, insides by host, cables."""
    host_of = {node["name"]: node["host"] for node in nodes}
    insides = {host: Inside() for host in range(hosts)}
    shared: list[Record] = []
    cables: list[Record] = []
    for node in nodes:
        if node["host"] is None:
            shared.append(node)
        else:
            insides.setdefault(node["host"], Inside()).nodes.append(node)
    for link in links:
        if link["id"] < link["reverse"]:
            record = _full_duplex(link, links[link["reverse"]])
            host = host_of[link["src"]]
            within = host is not None and host == host_of[link["dst"]]
            (insides[host].links if within else cables).append(record)
    for group in (*(inside.links for inside in insides.values()), cables):
        _drop_usual_names(group)
    return shared, insides, cables


def _inside_by_shape(shape: Record) -> Inside:
    """The inside that the builder gives to host 0 of a fabric with hosts of this shape."""
    builder = TopologyBuilder(HostShape.from_dict(shape))
    builder.add_switch("switch", 0, builder.shape.hcas)
    builder.add_host(0)
    for i in range(1, builder.shape.hcas + 1):
        builder.connect(f"n0.hca{i}", "switch", builder.shape.pcie_rate, 0.0)
    data = builder.build(name="", description="", hosts=1).to_dict()
    return _sorted_out(data["nodes"], data["links"], 1)[1][0]


def _full_duplex(link: Record, back: Record) -> Record:
    record, other = (
        {key: value for key, value in side.items() if key not in ("id", "reverse")} for side in (link, back)
    )
    return {**record, "back": overlay(_mirror(record), other)}


def _mirror(record: Record) -> Record:
    mirrored = dict(record)
    for a, b in _MIRRORED:
        mirrored[a], mirrored[b] = record[b], record[a]
    return mirrored


def _directions(record: Record) -> tuple[Record, Record]:
    """Both directions of a full-duplex record; without a name where the record gives none."""
    there = {key: value for key, value in record.items() if key != "back"}
    unnamed = {key: value for key, value in there.items() if key != "name"}
    return there, {**_mirror(unnamed), **record.get("back", {})}


def _usual_names(links: Iterable[Record]) -> Iterator[str]:
    """What the usual rule calls each of these links: `src->dst`, numbered from 1 where cables run in parallel."""
    pairs = [(link["src"], link["dst"]) for link in links]
    total = Counter(pairs)
    seen: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        seen[pair] += 1
        yield f"{pair[0]}->{pair[1]}" + (f":{seen[pair]}" if total[pair] > 1 else "")


def _drop_usual_names(records: list[Record]) -> None:
    """Take away the names that the usual rule gives anyway, and `back` where it has nothing to say."""
    usual = _usual_names([direction for record in records for direction in _directions(record)])
    for record in records:
        for side in (record, record["back"]):
            if side["name"] == next(usual):
                del side["name"]
        if not record["back"]:
            del record["back"]


def _listing(records: Records) -> tuple[list[Record], list[Record]]:
    """Nodes and links in the order in which the parts list them. Links have `key` and `reverse_key` for ids."""
    insides = [records.inside(host) for host in sorted(records.insides)]
    nodes = [dict(node) for node in (*records.shared, *(node for inside in insides for node in inside.nodes))]
    links: list[Record] = []
    for record in [*(link for inside in insides for link in inside.links), *records.cables]:
        key = len(links)
        there, back = _directions(record)
        links += [{**there, "key": key, "reverse_key": key + 1}, {**back, "key": key + 1, "reverse_key": key}]
    for link, name in zip(links, _usual_names(links), strict=True):
        link.setdefault("name", name)
    return nodes, links


def _ordered(records: list[Record], names: Iterable[str]) -> list[Record]:
    place = {name: number for number, name in enumerate(names)}
    return sorted(records, key=lambda record: place.get(record["name"], len(place)))


def is_switch(record: Record) -> bool:
    """Whether this node is one that every format can list as a switch."""
    return bool(record.get("kind") == NodeKind.SWITCH.value and record.get("host") is None)
