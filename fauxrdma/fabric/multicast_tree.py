"""Multicast trees: how a datagram to a multicast LID reaches every member, each cable crossed once.

As OpenSM (osm_mcast_mgr.c): one tree for each group, rooted at the switch with the fewest hops to the farthest member,
the lower-numbered on a tie; every switch of the tree gets a **forwarding mask**, the ports that belong to the tree. A
switch sends a datagram out of every port of its mask but the one it came in by. Branches are shortest ways from the
root, over the lowest port. A sender whose switch is not in the tree reaches it by the unicast route towards the root,
as a send-only member does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from fauxrdma.fabric.routing import Endpoint, SwitchGraph
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.topology.graph import Link

__all__ = ["Delivery", "MulticastTree"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """A datagram from one HCA to a group: ids of the links it crosses, from and to host memory, cables once; and the
    one-way latency in ns to every member that gets it. `lost_at`: links that are dead and would have been crossed."""

    links: tuple[int, ...]
    latency_ns: dict[int, int]
    lost_at: tuple[str, ...]


class MulticastTree:
    """The tree of the HCAs with LIDs `members` by the subnet manager's graph of switches. Members that are not reached
    (their cable is down, or they are on another island than the root) are left out.

    `root` is a switch's name, "" without members; `masks[switch]` are its ports in the tree.
    """

    def __init__(self, manager: SubnetManager, members: Collection[int]) -> None:
        self._manager = manager
        self._graph: SwitchGraph = manager.routes.graph
        self._ports = {(link.src, link.src_port): link for link in manager.topology.links}
        ends = [end for end in self._graph.endpoints if end.lid in set(members)]
        self.masks: dict[str, frozenset[int]] = {}
        self.root = ""
        if ends:
            root = self._choose_root({end.switch for end in ends})
            self.root = self._graph.switches[root]
            self.masks = self._grow(root, ends)

    def _choose_root(self, leaves: set[int]) -> int:
        hops = self._graph.hops[:, sorted(leaves)].max(axis=1)
        return int(hops.argmin())

    def _grow(self, root: int, ends: Iterable[Endpoint]) -> dict[str, frozenset[int]]:
        towards: dict[int, tuple[int, int, int]] = {}  # switch: its port to the parent, the parent, the parent's port
        todo = deque([root])
        seen = {root}
        while todo:
            at = todo.popleft()
            for trunk in self._graph.trunks[at]:
                if trunk.peer not in seen:
                    seen.add(trunk.peer)
                    towards[trunk.peer] = (trunk.peer_port, at, trunk.port)
                    todo.append(trunk.peer)
        masks: dict[int, set[int]] = {}
        for end in ends:
            if end.switch not in seen:
                continue
            at = end.switch
            masks.setdefault(at, set()).add(end.port)
            while at != root:
                port, parent, parents_port = towards[at]
                masks[at].add(port)
                masks.setdefault(parent, set()).add(parents_port)
                at = parent
        return {self._graph.switches[at]: frozenset(ports) for at, ports in sorted(masks.items())}

    def deliver(self, slid: int, dead: Collection[int] = ()) -> Delivery:
        """What a datagram from the HCA with LID `slid` crosses when the links in `dead` (ids) lose what they are given.

        A member that sends is not sent its own datagram by the fabric: its HCA copies it inside.
        """
        manager = self._manager
        source, _, host_in, _ = manager.ends(slid, slid, HOST_MEMORY, HOST_MEMORY)
        links = list(host_in)
        latency: dict[int, int] = {}
        lost: list[str] = []
        first = manager.topology.fabric_link(source)
        if first.dst_port in self.masks.get(first.dst, ()):
            _, _, _, host_out = manager.ends(slid, slid, HOST_MEMORY, HOST_MEMORY)
            links += host_out
            latency[slid] = manager.transport.latency_ns(manager.topology, [])
        ways = [[first]]
        while ways:
            way = ways.pop(0)
            link = way[-1]
            if link.id in dead:
                lost.append(link.name)
                continue
            links.append(link.id)
            if link.dst in self.masks:
                out = [self._ports[link.dst, port] for port in sorted(self.masks[link.dst] - {link.dst_port})]
                ways += [[*way, following] for following in out]
            elif link.dst in manager.tables:
                ways += [[*way, following] for following in self._to_the_tree(link.dst)]
            else:
                lid = manager.lid(link.dst)
                _, _, _, host_out = manager.ends(slid, lid, HOST_MEMORY, HOST_MEMORY)
                links += host_out
                latency[lid] = manager.transport.latency_ns(manager.topology, way)
        return Delivery(tuple(links), latency, tuple(lost))

    def _to_the_tree(self, at: str) -> list[Link]:
        port = self._manager.tables[at].get(self._manager.lid(self.root)) if self.root else None
        return [] if port is None else [self._ports[at, port]]
