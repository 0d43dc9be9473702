"""NCCL's topology XML (NCCL_TOPO_DUMP_FILE writes it, NCCL_TOPO_FILE reads it): the inside of hosts, and their rails.

A `<cpu>` per host with its own `host_hash`, as NCCL writes systems of several hosts; in it the PCIe switches with their
GPUs and NICs. Of the fabric NCCL knows a `<net>`'s speed, `rail` and `plane`; switches and cables are notes in
comments, which NCCL skips. The file of one host alone (`host=`) has no notes and is what NCCL_TOPO_FILE wants.
"""

from __future__ import annotations

from collections.abc import Iterator

from fauxrdma.topology.formats.foreign import HOST_CABLE_M
from fauxrdma.topology.formats.ibnetdiscover import guid_of
from fauxrdma.topology.formats.nccl_foreign import element_note, read_foreign_nccl
from fauxrdma.topology.formats.notes import insides_of, is_ours, note, notes_of_whole
from fauxrdma.topology.formats.records import Inside, Record, Records, overlay, take_apart
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.formats.xml_document import COMMENT, Element, attributes, parse_xml
from fauxrdma.topology.graph import HCA_FABRIC_PORT, Node, NodeKind, Topology
from fauxrdma.topology.rails import planes_of, rails_of
from fauxrdma.units import Rate

__all__ = ["read_nccl", "write_nccl"]

_NVLINK = Rate.gbps(200)
"""One NVLink of generations 2 to 4, in one direction."""
_PCIE_SWITCH, _GPU, _NIC, _NVSWITCH = "0x060400", "0x030200", "0x020700", "0x068000"
_GENERATIONS = ((Rate.gbps(126), "8.0"), (Rate.gbps(252), "16.0"), (Rate.gbps(504), "32.0"), (Rate.gbps(944), "64.0"))
_CPU = {"arch": "x86_64", "vendor": "GenuineIntel", "familyid": 6, "modelid": 143}


# -- writing


def write_nccl(topology: Topology, host: int | None = None) -> str:
    """All hosts with notes of the fabric, or only `host` without."""
    records = take_apart(topology)
    writer = _Writer(topology, records)
    lines = ['<system version="1">']
    if host is None:
        heads = notes_of_whole(records) + [{"node": node} for node in records.shared]
        heads += [{"cable": cable} for cable in writer.other_cables()]
        lines += [f"  <!-- {note(head)} -->" for head in heads]
    for number in range(topology.hosts) if host is None else [host]:
        lines += writer.host(number, noted=host is None)
    return "\n".join([*lines, "</system>", ""])


