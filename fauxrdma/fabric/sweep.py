"""A subnet that lives: links go down and come up, switches send traps, the subnet manager sweeps and sets new tables.

::

    link down ----detect----> trap 128 at the manager ----> heavy sweep: discover, compute, set tables ----> new tables
       |                                                                                              |
       '-- what is sent over the link is lost ---------------------------------------------------------'

The model follows OpenSM: trap 128 (link state change, IBTA vol. 1, 13.4.8.2) forces a heavy sweep (osm_trap_rcv.c);
a sweep asks every live node and port again, with `smps_on_wire` management packets under way at a time
(max_wire_smps), and then sends a switch only those blocks of 64 forwarding entries that changed (osm_ucast_mgr.c). A
trap that comes during a sweep causes another one after it. How long one packet and one table entry take depends on the
machine and the firmware: those figures are `SweepTiming`'s, and are assumptions, not measurements.

- **Link down**: the sweep leads around it only what went over it; all other entries stay as they are. (OpenSM computes
  all tables anew unless its unicast cache, option -A, can avoid it.)
- **Link up**: the link carries nothing before the sweep that finds it has made its ports active. That sweep computes
  all tables anew, as every heavy sweep of OpenSM does; when no link is down any more they are those of the start.
- **An HCA's own cable**: its port is DOWN at once, INIT when the cable is back, ACTIVE after the sweep. Its LID stays.

Sans-IO: `now` is fabric time in ns. Call `poll(now)` at `next_ns()`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.multicast_tree import Delivery, MulticastTree
from fauxrdma.fabric.routing import Routes
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.ib.enums import PortState
from fauxrdma.topology.graph import Link, NodeKind, Topology
from fauxrdma.topology.ip_subnets import ip_subnets, links_into_routers

__all__ = ["LivingSubnet", "Sweep", "SweepTiming", "Way", "changed_entries"]

LFT_BLOCK = 64
"""Forwarding entries in one management packet (IBTA vol. 1, 14.2.5.11)."""


@dataclass(frozen=True, slots=True)
class SweepTiming:
    """What a sweep takes, in fabric ns. `detect_ns`: until a switch takes a link for down (or up) and its trap is with
    the manager; `smp_ns`: one management packet there and back, both ends' handling included; `smps_on_wire`: how many
    are under way at a time, OpenSM's max_wire_smps; `entry_ns`: computing one forwarding entry."""

    detect_ns: int = 100_000
    smp_ns: int = 20_000
    smps_on_wire: int = 4
    entry_ns: int = 100

    def discovery_smps(self, topology: Topology, dead: Iterable[int]) -> int:
        """Packets to ask for everything: NodeInfo over every live cable and way; NodeDescription of every node;
        SwitchInfo of switches; PortInfo of every port, a switch's port 0 included."""
        gone = set(dead)
        cables = sum(1 for link in topology.links if link.kind == "cable" and link.id not in gone)
        switches = topology.switches()
        ports = sum((switch.radix or 0) + 1 for switch in switches) + len(topology.hcas())
        return cables + len(switches) + len(topology.hcas()) + len(switches) + ports

    def sweep_ns(self, old: Routes, new: Routes) -> int:
        """From the trap to the last table set, with `new` computed and what differs from `old` sent."""
        blocks = {(name, lid // LFT_BLOCK) for name, lid in changed_entries(old, new)}
        smps = self.discovery_smps(new.graph.topology, new.graph.down) + len(blocks)
        return -(-smps // self.smps_on_wire) * self.smp_ns + new.ports.size * self.entry_ns


def changed_entries(old: Routes, new: Routes) -> frozenset[tuple[str, int]]:
    """(switch, LID) of every entry that is not the same in both, those that came or went included."""
    places = np.argwhere(old.ports != new.ports).tolist()
    return frozenset((new.graph.switches[at], lid) for at, lid in places)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep that has ended. Times in fabric ns; `changed` are (switch, LID) of the entries that are not what they
    were; `down` the names of the links it found down, one direction each."""

    started_ns: int
    ended_ns: int
    changed: frozenset[tuple[str, int]]
    down: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """Where packets from one HCA to another go now: the links they cross, and where they are lost ("" if they are not):
    a link that is down, a switch without an entry, or a router that cannot forward packets of their kind."""

    links: tuple[int, ...]
    lost_at: str


@dataclass(frozen=True, slots=True)
class _Running:
    started_ns: int
    ends_ns: int
    routes: Routes


class LivingSubnet:
    """The links' state and the sweeps of one subnet manager. Deterministic."""

    def __init__(self, manager: SubnetManager, timing: SweepTiming | None = None) -> None:
        self.manager = manager
        self.timing = SweepTiming() if timing is None else timing
        self.sweeps: list[Sweep] = []
        self._topology = manager.topology
        self._ports = {(link.src, link.src_port): link for link in self._topology.links}
        self._down: set[int] = set()
        self._changed_ns: dict[int, int] = {}  # links that no sweep has made active since
        self._swept: frozenset[int] = frozenset()  # what the tables in force leave out
        self._traps: list[int] = []
        self._running: _Running | None = None
        self._members: dict[int, frozenset[int]] = {}  # multicast LID to the LIDs of HCAs
        self._trees: dict[int, MulticastTree] = {}
        self.ip_subnets = ip_subnets(self._topology)
        self._walls = frozenset() if manager.transport.routable else links_into_routers(self._topology)

    # -- links

    def cable(self, name: str) -> Link:
        """The cable called `name`: either direction (``leaf1->spine1:2``), or just the HCA (``n0.hca1``) for its own.
        Raises ConfigError for what is no cable."""
        cables = {link.name: link for link in self._topology.links if link.kind == "cable"}
        node = self._topology.nodes.get(name)
        if node is not None and node.kind is NodeKind.HCA:
            return self._topology.fabric_link(node)
        found = cables.get(name)
        if found is None:
            close = [known for known in cables if known.startswith(f"{name}:")]
            close = close or difflib.get_close_matches(name, cables, n=1)
            hint = f" (did you mean {' or '.join(close)}?)" if close else ""
            raise ConfigError(f"{self._topology.name} has no cable {name!r}{hint}: links go down by a cable's name")
        return found

    def is_up(self, name: str) -> bool:
        """Whether a cable carries data: it is up, and a sweep has made its ports active."""
        return self.cable(name).id not in self._changed_ns

    def link_down(self, name: str, now_ns: int) -> Link:
        """A cable fails, both directions; what is on it is lost. Harmless when it is down already."""
        link = self.cable(name)
        if link.id not in self._down:
            self._down |= {link.id, link.reverse}
            self._changed(link, now_ns)
        return link

    def link_up(self, name: str, now_ns: int) -> Link:
        """A cable is plugged in again. Harmless when it is up already."""
        link = self.cable(name)
        if link.id in self._down:
            self._down -= {link.id, link.reverse}
            self._changed(link, now_ns)
        return link

    def _changed(self, link: Link, now_ns: int) -> None:
        for direction in (link.id, link.reverse):
            self._changed_ns[direction] = now_ns
        self._traps.append(now_ns + self.timing.detect_ns)

    def sweep_from(self, now_ns: int) -> None:
        """The manager starts (again): a heavy sweep is due."""
        self._traps.append(now_ns)

    def port_state(self, hca: str) -> PortState:
        """The state of an HCA's port."""
        link = self.cable(hca).id
        if link in self._down:
            return PortState.IBV_PORT_DOWN
        return PortState.IBV_PORT_INIT if link in self._changed_ns else PortState.IBV_PORT_ACTIVE

    # -- sweeps

    @property
    def settled(self) -> bool:
        """Whether no trap is on its way and no sweep is running."""
        return self._running is None and not self._traps

    def next_ns(self) -> int | None:
        """When `poll` has something to do; None when all is settled."""
        if self._running is not None:
            return self._running.ends_ns
        return min(self._traps, default=None)

    def poll(self, now_ns: int) -> list[Sweep]:
        """Let time pass; the sweeps that have ended meanwhile."""
        ended = []
        while (due := self.next_ns()) is not None and due <= now_ns:
            if self._running is None:
                self._start(due)
            else:
                ended.append(self._finish(self._running))
        return ended

    def _start(self, now_ns: int) -> None:
        self._traps = [trap for trap in self._traps if trap > now_ns]
        routes = self.manager.compute_routes(self._down, keep=self._down >= self._swept)
        ends_ns = now_ns + self.timing.sweep_ns(self.manager.routes, routes)
        self._running = _Running(now_ns, ends_ns, routes)

    def _finish(self, run: _Running) -> Sweep:
        self._running = None
        self._traps = [max(trap, run.ends_ns) for trap in self._traps]
        changed = changed_entries(self.manager.routes, run.routes)
        self.manager.adopt(run.routes)
        self._trees.clear()
        self._swept = down = run.routes.graph.down
        # What changed after the discovery is left to the next sweep.
        self._changed_ns = {
            link: since for link, since in self._changed_ns.items() if link in down or since > run.started_ns
        }
        cables = [self._topology.links[link] for link in down]
        names = sorted(cable.name for cable in cables if cable.id < cable.reverse)
        sweep = Sweep(run.started_ns, run.ends_ns, changed, tuple(names))
        self.sweeps.append(sweep)
        return sweep

    # -- multicast groups

    def set_members(self, group: int, lids: Iterable[int]) -> None:
        """The HCAs that hear multicast LID `group` now: its tree is computed anew, as it is in every sweep."""
        self._members[group] = frozenset(lids)
        self._trees.pop(group, None)

    def tree(self, group: int) -> MulticastTree:
        """The tree of a multicast LID, with the forwarding masks of its switches."""
        tree = self._trees.get(group)
        if tree is None:
            tree = self._trees[group] = MulticastTree(self.manager, self._members.get(group, frozenset()))
        return tree

    def deliver(self, slid: int, group: int) -> Delivery:
        """Where a datagram from an HCA to a group goes now. Raises FabricUnhealthy for a LID that is not an HCA's."""
        return self.tree(group).deliver(slid, self._changed_ns.keys() | self._walls)

    # -- ways

    def follow(self, links: Iterable[int]) -> Way:
        """Where packets get that are sent over these links (ids, in order)."""
        crossed: list[int] = []
        for link in links:
            if link in self._changed_ns:
                return Way(tuple(crossed), self._topology.links[link].name)
            crossed.append(link)
            if link in self._walls:
                return Way(tuple(crossed), self._topology.links[link].dst)
        return Way(tuple(crossed), "")

    def way(self, slid: int, dlid: int) -> Way:
        """Where packets from one HCA to another go now by the tables. Raises FabricUnhealthy for a LID that is not an
        HCA's."""
        source, target, host_in, host_out = self.manager.ends(slid, dlid)
        if slid == dlid:
            return Way((*host_in, *host_out), "")
        links = [*host_in]
        link = self._topology.fabric_link(source)
        for _ in range(len(self.manager.tables) + 1):
            if link.id in self._changed_ns:
                return Way(tuple(links), link.name)
            links.append(link.id)
            if link.id in self._walls:
                break
            if link.dst == target.name:
                return Way((*links, *host_out), "")
            port = self.manager.tables[link.dst].get(dlid)
            if port is None:
                break
            link = self._ports[link.dst, port]
        return Way(tuple(links), link.dst)
