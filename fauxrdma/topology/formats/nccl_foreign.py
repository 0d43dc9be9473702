"""Topology XML that NCCL itself dumped: hosts as it found them, and a fabric made up around them.

Such a file says nothing of switches. Every NIC gets a cable to a leaf: one leaf per `rail` (and `plane`) where NICs say
theirs, one for all where they do not; leaves of several rails meet in one spine, without oversubscription.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from fauxrdma.topology.formats.foreign import ForeignCable, ForeignFabric, ForeignSwitch, HcaPort
from fauxrdma.topology.formats.notes import MARK
from fauxrdma.topology.formats.records import Record
from fauxrdma.topology.formats.source import ReadFabric, Source
from fauxrdma.topology.formats.xml_document import COMMENT, Element
from fauxrdma.topology.host_shape import GPUS_PER_HCA, PCIE_GEN4_X16, HostShape
from fauxrdma.topology.presets import DEFAULT_NODES
from fauxrdma.units import Rate

__all__ = ["element_note", "read_foreign_nccl"]

_SWITCH_CLASS = "0x0604"
_NVSWITCH_CLASS = "0x0680"
_GBPS_PER_LANE = {2.5: 2.0, 5.0: 4.0, 8.0: 7.875, 16.0: 15.75, 32.0: 31.5, 64.0: 59.0}
"""Rate of a PCIe lane after line coding, by GT/s."""
_NVLINK_GBPS = {60: 160.0, 70: 200.0, 80: 200.0, 90: 200.0, 100: 400.0, 103: 400.0, 120: 400.0}
"""Rate of one NVLink in one direction, by compute capability."""


@dataclass(slots=True)
class _Found:
    """A `<gpu>` or `<net>` with the `<pci>` elements around it, outermost first."""

    element: Element
    around: tuple[Element, ...]

    def switches(self) -> list[Element]:
        return [pci for pci in self.around if pci.attributes.get("class", "").startswith(_SWITCH_CLASS)]


def element_note(source: Source, comment: Element) -> Record | None:
    """The note in a comment, if it is one."""
    text = comment.text.strip() if comment.tag == COMMENT else ""
    return source.parsed_note(text[len(MARK) :], comment.line, comment.column) if text.startswith(MARK) else None


def read_foreign_nccl(source: Source, system: Element, nodes: int | None) -> ReadFabric:
    """The hosts of a system that NCCL dumped, in a fabric that its NICs' rails suggest."""
    hosts: dict[str, list[Element]] = {}
    for cpu in system.all("cpu"):
        hosts.setdefault(cpu.attributes.get("host_hash", ""), []).append(cpu)
    if not hosts:
        raise source.refusal(system.line, system.column, "<system> holds no <cpu>")
    first = next(iter(hosts.values()))
    gpus = [found for cpu in first for found in _find(cpu, "gpu", ())]
    nets = [found for cpu in first for found in _find(cpu, "net", ())]
    if not nets:
        raise source.refusal(first[0].line, first[0].column, "this host has no <net>, so it has no HCA to emulate")
    fabric = ForeignFabric("nccl", f"Read from {source.path}")
    compute, storage = _sorted_out(gpus, nets)
    fabric.shape = _shape(source, fabric, gpus, compute, storage)
    nets = compute + storage
    count = len(hosts) if len(hosts) > 1 else nodes or DEFAULT_NODES
    if len(hosts) == 1:
        fabric.remarks.append(f"the file describes one host: {count} such hosts were made")
    leaves = [_leaf(source, net) for net in nets]
    uplinks: Counter[str] = Counter()
    for host in range(count):
        for number, (net, leaf) in enumerate(zip(nets, leaves, strict=True)):
            fabric.switches.setdefault(leaf, ForeignSwitch(leaf, tier=0))
            rate = Rate(_number(source, net.element, "speed") * 10**6)
            fabric.cables.append(ForeignCable(HcaPort(f"n{host}", f"{number}"), leaf, rate=rate))
            uplinks[leaf] += 1
    if len(uplinks) > 1:
        fabric.switches["spine1"] = ForeignSwitch("spine1", tier=1)
        speed = Rate(max(_number(source, net.element, "speed") for net in nets) * 10**6)
        for leaf, cables in uplinks.items():
            fabric.cables += [ForeignCable(leaf, "spine1", rate=speed) for _ in range(cables)]
    fabric.remarks.append(f"the file describes no switches: {len(uplinks)} leaves were made up for its NICs")
    return fabric.read(source)