class _Writer:
    def __init__(self, topology: Topology, records: Records) -> None:
        self._topology = topology
        self._rails = rails_of(topology)
        self._planes = planes_of(topology)
        self._lid = {hca.name: lid for lid, hca in enumerate(topology.hcas(), start=1)}
        self._records = records
        self._cable = {
            cable["src"]: (number, cable)
            for number, cable in enumerate(records.cables)
            if cable["src"] in self._lid and cable["kind"] == "cable"
        }
        self._inside: dict[tuple[int | None, NodeKind], list[Node]] = {}
        for node in topology.nodes.values():
            self._inside.setdefault((node.host, node.kind), []).append(node)
        at_nets = {number for number, _ in self._cable.values()}
        rest = [number for number in range(len(records.cables)) if number not in at_nets]
        self._numbered = rest + [self._cable[hca][0] for hca in self._in_order()] != list(range(len(records.cables)))

    def _in_order(self) -> Iterator[str]:
        """The HCAs in the order in which the file lists them."""
        for host in range(self._topology.hosts):
            for pcie in self._of(host, NodeKind.PCIE):
                yield from (hca.name for hca in self._below(pcie, NodeKind.HCA) if hca.name in self._cable)

    def other_cables(self) -> list[Record]:
        """The cables that are not at a `<net>`."""
        shown = set(self._in_order())
        return [
            {**cable, "at": number} if self._numbered else cable
            for number, cable in enumerate(self._records.cables)
            if cable["src"] not in shown or self._cable[cable["src"]][0] != number
        ]

    def _of(self, host: int, kind: NodeKind) -> list[Node]:
        return self._inside.get((host, kind), [])

    def _below(self, pcie: Node, kind: NodeKind) -> list[Node]:
        peers = (self._topology.nodes[link.dst] for link in self._topology.links_from(pcie.name) if link.kind == "pcie")
        return [peer for peer in peers if peer.kind is kind]

    def host(self, host: int, *, noted: bool) -> list[str]:
        cpu = {"host_hash": f"0x{host + 1:016x}", "numaid": 0, "affinity": "ffffffff", **_CPU}
        lines = [f"  <cpu{attributes(cpu)}>"]
        bus = _Buses()
        nvswitches = {node.name: bus.next() for node in self._of(host, NodeKind.NVSWITCH)}
        dev = 0
        for pcie in self._of(host, NodeKind.PCIE):
            lines.append(f"    <pci{self._pci(bus.next(), _PCIE_SWITCH, pcie)}>")
            for gpu in self._below(pcie, NodeKind.GPU):
                lines += self._gpu(gpu, bus.next(), nvswitches)
            for hca in self._below(pcie, NodeKind.HCA):
                lines += self._net(hca, bus.next(), dev, noted=noted)
                dev += 1
            lines.append("    </pci>")
        return [*lines, "  </cpu>"]

    def _pci(self, busid: str, kind: str, node: Node) -> str:
        rate = next((link.rate for link in self._topology.links_from(node.name) if link.kind == "pcie"), Rate(0))
        speed = next((speed for known, speed in _GENERATIONS if rate <= known), _GENERATIONS[-1][1])
        return attributes({"busid": busid, "class": kind, "link_speed": f"{speed} GT/s PCIe", "link_width": 16})

    def _gpu(self, gpu: Node, busid: str, nvswitches: dict[str, str]) -> list[str]:
        gdr = int(self._topology.shape.gpudirect)
        rank = (gpu.host or 0) * self._topology.gpus_per_host + gpu.index
        own = attributes({"dev": gpu.index, "sm": 90, "rank": rank, "gdr": gdr})
        to = [nvswitches[link.dst] for link in self._topology.links_from(gpu.name) if link.dst in nvswitches]
        links = [
            f"          <nvlink{attributes({'target': target, 'count': count, 'tclass': _NVSWITCH})}/>"
            for target, count in zip(to, _nvlinks(self._topology.shape.nvlink_rate, len(to)), strict=True)
        ]
        body = [f"        <gpu{own}>", *links, "        </gpu>"] if links else [f"        <gpu{own}/>"]
        return [f"      <pci{self._pci(busid, _GPU, gpu)}>", *body, "      </pci>"]

    def _net(self, hca: Node, busid: str, dev: int, *, noted: bool) -> list[str]:
        cable = self._topology.fabric_link(hca)
        pairs: dict[str, object] = {
            "name": hca.name.partition(".")[2] or hca.name, "dev": dev, "speed": _mbps(cable.rate), "port": 1,
            "latency": "0.000000",
            "guid": f"0x{guid_of(NodeKind.HCA, self._lid[hca.name]):x}", "maxconn": 131072,
            "gdr": int(self._topology.shape.gpudirect),
        }  # fmt: skip
        if hca.name in self._rails:
            pairs["rail"] = self._rails[hca.name]
        if cable.dst in self._planes:
            pairs["plane"] = self._planes[cable.dst]
        lines = [f"      <pci{self._pci(busid, _NIC, hca)}>", "        <nic>", f"          <net{attributes(pairs)}/>"]
        if noted and hca.name in self._cable:
            number, record = self._cable[hca.name]
            said = overlay(_implied_cable(_mbps(cable.rate)), record)
            if self._numbered:
                said["at"] = number
            lines.append(f"          <!-- {note(said)} -->")
        return [*lines, "        </nic>", "      </pci>"]


