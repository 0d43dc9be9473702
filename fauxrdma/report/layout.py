"""Where each device of a topology is drawn: switches in rows by tier, below them the nodes with their HCAs and GPUs.

An HCA is as wide as the GPUs that use it, side by side below it. Host memory is drawn where traffic of GPUs crosses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fauxrdma.topology.graph import Node, NodeKind, Topology

__all__ = ["Box", "Layout", "lay_out"]

_MARGIN = 18.0
_PITCH_MAX, _PITCH_MIN = 46.0, 22.0
_WIDTH_GOAL = 1040.0
_HOST_GAP = 34.0
_TIER_GAP = 104.0
_SWITCH_W, _SWITCH_H = 74.0, 28.0
_SWITCH_SPACE = 16.0
_HCA_H, _PCIE_H, _GPU_H = 24.0, 8.0, 26.0
_HCA_TO_PCIE, _PCIE_TO_GPU = 44.0, 26.0
_GPU_TO_MEMORY, _MEMORY_H = 20.0, 18.0
_HOST_PADDING = 12.0
_HOST_LABEL_H = 22.0
_ALL_HCAS_UP_TO = 40
_MAX_HOSTS = 48


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle: centre x, top y, size, in SVG user units."""

    x: float
    y: float
    w: float
    h: float

    @property
    def left(self) -> float:
        """x of the left edge."""
        return self.x - self.w / 2

    @property
    def bottom(self) -> float:
        """y of the lower edge."""
        return self.y + self.h


@dataclass(slots=True)
class Layout:
    """Boxes by device name and by host number. `left_out` hosts did not fit; `pitch` is the space per GPU, or per HCA
    without one."""

    width: float = 0.0
    height: float = 0.0
    pitch: float = _PITCH_MAX
    boxes: dict[str, Box] = field(default_factory=dict)
    hosts: dict[int, Box] = field(default_factory=dict)
    left_out: int = 0


def lay_out(topology: Topology) -> Layout:
    """Place every switch and the hosts. Small fabrics show all HCAs, large ones only those of the GPUs in use."""
    shown_hosts = min(topology.hosts, _MAX_HOSTS)
    devices: dict[int, list[Node]] = {host: [] for host in range(shown_hosts)}
    for node in topology.nodes.values():
        if node.host is not None and node.host in devices:
            devices[node.host].append(node)
    if shown_hosts * topology.hcas_per_host > _ALL_HCAS_UP_TO:
        devices = {host: [node for node in nodes if _in_use(topology, node)] for host, nodes in devices.items()}
    columns = {
        host: [n for n in sorted(nodes, key=_index) if n.kind is NodeKind.HCA] for host, nodes in devices.items()
    }
    tiers: dict[int, list[Node]] = {}
    for switch in topology.switches():
        tiers.setdefault(switch.tier or 0, []).append(switch)

    in_host = {host: sum(_slots(topology, hca, devices[host]) for hca in hcas) for host, hcas in columns.items()}
    total_columns = sum(in_host.values())
    gaps = _HOST_GAP * max(0, shown_hosts - 1) + 2 * (_MARGIN + _HOST_PADDING)
    pitch = min(_PITCH_MAX, max(_PITCH_MIN, (_WIDTH_GOAL - gaps) / max(1, total_columns)))
    widest_tier = max((len(tier) for tier in tiers.values()), default=1)
    width = max(gaps + pitch * total_columns, 2 * _MARGIN + widest_tier * (_SWITCH_W + _SWITCH_SPACE), 560.0)

    layout = Layout(width=width, pitch=pitch, left_out=topology.hosts - shown_hosts)
    y = _MARGIN
    for tier in sorted(tiers, reverse=True):
        space = (width - 2 * _MARGIN) / len(tiers[tier])
        for place, switch in enumerate(tiers[tier]):
            layout.boxes[switch.name] = Box(_MARGIN + space * (place + 0.5), y, _SWITCH_W, _SWITCH_H)
        y += _SWITCH_H + _TIER_GAP
    x = (width - (gaps - 2 * (_MARGIN + _HOST_PADDING)) - pitch * total_columns) / 2
    for host, hcas in columns.items():
        _place_host(topology, layout, host, hcas, devices[host], x, y)
        x += pitch * in_host[host] + _HOST_GAP
    layout.height = max(box.bottom for box in (*layout.boxes.values(), *layout.hosts.values())) + _MARGIN
    return layout


def _index(node: Node) -> int:
    return node.index


def _in_use(topology: Topology, node: Node) -> bool:
    if node.kind is NodeKind.GPU:
        return node.index < topology.active_gpus
    if node.kind is NodeKind.HCA:
        return node in topology.active_hcas(node.host or 0)
    return any(
        topology.nodes[link.dst].kind is NodeKind.GPU and topology.nodes[link.dst].index < topology.active_gpus
        for link in topology.links_from(node.name)
    )


def _own_gpus(topology: Topology, hca: Node, devices: list[Node]) -> list[Node]:
    """The GPUs that use `hca`, of those that are drawn."""
    return [gpu for gpu in topology.gpus_of(hca) if gpu in devices]


def _slots(topology: Topology, hca: Node, devices: list[Node]) -> int:
    return max(1, len(_own_gpus(topology, hca, devices)))


def _crosses_memory(topology: Topology) -> bool:
    """Whether traffic between GPUs and their HCAs goes over host memory."""
    shape = topology.shape
    return not shape.gpudirect or any(
        shape.pcie_switch_of_hca(shape.hca_of_gpu(gpu)) != gpu // shape.gpus_per_pcie_switch
        for gpu in range(shape.gpus)
    )


def _place_host(
    topology: Topology, layout: Layout, host: int, hcas: list[Node], devices: list[Node], left: float, top: float
) -> None:
    pitch = layout.pitch
    hca_y = top + _HOST_PADDING
    pcie_y = hca_y + _HCA_H + _HCA_TO_PCIE - _PCIE_H
    gpu_y = pcie_y + _PCIE_H + _PCIE_TO_GPU
    bottom = gpu_y + _GPU_H
    x = left
    for hca in hcas:
        own = _own_gpus(topology, hca, devices)
        width = pitch * _slots(topology, hca, devices)
        layout.boxes[hca.name] = Box(x + width / 2, hca_y, width - 8, _HCA_H)
        for place, gpu in enumerate(own):
            layout.boxes[gpu.name] = Box(x + pitch * (place + 0.5), gpu_y, pitch - 8, _GPU_H)
        x += width
    for pcie in (node for node in devices if node.kind is NodeKind.PCIE):
        below = [layout.boxes[link.dst] for link in topology.links_from(pcie.name) if link.dst in layout.boxes]
        gpus = [box for box in below if box.y == gpu_y]  # an HCA far away must not stretch the switch
        spanned = gpus or below
        if spanned:
            first, last = min(box.left for box in spanned), max(box.left + box.w for box in spanned)
            above = _HCA_TO_PCIE / 2 if not gpus else 0.0  # off the row where it could lie on the switches of GPUs
            layout.boxes[pcie.name] = Box((first + last) / 2, pcie_y - above, last - first, _PCIE_H)
    if _crosses_memory(topology):
        bottom += _GPU_TO_MEMORY + _MEMORY_H
        layout.boxes[topology.memory(host).name] = Box((left + x) / 2, bottom - _MEMORY_H, x - left - 8, _MEMORY_H)
    w = x - left + 2 * _HOST_PADDING
    h = bottom + _HOST_LABEL_H - top
    layout.hosts[host] = Box((left + x) / 2, top, w, h)