def _find(element: Element, tag: str, around: tuple[Element, ...]) -> Iterator[_Found]:
    for child in element.children:
        if child.tag == tag:
            yield _Found(child, around)
        yield from _find(child, tag, (*around, child) if child.tag == "pci" else around)


def _sorted_out(gpus: list[_Found], nets: list[_Found]) -> tuple[list[_Found], list[_Found]]:
    """NICs for GPUs and NICs for storage: those that share a PCIe switch with a GPU, in the order of the GPUs."""
    place: dict[int, int] = {}
    for number, gpu in enumerate(gpus):
        for switch in gpu.switches():
            place.setdefault(id(switch), number)
    near = {id(net): min((place[id(s)] for s in net.switches() if id(s) in place), default=None) for net in nets}
    compute = sorted((net for net in nets if near[id(net)] is not None), key=lambda net: near[id(net)] or 0)
    if not compute:
        compute, storage = nets[: len(gpus)], nets[len(gpus) :]
        return compute, storage
    compute, surplus = compute[: len(gpus)], compute[len(gpus) :]
    return compute, surplus + [net for net in nets if near[id(net)] is None]


def _shape(
    source: Source, fabric: ForeignFabric, gpus: list[_Found], compute: list[_Found], storage: list[_Found]
) -> HostShape:
    ratio = len(gpus) // len(compute) if compute else 0
    if compute and (ratio not in GPUS_PER_HCA or -(-len(gpus) // ratio) != len(compute)):
        fabric.remarks.append(f"{len(compute)} NICs for {len(gpus)} GPUs are shared out among them in blocks")
        storage[:0], ratio = compute, 0
        compute.clear()
    per_switch = Counter(id(gpu.switches()[-1]) for gpu in gpus if gpu.switches())
    nvlink, nvswitches = _nvlink(source, fabric, gpus)
    return HostShape(
        gpus=len(gpus),
        gpus_per_hca=ratio,
        storage_hcas=len(storage),
        gpus_per_pcie_switch=max(per_switch.values(), default=1),
        pcie_rate=_pcie_rate([*gpus, *compute, *storage]),
        nvlink_rate=nvlink,
        nvswitches=nvswitches,
        gpudirect=any(net.element.attributes.get("gdr") == "1" for net in (*compute, *storage)),
    )


def _nvlink(source: Source, fabric: ForeignFabric, gpus: list[_Found]) -> tuple[Rate | None, int]:
    links = list(gpus[0].element.all("nvlink")) if gpus else []
    count = sum(_number(source, link, "count") for link in links)
    if not count:
        return None, 0
    capability = _number(source, gpus[0].element, "sm")
    gbps = _NVLINK_GBPS[max((known for known in _NVLINK_GBPS if known <= capability), default=60)]
    switches = {
        link.attributes.get("target") for link in links if link.get(source, "tclass").startswith(_NVSWITCH_CLASS)
    }
    if not switches:
        fabric.remarks.append("NVLinks from GPU to GPU are taken for links to one NVSwitch")
    return Rate.gbps(count * gbps), max(1, len(switches))


def _pcie_rate(found: list[_Found]) -> Rate:
    """Of the first device that says a speed and a width; virtual machines often say a width of 0."""
    for device in found:
        pci = device.around[-1].attributes if device.around else {}
        words = pci.get("link_speed", "").split()
        try:
            gts, width = float(words[0]), int(pci.get("link_width", "0"))
        except (IndexError, ValueError):
            continue
        if gts in _GBPS_PER_LANE and 1 <= width <= 32:
            return Rate.gbps(_GBPS_PER_LANE[gts] * width)
    return PCIE_GEN4_X16


def _leaf(source: Source, net: _Found) -> str:
    rail, plane = (net.element.attributes.get(key) for key in ("rail", "plane"))
    if rail is None and plane is None:
        return "leaf1"
    parts = [f"plane{_number(source, net.element, 'plane')}"] if plane is not None else []
    return "-".join([*parts, *([f"rail{_number(source, net.element, 'rail')}"] if rail is not None else [])])


def _number(source: Source, element: Element, name: str) -> int:
    text = element.get(source, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise source.refusal(
            element.line, element.column, f"{name!r} of <{element.tag}> must be a whole number, not {text[:40]!r}"
        )
    return int(text)
