"""What the fabric's links carried: the daemons' counters, booked on the links their packets crossed.

**Who counts.** The sender what leaves its memories, booked on the links into its HCA and on the cables; the receiver
what goes into its memories, booked on the links out of its HCA. So each end tells what only it knows: which memory.

**What is counted.** Payload: the bytes of a request's or a READ response's data, once per frame that left the HCA,
repetitions included; at the receiver once per frame that it accepted. Not counted: headers, acknowledgements, the
operands of atomics, zero-byte messages (they count as frames of a pair), and whatever goes beside the fabric (the
ranks' rendezvous, the daemons' conversation with the subnet manager). A byte that is lost counts on the links it
crossed, up to the one that lost it. What ranks of a node send each other without an HCA counts on the NVLink or PCIe
links between their GPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fauxrdma.fabric.peer_way import even_shares, peer_way
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.runtime.told_paths import Ways
from fauxrdma.topology.graph import Link
from fauxrdma.wire.fabric_messages import (
    LandedCounter,
    LinkReport,
    PairCounter,
    PairReport,
    PeerTraffic,
    SprayCounter,
)

__all__ = ["LinkActivity", "TrafficAccount"]


@dataclass(slots=True)
class _Sum:
    """Traffic of one pair over one path, whose cables are `cables`."""

    cables: list[Link]
    nbytes: int = 0
    frames: int = 0
    busy_ns: int = 0


class LinkActivity:
    """Fabric time during which each link had at least one active flow."""

    def __init__(self, links: int) -> None:
        self._flows = [0] * links
        self._since = [0] * links
        self._total = [0] * links

    def start(self, path: Path, now: int) -> None:
        """A flow begins to use the links of `path`."""
        for link in path.links:
            if self._flows[link] == 0:
                self._since[link] = now
            self._flows[link] += 1

    def stop(self, path: Path, now: int) -> None:
        """It ends."""
        for link in path.links:
            self._flows[link] -= 1
            if self._flows[link] == 0:
                self._total[link] += now - self._since[link]

    def flows_on(self, link: int) -> int:
        """Active flows over a link."""
        return self._flows[link]

    def total_ns(self, link: int, now: int) -> int:
        """How long a link was in use since the last reset."""
        running = now - self._since[link] if self._flows[link] else 0
        return self._total[link] + running

    def reset(self, now: int) -> None:
        """Begin a new period; flows go on."""
        for link, flows in enumerate(self._flows):
            self._total[link] = 0
            if flows:
                self._since[link] = now


class TrafficAccount:
    """Sums by (source LID, destination LID, ids of the links crossed) since the last reset."""

    def __init__(self, manager: SubnetManager) -> None:
        self._manager = manager
        self._sums: dict[tuple[int, int, tuple[int, ...]], _Sum] = {}
        self._lanes: Counter[tuple[int, int]] = Counter()  # bytes by cable and virtual lane
        self._sprayed: Counter[int] = Counter()  # bytes by cable
        self._peers: dict[tuple[int, int, int], _Sum] = {}  # by host, source GPU and target GPU
        self._links = {link.name: link.id for link in manager.topology.links}
        self._landed: dict[tuple[int, int], int] = {}  # bytes by LID and memory

    def book(self, counter: PairCounter, own: tuple[int, ...], ways: Ways) -> None:
        """Add what a daemon sent: over its `own` links into the HCA, and over the cables of the way it went. What went
        several ways is booked by cable with `book_spray`."""
        cables = self._manager.cables_of(ways[0])
        links = own if len(ways) > 1 else (*own, *cables)
        path = [self._manager.topology.links[cable] for cable in cables]
        total = self._sums.setdefault((counter.slid, counter.dlid, links), _Sum(path))
        total.nbytes += counter.nbytes
        total.frames += counter.frames
        total.busy_ns += counter.busy_ns
        if len(ways) == 1:
            for cable in cables:
                self._lanes[cable, counter.vl] += counter.nbytes

    def book_spray(self, counter: SprayCounter, ways: Ways) -> None:
        """Add what a daemon sent over the cables of each way."""
        for way, nbytes in zip(ways, counter.nbytes, strict=True):
            for cable in self._manager.cables_of(way) if nbytes else ():
                self._sprayed[cable] += nbytes
                self._lanes[cable, 0] += nbytes

    def land(self, counter: LandedCounter) -> None:
        """Add what a daemon laid into one of its memories."""
        key = (counter.lid, counter.memory)
        self._landed[key] = self._landed.get(key, 0) + counter.nbytes

    def book_peers(self, host: int, traffic: PeerTraffic) -> None:
        """Add what GPUs of `host` sent each other. Raises ConfigError for GPUs between which there is no way."""
        peer_way(self._manager.topology.shape, host, traffic.source, traffic.target)
        total = self._peers.setdefault((host, traffic.source, traffic.target), _Sum([]))
        total.nbytes += traffic.nbytes
        total.busy_ns += traffic.busy_ns

    def reset(self) -> None:
        """Zero all."""
        self._sums.clear()
        self._lanes.clear()
        self._sprayed.clear()
        self._landed.clear()
        self._peers.clear()

    def _add_peers(self, nbytes: list[int], busy_ns: list[int]) -> None:
        for (host, source, target), total in self._peers.items():
            way = peer_way(self._manager.topology.shape, host, source, target)
            for hop in way.hops:
                for name, share in zip(hop, even_shares(total.nbytes, len(hop)), strict=True):
                    nbytes[self._links[name]] += share
                    busy_ns[self._links[name]] += total.busy_ns

    def link_reports(self, activity: LinkActivity, now: int, *, shaped: bool) -> list[LinkReport]:
        """Every link of the topology, by id."""
        links = self._manager.topology.links
        nbytes = [0] * len(links)
        busy_ns = [0] * len(links)
        arriving_ns: Counter[int] = Counter()  # by destination
        for (_, dlid, crossed), total in self._sums.items():
            arriving_ns[dlid] = max(arriving_ns[dlid], total.busy_ns)
            for at in crossed:
                nbytes[at] += total.nbytes
                busy_ns[at] = max(busy_ns[at], total.busy_ns)
        for at, sprayed in self._sprayed.items():
            nbytes[at] += sprayed
        self._add_peers(nbytes, busy_ns)
        for (lid, memory), landed in self._landed.items():
            for at in self._manager.out_of_hca(lid, memory):
                nbytes[at] += landed
                busy_ns[at] = max(busy_ns[at], arriving_ns[lid])
        by_lane: dict[int, dict[int, int]] = {}
        for (cable, vl), carried in sorted(self._lanes.items()):
            if carried:
                by_lane.setdefault(cable, {})[vl] = carried
        out = []
        for link in links:
            # A short burst may be over before its FlowStart was here: then the sender knows better how long it took.
            active = max(activity.total_ns(link.id, now), busy_ns[link.id])
            could = self._manager.payload_rate(link.id).bytes_per_ns * active
            utilisation = min(1.0, nbytes[link.id] / could) if could > 0 and shaped else 0.0
            out.append(
                LinkReport(
                    link.name,
                    link.src,
                    link.dst,
                    link.kind,
                    link.rate.bits_per_s,
                    nbytes[link.id],
                    utilisation,
                    by_lane.get(link.id, {}),
                )
            )
        return out

    def pair_reports(self) -> list[PairReport]:
        """Every pair with traffic, with the path its last traffic took, by LIDs."""
        topology = self._manager.topology
        out: dict[tuple[int, int], PairReport] = {}
        for (slid, dlid, _), total in self._sums.items():
            report = out.get((slid, dlid))
            if report is None:
                src = self._manager.node(slid).name
                dst = f"multicast 0x{dlid:x}" if dlid >= FIRST_MULTICAST_LID else self._manager.node(dlid).name
                report = out[slid, dlid] = PairReport(src, dst, 0, 0, 0, 0)
            report.nbytes += total.nbytes
            report.frames += total.frames
            if dlid < FIRST_MULTICAST_LID:  # a tree has no one length
                report.switches = max(0, len(total.cables) - 1)
                report.latency_ns = self._manager.transport.latency_ns(topology, total.cables)
        return [out[pair] for pair in sorted(out)]