class _Buses:
    """Bus numbers, in order."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> str:
        self._last += 1
        return f"{self._last >> 8:04x}:{self._last & 0xFF:02x}:00.0"


def _mbps(rate: Rate) -> int:
    return max(1, round(rate.bits_per_s / 1e6))


def _nvlinks(rate: Rate | None, switches: int) -> list[int]:
    """How many NVLinks a GPU has to each NVSwitch; 18 over 4 are 5, 5, 4, 4."""
    if rate is None or not switches:
        return [1] * switches
    each, more = divmod(max(switches, round(rate.bits_per_s / _NVLINK.bits_per_s)), switches)
    return [each + (place < more) for place in range(switches)]


def _implied_cable(mbps: int) -> Record:
    return {"src_port": HCA_FABRIC_PORT, "rate_bps": mbps * 10**6, "length_m": HOST_CABLE_M, "kind": "cable"}


# -- reading


def read_nccl(source: Source, nodes: int | None = None) -> ReadFabric:
    """The fabric of such a file. The file of one host alone is read as a fabric of `nodes` (default 2) such hosts.

    Raises ConfigError with line and column for what is malformed.
    """
    system = parse_xml(source, "system")
    heads = [
        (found, child.line, child.column)
        for child in system.children
        if child.tag == COMMENT and (found := element_note(source, child)) is not None
    ]
    if is_ours(heads):
        return ReadFabric(_read_ours(source, system, heads))
    return read_foreign_nccl(source, system, nodes)


def _read_ours(source: Source, system: Element, heads: list[tuple[Record, int, int]]) -> Topology:
    fabric = next(head["fabric"] for head, _, _ in heads if "fabric" in head)
    if not isinstance(fabric, dict):
        raise source.refusal(heads[0][1], heads[0][2], "'fabric' in a fauxrdma note must be an object, {...}")
    records = Records(fabric, [head["node"] for head, _, _ in heads if "node" in head])
    cpus = list(system.all("cpu"))
    records.insides = insides_of(source, heads, list(range(len(cpus))))
    cables: list[Record] = [head["cable"] for head, _, _ in heads if "cable" in head]
    for cpu in cpus:
        for child, before in _pairs(cpu):
            found = element_note(source, child)
            if found is not None and before is not None and before.tag == "net":
                speed = before.get(source, "speed")
                if not speed.isdecimal():
                    raise source.refusal(before.line, before.column, f"'speed' is a number of Mb/s, not {speed[:40]!r}")
                cables.append({**_implied_cable(int(speed)), **found})
    if not all(isinstance(cable, dict) for cable in cables):
        raise source.refusal(heads[0][1], heads[0][2], "'cable' in a fauxrdma note must be an object, {...}")
    try:
        cables.sort(key=lambda cable: cable.get("at", len(cables)))
    except TypeError:
        raise source.refusal(heads[0][1], heads[0][2], "'at' in fauxrdma notes must be a number") from None
    records.cables = [{key: value for key, value in cable.items() if key != "at"} for cable in cables]
    topology = source.topology(records)
    for host, cpu in enumerate(cpus):
        _check_inside(source, cpu, records.inside(host))
    return topology


def _pairs(element: Element) -> Iterator[tuple[Element, Element | None]]:
    """Every comment below `element`, with its elder sibling."""
    before: Element | None = None
    for child in element.children:
        if child.tag == COMMENT:
            yield child, before
        yield from _pairs(child)
        before = child


def _check_inside(source: Source, cpu: Element, inside: Inside) -> None:
    """The elements of a host must be those of which the notes speak; counts suffice to see that one was added."""
    for tag, kind in (("gpu", NodeKind.GPU), ("net", NodeKind.HCA)):
        there, noted = _count(cpu, tag), sum(node.get("kind") == kind.value for node in inside.nodes)
        if there != noted:
            raise source.refusal(
                cpu.line, cpu.column,
                f"this host has {there} <{tag}>, the fauxrdma notes say {noted}: take the notes out to have the file "
                "read as NCCL's own",
            )  # fmt: skip


def _count(element: Element, tag: str) -> int:
    return sum((child.tag == tag) + _count(child, tag) for child in element.children)
