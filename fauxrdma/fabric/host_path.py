"""The part of a path inside a host: from memory to the HCA that reads it.

Memories of a host are told apart by number (:mod:`fauxrdma.memory.location`).
"""

from __future__ import annotations

from fauxrdma.errors import FabricUnhealthy
from fauxrdma.memory.location import HCA_MEMORY, HOST_MEMORY, gpu_memory
from fauxrdma.topology.graph import Link, Node, NodeKind, Topology

__all__ = ["links_to_hca", "memory_behind", "memory_number", "usual_memory"]


def usual_memory(topology: Topology, hca: Node) -> Node:
    """The memory that an HCA stands for where a route is asked for by HCA: that of the first GPU that uses it, host
    memory for one that only serves storage."""
    gpus = topology.gpus_of(hca)
    return gpus[0] if gpus else topology.memory(hca.host or 0)


def memory_behind(topology: Topology, hca: Node, number: int | None = None) -> Node:
    """The memory with this number in the host of `hca`, the HCA itself for its own; None: its usual memory. Raises
    FabricUnhealthy for a GPU that the host does not have."""
    if number is None:
        return usual_memory(topology, hca)
    if number == HOST_MEMORY:
        return topology.memory(hca.host or 0)
    if number == HCA_MEMORY:
        return hca
    if not 0 < number <= topology.gpus_per_host:
        raise FabricUnhealthy(
            f"{hca.name} cannot reach memory {number}: its host has {topology.gpus_per_host} GPUs (memory n is that of "
            f"GPU n - 1, {HOST_MEMORY} is host memory, {HCA_MEMORY} the HCA's own)"
        )
    return topology.gpu(hca.host or 0, number - 1)


def memory_number(memory: Node) -> int:
    """The number of a memory that `memory_behind` gives: of a GPU, a host memory, an HCA (its own)."""
    if memory.kind is NodeKind.GPU:
        return gpu_memory(memory.index)
    return HCA_MEMORY if memory.kind is NodeKind.HCA else HOST_MEMORY


def links_to_hca(topology: Topology, memory: Node, hca: Node) -> list[Link]:
    """Links from `memory` (a GPU or the host memory of the same host, or the HCA itself) to `hca`.

    A GPU behind the HCA's PCIe switch is read through that switch; without GPUDirect, or behind another switch, the
    bytes go up to the root complex and down again.
    """
    if memory.kind is NodeKind.HCA:
        return []
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
