"""The part of a path inside a host: from memory to the HCA that reads it."""

from __future__ import annotations

from fauxrdma.topology.graph import Link, Node, NodeKind, Topology

__all__ = ["links_to_hca", "usual_memory"]


def usual_memory(topology: Topology, hca: Node) -> Node:
    """The memory that traffic of `hca` is charged to unless it says otherwise: that of the first GPU that uses the HCA,
    host memory for one that only serves storage."""
    gpus = topology.gpus_of(hca)
    return gpus[0] if gpus else topology.memory(hca.host or 0)


def links_to_hca(topology: Topology, memory: Node, hca: Node) -> list[Link]:
    """Links from `memory` (a GPU or the host memory of the same host) to `hca`.

    A GPU behind the HCA's PCIe switch is read through that switch; without GPUDirect, or behind another switch, the
    bytes go up to the root complex and down again.
    """
    up = _pcie_link(topology, hca)
    last = topology.links[up.reverse]
    root = topology.links[_uplink(topology, topology.nodes[up.dst]).reverse]
    if memory.kind is NodeKind.MEMORY:
        return [root, last]
    first = _pcie_link(topology, memory)
    if first.dst == up.dst and topology.shape.gpudirect:
        return [first, last]
    return [first, _uplink(topology, topology.nodes[first.dst]), root, last]


def _pcie_link(topology: Topology, device: Node) -> Link:
    return next(link for link in topology.links_from(device.name) if link.kind == "pcie")


def _uplink(topology: Topology, pcie_switch: Node) -> Link:
    links = topology.links_from(pcie_switch.name)
    return next(link for link in links if topology.nodes[link.dst].kind is NodeKind.MEMORY)
