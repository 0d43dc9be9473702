"""Fabrics as ibnetdiscover prints them: switches, HCAs and cables, with GUIDs, LIDs, ports and rates.

Natively told are names, port counts, cables with ports and rates. Insides of hosts, tiers, lengths and the order of
things are notes in comments, which every reader of such files skips. GUIDs and LIDs are those of our subnet manager.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.foreign import (
    DEFAULT_RATE,
    HOST_CABLE_M,
    SPINE_CABLE_M,
    ForeignCable,
    ForeignFabric,
    ForeignSwitch,
    HcaPort,
)
from fauxrdma.topology.formats.ibnetdiscover_text import PortLine, Section, parse_text, token_of_rate
from fauxrdma.topology.formats.notes import insides_of, is_ours, note, notes_of_whole
from fauxrdma.topology.formats.records import Record, Records, is_switch, overlay, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["guid_of", "read_ibnetdiscover", "write_ibnetdiscover"]

_OUI = 0xFA0C
_DESCRIPTION_MAX = 64
"""Bytes of a NodeDescription (IBTA vol. 1, 14.2.5.2)."""
_DEVICE = re.compile(r"^n(\d{1,6}) (hca\d{1,6})$")
_HOST_AND_DEVICE = re.compile(r"^(\S+) +((?:hca|mlx|mthca|hfi|qib|ib|bnxt|roce|irdma|efa)[\w-]*\d)$", re.IGNORECASE)
_CHASSIS_NAME = re.compile(r"^MF0;([^:;]+):")
_AGGREGATION = "Aggregation Node"


def guid_of(kind: NodeKind, lid: int) -> int:
    """The GUID that our subnet manager gives (with seed 0) to the HCA or switch with this LID."""
    return _OUI << 48 | kind.value.encode()[0] << 24 | lid


@dataclass(frozen=True, slots=True)
class _Device:
    """What a section is about, as far as its own lines say."""

    name: str
    is_hca: bool


# -- writing


def write_ibnetdiscover(topology: Topology) -> str:
    """The fabric of `topology`: its switches, then its HCAs. Two lines of one cable have one note, with the first."""
    records = take_apart(topology)
    switches = [node for node in records.shared if is_switch(node)]
    hcas = topology.hcas()
    lid = {node.name: lid for lid, node in enumerate([*hcas, *topology.switches()], start=1)}
    plugged: dict[str, dict[int, tuple[int, Record]]] = {name: {} for name in lid}
    heads = notes_of_whole(records) + [{"node": node} for node in records.shared if not is_switch(node)]
    for number, cable in enumerate(records.cables):
        if cable["kind"] == "cable" and cable["src"] in lid and cable["dst"] in lid:
            plugged[cable["src"]][cable["src_port"]] = plugged[cable["dst"]][cable["dst_port"]] = number, cable
        else:
            heads.append({"cable": {**cable, "at": number}})
    order = list(
        dict.fromkeys(number for name in _names(switches, topology) for _, (number, _) in sorted(plugged[name].items()))
    )
    writer = _Writer(topology, lid, plugged, numbered=order != list(range(len(records.cables))))
    lines = ["#", "# Topology file: written by fauxrdma", "#"]
    lines += [f"# {note(head)}" for head in heads]
    lines += [f"# Initiated from node {writer.guid(hcas[0].name)} port {writer.guid(hcas[0].name)}", ""]
    index: Counter[Any] = Counter()
    for switch in switches:
        index[switch["tier"]] += 1
        lines += writer.switch(switch, index[switch["tier"]])
    for hca in hcas:
        lines += writer.hca(hca.name)
    return "\n".join(lines)


def _names(switches: list[Record], topology: Topology) -> Iterator[str]:
    yield from (switch["name"] for switch in switches)
    yield from (hca.name for hca in topology.hcas())


class _Writer:
    """Writes sections; `numbered` says that cables must say their place, since they do not come in their order."""

    def __init__(
        self,
        topology: Topology,
        lid: dict[str, int],
        plugged: dict[str, dict[int, tuple[int, Record]]],
        *,
        numbered: bool,
    ) -> None:
        self._topology = topology
        self._lid = lid
        self._plugged = plugged
        self._numbered = numbered
        self._noted: set[int] = set()

    def guid(self, name: str) -> str:
        return f"{guid_of(self._topology.nodes[name].kind, self._lid[name]):016x}"

    def switch(self, switch: Record, index: int) -> list[str]:
        name = switch["name"]
        ports = switch["radix"] if switch["radix"] is not None else max(self._plugged[name], default=1)
        head = (
            f'Switch\t{ports} "S-{self.guid(name)}"\t\t# "{_description(name)}" base port 0 lid {self._lid[name]} lmc 0'
        )
        said = overlay(_implied_switch(_description(name), ports, switch["tier"], index), switch)
        if switch["tier"]:
            said["tier"] = switch["tier"]
        lines = [*self._values("switchguid", name), head]
        if said:
            lines.append(f"# {note(said)}")
        for port, number, cable in self._ports(name):
            peer, peer_port = _other_end(cable, name, port)
            if self._topology.nodes[peer].kind is NodeKind.HCA:
                end = f'"H-{self.guid(peer)}"[{peer_port}]({self.guid(peer).lstrip("0")}) '
            else:
                end = f'"S-{self.guid(peer)}"[{peer_port}]'
            lines.append(f"[{port}]\t{end}\t\t# {self._told(peer, cable)}")
            lines += self._note(name, port, number, cable)
        return [*lines, ""]

    def hca(self, name: str) -> list[str]:
        description = _hca_description(name)
        ports = max(self._plugged[name], default=1)
        lines = [*self._values("caguid", name), f'Ca\t{ports} "H-{self.guid(name)}"\t\t# "{description}"']
        if _implied_hca(description) != name:
            lines.append(f"# {note({'name': name})}")
        for port, number, cable in self._ports(name):
            peer, peer_port = _other_end(cable, name, port)
            letter = "H" if self._topology.nodes[peer].kind is NodeKind.HCA else "S"
            lines.append(
                f'[{port}]({self.guid(name).lstrip("0")}) \t"{letter}-{self.guid(peer)}"[{peer_port}]\t\t'
                f"# lid {self._lid[name]} lmc 0 {self._told(peer, cable)}"
            )
            lines += self._note(name, port, number, cable)
        return [*lines, ""]

    def _values(self, kind: str, name: str) -> list[str]:
        guid = self.guid(name).lstrip("0")
        own = f"({guid})" if kind == "switchguid" else ""
        return [f"vendid=0x{_OUI:x}", "devid=0x1", f"sysimgguid=0x{guid}", f"{kind}=0x{guid}{own}"]

    def _ports(self, name: str) -> Iterator[tuple[int, int, Record]]:
        return ((port, number, cable) for port, (number, cable) in sorted(self._plugged[name].items()))

    def _told(self, peer: str, cable: Record) -> str:
        kind = self._topology.nodes[peer].kind
        description = _hca_description(peer) if kind is NodeKind.HCA else _description(peer)
        return f'"{description}" lid {self._lid[peer]} {token_of_rate(Rate(cable["rate_bps"]))[0]}'

    def _note(self, name: str, port: int, number: int, cable: Record) -> list[str]:
        if number in self._noted:
            return []
        self._noted.add(number)
        peer, peer_port = _other_end(cable, name, port)
        ends = [_Device(end, self._topology.nodes[end].kind is NodeKind.HCA) for end in (name, peer)]
        rate = token_of_rate(Rate(cable["rate_bps"]))[1]
        said = overlay(_implied_cable(ends[0], port, ends[1], peer_port, rate), cable)
        if self._numbered:
            said["at"] = number
        return [f"# {note(said)}"] if said else []


def _other_end(cable: Record, name: str, port: int) -> tuple[str, int]:
    if (cable["src"], cable["src_port"]) == (name, port):
        return cable["dst"], cable["dst_port"]
    return cable["src"], cable["src_port"]


def _description(name: str) -> str:
    return re.sub(r"[^ !#-~]", "?", name)[:_DESCRIPTION_MAX].strip()


def _hca_description(name: str) -> str:
    """`n0 hca1` for n0.hca1, as rdma-core sets node descriptions: host, then device."""
    return _description(name.replace(".", " ", 1))


# -- what both sides assume


def _implied_hca(description: str) -> str:
    return description.replace(" ", ".", 1)


def _implied_switch(description: str, ports: int, tier: int, index: int) -> Record:
    return {
        "name": description,
        "kind": NodeKind.SWITCH.value,
        "host": None,
        "index": index,
        "tier": tier,
        "radix": ports,
    }


def _implied_cable(a: _Device, a_port: int, b: _Device, b_port: int, rate: Rate) -> Record:
    """A cable goes from the HCA to the switch, else from where it is told first."""
    if b.is_hca and not a.is_hca:
        a, a_port, b, b_port = b, b_port, a, a_port
    return {
        "src": a.name, "dst": b.name, "src_port": a_port, "dst_port": b_port, "rate_bps": rate.bits_per_s,
        "length_m": HOST_CABLE_M if a.is_hca else SPINE_CABLE_M, "kind": "cable",
    }  # fmt: skip


# -- reading


def read_ibnetdiscover(source: Source) -> ReadFabric:
    """The fabric of such a text. Raises ConfigError with line and column for what is malformed."""
    sections, heads = parse_text(source)
    cables = list(_cables_once(source, sections))
    if is_ours(heads):
        return ReadFabric(_read_ours(source, sections, heads, cables))
    return _read_foreign(source, sections, cables)


def _cables_once(source: Source, sections: list[Section]) -> Iterator[tuple[Section, PortLine, Section]]:
    """Every cable once: the section and line that tell it first, and the section at its other end."""
    by_id = {section.id: section for section in sections}
    told: dict[tuple[str, int], tuple[str, int, int]] = {}
    for section in sections:
        for line in section.lines:
            if line.peer not in by_id:
                raise source.refusal(
                    line.line, line.column, f'this cable ends at "{line.peer}", which the file does not describe'
                )
            before = told.get((section.id, line.port))
            if before is None:
                told[section.id, line.port] = line.peer, line.peer_port, line.line
                other = told.setdefault((line.peer, line.peer_port), (section.id, line.port, line.line))
                if other[:2] == (section.id, line.port):
                    yield section, line, by_id[line.peer]
                    continue
                peer, port, first = other
            else:
                peer, port, first = before
                if (peer, port) == (line.peer, line.peer_port):
                    continue
            raise source.refusal(
                line.line, line.column,
                f'port {line.port} of "{section.id}" cannot be cabled to port {line.peer_port} of "{line.peer}": line '
                f'{first} says that one of them is cabled to port {port} of "{peer}"',
            )  # fmt: skip


def _read_ours(
    source: Source,
    sections: list[Section],
    heads: list[tuple[Record, int, int]],
    cables: list[tuple[Section, PortLine, Section]],
) -> Topology:
    fabric = next(head["fabric"] for head, _, _ in heads if "fabric" in head)
    if not isinstance(fabric, dict):
        raise source.refusal(heads[0][1], heads[0][2], "'fabric' in a fauxrdma note must be an object, {...}")
    records = Records(fabric, [head["node"] for head, _, _ in heads if "node" in head])
    devices: dict[str, _Device] = {}
    hosts: dict[int, None] = {}
    index: Counter[Any] = Counter()
    for section in sections:
        if section.kind == "Switch":
            tier = section.note.get("tier", 0)
            index[tier] += 1
            switch = {**_implied_switch(section.name, section.ports, tier, index[tier]), **section.note}
            records.shared.append(switch)
            devices[section.id] = _Device(switch["name"], is_hca=False)
        else:
            match = _DEVICE.match(section.name)
            if match is not None:
                hosts[int(match.group(1))] = None
            devices[section.id] = _Device(section.note.get("name", _implied_hca(section.name)), is_hca=True)
    records.insides = insides_of(source, heads, list(hosts))
    found: list[Record] = [head["cable"] for head, _, _ in heads if "cable" in head]
    for section, line, peer in cables:
        rate = line.rate or DEFAULT_RATE
        implied = _implied_cable(devices[section.id], line.port, devices[peer.id], line.peer_port, rate)
        found.append({**implied, **line.note})
    try:
        found.sort(key=lambda cable: cable.get("at", len(found)))
        records.cables = [{key: value for key, value in cable.items() if key != "at"} for cable in found]
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"{source.path}: a fauxrdma note about a cable cannot be understood: {error}") from None
    return source.topology(records)


def _read_foreign(
    source: Source, sections: list[Section], cables: list[tuple[Section, PortLine, Section]]
) -> ReadFabric:
    fabric = ForeignFabric("ibnetdiscover", f"Read from {source.path}")
    shared_names = Counter(section.name for section in sections if section.kind == "Ca")
    skipped: list[str] = []
    hosts: dict[str, tuple[str, str]] = {}
    for section in sections:
        if section.kind == "Switch":
            named = _CHASSIS_NAME.match(section.name)
            fabric.switches[section.id] = ForeignSwitch(named.group(1) if named else section.name, section.ports)
        elif section.kind == "Rt" or _AGGREGATION in section.name:
            skipped.append(section.name)
        else:
            match = _HOST_AND_DEVICE.match(section.name)
            if match is not None:
                hosts[section.id] = match.group(1), match.group(2)
            else:
                own = section.name if shared_names[section.name] == 1 else section.id
                hosts[section.id] = own, ""
    if skipped:
        fabric.remarks.append(f"left out, since they are no hosts: {', '.join(dict.fromkeys(skipped))}")
    for section, line, peer in cables:
        ends = [_end(fabric, hosts, node, port) for node, port in ((section.id, line.port), (peer.id, line.peer_port))]
        if ends[0] is not None and ends[1] is not None:
            (a, a_port), (b, b_port) = ends[0], ends[1]
            fabric.cables.append(ForeignCable(a, b, a_port, b_port, line.rate))
    return fabric.read(source)


def _end(
    fabric: ForeignFabric, hosts: dict[str, tuple[str, str]], node: str, port: int
) -> tuple[str | HcaPort, int] | None:
    if node in fabric.switches:
        return node, port
    if node in hosts:
        host, device = hosts[node]
        return HcaPort(host, f"{device} {node} {port}"), port
    return None
