"""What the subnet manager service knows: members, active flows, counters; and the report made of them.

Bookkeeping only: no sockets and no clock. `now` is fabric time in ns. Flows are keyed by (node, the daemon's flow id).
A message that breaks the rules raises RemoteProtocolError with a sentence for the person who started its sender.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from fauxrdma.errors import ConfigError, FabricUnhealthy, LocalProtocolError, RemoteProtocolError
from fauxrdma.fabric.faults import Effects
from fauxrdma.fabric.flow_ways import FlowWays
from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.fabric.sweep import LivingSubnet
from fauxrdma.ib.attributes import DATA_LANES, FIRST_MULTICAST_LID, LAST_MULTICAST_LID
from fauxrdma.ib.enums import LinkLayer
from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.runtime.neighbours import Neighbours
from fauxrdma.runtime.told_paths import ToldPaths, Ways
from fauxrdma.runtime.traffic_account import LinkActivity, TrafficAccount
from fauxrdma.topology.graph import NodeKind
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Counters,
    DirectoryEntry,
    FabricReport,
    FlowLanding,
    FlowsForgotten,
    FlowStart,
    GidAnswer,
    GidQuery,
    GidsChanged,
    GidsKnown,
    HcaInfo,
    NodeHello,
    PairCounter,
    PeerTraffic,
    SprayCounter,
)
from fauxrdma.wire.fault_messages import LinkErrors

__all__ = ["SubnetState"]

_DEBT_RANGE = (-1000, 1_000_000)
"""Debt samples are kept as a histogram of per-mille values, clipped to this range so that it stays small."""


class SubnetState:
    """The state behind one subnet manager service. `manager` gives addresses and routes; the rest is kept here."""

    def __init__(self, manager: SubnetManager, clock: str, dilation: float) -> None:
        self.manager = manager
        self.topology = manager.topology
        self.clock = clock
        self.dilation = dilation
        self.members: dict[int, NodeHello] = {}
        self.lost: set[int] = set()
        self.subnet = LivingSubnet(manager)
        self._ways = FlowWays(manager)
        self.paths = ToldPaths(self.subnet, self._ways)
        self._model: FabricModel[tuple[int, int]] = FabricModel.of(manager)
        self._flows: dict[tuple[int, int], FlowStart] = {}  # active
        self._routed: dict[tuple[int, int], Path] = {}  # those of them that have a path
        self._alone: dict[tuple[int, int], int] = {}  # rates to be told of flows that cross no link
        self._landing: dict[tuple[int, int], int] = {}  # memory by (LID, queue pair) that payload goes to
        self._activity = LinkActivity(len(self.topology.links))
        self._traffic = TrafficAccount(manager)
        self._debt: Counter[int] = Counter()
        self._retransmits = 0
        self.link_errors: dict[str, LinkErrors] = {}  # since the start
        self._since = 0
        self.neighbours = Neighbours(hca for node in range(self.topology.hosts) for hca in self.hcas(node))

    # -- membership

    @property
    def complete(self) -> bool:
        """Whether every node of the fabric is in."""
        return len(self.members) == self.topology.hosts

    def join(self, hello: NodeHello) -> list[HcaInfo]:
        """Let a node in and give it its HCAs. A lost node may come back. Raises RemoteProtocolError if it cannot."""
        check_version(hello.version, "HCA daemon")
        if not 0 <= hello.node < self.topology.hosts:
            raise RemoteProtocolError(
                f"node {hello.node} is not in fabric {self.topology.name}: it has {_node_range(self.topology.hosts)}; "
                "start the subnet manager with more --nodes or this daemon with another --node"
            )
        other = self.members.get(hello.node)
        if other is not None:
            raise RemoteProtocolError(
                f"node {hello.node} is already in fabric {self.topology.name} (daemon pid {other.pid} at "
                f"{other.host}:{other.port}): give this daemon another --node, or end that one first"
            )
        if not hello.host or not 0 < hello.port < 65536:
            raise RemoteProtocolError(
                f"node {hello.node} says it listens at {hello.host!r}, port {hello.port}: nobody could reach it there"
            )
        self.members[hello.node] = hello
        self.lost.discard(hello.node)
        return self.hcas(hello.node)

    def leave(self, node: int, now: int) -> None:
        """The node's daemon is gone: drop its flows and remember it as lost."""
        if self.members.pop(node, None) is None:
            return
        self.lost.add(node)
        self.paths.forget(node)
        for hca in self.hcas(node):
            self.neighbours.forget(hca.lid)
        for target in [target for target in self._landing if self.owns(node, target[0])]:
            del self._landing[target]
        for key in [key for key in self._flows if key[0] == node]:
            self.flow_stop(node, key[1], now)

    def hcas(self, node: int) -> list[HcaInfo]:
        """The HCAs of a node as its daemon needs them."""
        ethernet = self.manager.transport.ethernet
        link_layer = LinkLayer.IBV_LINK_LAYER_ETHERNET if ethernet else LinkLayer.IBV_LINK_LAYER_INFINIBAND
        out = []
        for hca in (self.topology.hca(node, index) for index in range(1, self.topology.hcas_per_host + 1)):
            lid = self.manager.lid(hca.name)
            cable = self.topology.fabric_link(hca)
            out.append(
                HcaInfo(
                    name=f"hca{hca.index}",
                    index=hca.index,
                    lid=lid,
                    guid=self.manager.guid(lid),
                    gid=self.manager.gid(lid),
                    rate_bps=cable.rate.bits_per_s,
                    mtu=self.topology.mtu,
                    gpus=[gpu.index for gpu in self.topology.gpus_of(hca)],
                    leaf=cable.dst,
                    leaf_port=cable.dst_port,
                    link_layer=int(link_layer),
                    transport=self.topology.transport,
                    subnet=self.subnet.ip_subnets[hca.name],
                )
            )
        return out

    def directory(self) -> list[DirectoryEntry]:
        """Where every HCA of the nodes that are in can be reached, in LID order."""
        entries = []
        for hca in self.topology.hcas():
            member = self.members.get(-1 if hca.host is None else hca.host)
            if member is not None:
                lid = self.manager.lid(hca.name)
                entries.append(DirectoryEntry(lid, member.host, member.port, member.node, f"hca{hca.index}"))
        return entries

    # -- flows

    def set_effects(self, effects: Effects) -> None:
        """Faults have begun or ended: rates and paths are others now."""
        slower = effects.slowdown.keys() | self.paths.effects.slowdown.keys()
        self.paths.effects = effects
        self._model.set_capacities(
            {link: int(self.manager.payload_rate(link).bits_per_s * effects.slowdown.get(link, 1.0)) for link in slower}
        )

    def flow_start(self, node: int, start: FlowStart, now: int) -> bool:
        """A flow of `node` has data. Starting one that is active moves it. Returns whether the daemon's path is another
        now. Raises RemoteProtocolError if it cannot be: a source LID of another node, a destination that no HCA has, a
        memory that the node has not, a weight out of range."""
        self.check_own(node, start.slid)
        try:
            self.manager.into_hca(start.slid, start.memory)
            self.manager.ends(start.slid, start.slid if start.dlid >= FIRST_MULTICAST_LID else start.dlid)
            self._route((node, start.flow), start, now, flowlet=start.flowlet)
        except (FabricUnhealthy, LocalProtocolError) as error:
            raise RemoteProtocolError(f"node {node} cannot start flow {start.flow}: {error}") from None
        self._flows[node, start.flow] = start
        return self._chooses and self.paths.chosen((start.slid, start.dlid, start.label))

    @property
    def _chooses(self) -> bool:
        """Whether a flow's way may be another each time it starts."""
        return self.manager.routes.engine == "adaptive"

    def flow_stop(self, node: int, flow: int, now: int) -> None:
        """A flow has no more data. Stopping one that is not active is harmless."""
        if self._flows.pop((node, flow), None) is not None:
            self._unroute((node, flow), now)

    def flow_lands(self, node: int, landing: FlowLanding, now: int) -> None:
        """What arrives for a queue pair of `node` goes into another memory, and its flows by another way from now on.
        Raises RemoteProtocolError for what the node does not have."""
        self.check_own(node, landing.lid)
        target = (landing.lid, landing.qpn)
        if landing.memory is None:
            self._landing.pop(target, None)
            return
        self._own_links(node, landing.lid, landing.memory)
        self._landing[target] = landing.memory
        for key, start in self._flows.items():
            if (start.dlid, start.dqpn) == target or (start.dlid >= FIRST_MULTICAST_LID and start.dqpn == landing.qpn):
                self._route(key, start, now, flowlet=False)

    def reroute(self, now: int) -> None:
        """The tables are new: active flows go by them. What has no path shares no link."""
        self._ways.clear()
        for key, start in self._flows.items():
            self._route(key, start, now, flowlet=True)

    def _route(self, key: tuple[int, int], start: FlowStart, now: int, *, flowlet: bool) -> None:
        try:
            path = self._path_of(start, flowlet)
        except FabricUnhealthy:
            self._unroute(key, now)
            return
        if not path.links:  # inside one HCA
            self._unroute(key, now)
            self._alone[key] = path.rate.bits_per_s
            return
        self._model.start(key, path, start.weight)
        before = self._routed.get(key)
        self._activity.start(path, now)
        if before is not None:
            self._activity.stop(before, now)
        self._routed[key] = path

    def _path_of(self, start: FlowStart, flowlet: bool) -> Path:
        """What a flow loads: its path, or its group's tree, from the memory it reads from to where it lands."""
        if start.dlid >= FIRST_MULTICAST_LID:
            return self._tree_of(start)
        path = self._ways.begin((start.slid, start.dlid, start.label), self._activity.flows_on, flowlet=flowlet)
        landing = self._landing.get((start.dlid, start.dqpn))
        return self.manager.between(path, start.slid, start.dlid, start.memory, landing)

    def _tree_of(self, start: FlowStart) -> Path:
        sent = self.subnet.deliver(start.slid, start.dlid)
        links = [*self.manager.into_hca(start.slid, start.memory or HOST_MEMORY), *self.manager.cables_of(sent.links)]
        for member in sent.latency_ns:
            links += self.manager.out_of_hca(member, self._landing.get((member, start.dqpn), HOST_MEMORY))
        rate = min(self.manager.payload_rate(link) for link in links)
        return Path(tuple(links), 0, 0, rate)

    def _ways_of(self, counted: PairCounter | SprayCounter) -> Ways:
        """The ways that what is counted went."""
        label = 0 if counted.dlid >= FIRST_MULTICAST_LID else counted.label
        return self.paths.in_force(counted.slid, counted.dlid, label)

    def _unroute(self, key: tuple[int, int], now: int) -> None:
        path = self._routed.pop(key, None)
        if path is not None:
            self._activity.stop(path, now)
            self._model.stop(key)

    def grants(self) -> dict[int, dict[int, int]]:
        """Recompute; for each node the rates (bits/s) of its flows that changed."""
        out: dict[int, dict[int, int]] = {}
        alone, self._alone = self._alone, {}
        for (node, flow), rate in (self._model.changes() | alone).items():
            out.setdefault(node, {})[flow] = rate
        return out

    def owns(self, node: int, lid: int) -> bool:
        """Whether the HCA with `lid` is the node's own."""
        return 1 <= lid <= len(self.manager.lids) and self.manager.node(lid).host == node

    def check_own(self, node: int, lid: int) -> None:
        """Raise RemoteProtocolError unless the HCA with `lid` is the node's own."""
        if not self.owns(node, lid):
            raise RemoteProtocolError(f"node {node} has no HCA with LID {lid}: it may only speak for its own")

    def gids_changed(self, node: int, change: GidsChanged) -> GidsKnown:
        """A port of a node's has other addresses. Raises RemoteProtocolError for another node's, or none."""
        self.check_own(node, change.lid)
        try:
            return GidsKnown(change.token, self.neighbours.set_added(change.lid, change.gids))
        except ValueError as error:
            raise RemoteProtocolError(f"node {node} gave LID {change.lid} what is no address: {error}") from None

    def find_gid(self, query: GidQuery) -> GidAnswer:
        """Which port has an address."""
        return GidAnswer(query.token, *self.neighbours.find(query.gid))

    def flows_forgotten(self, node: int, gone: FlowsForgotten) -> None:
        """Queue pairs of a node's are gone. Raises RemoteProtocolError for a flow of another node."""
        for flow in zip(gone.slids, gone.dlids, gone.labels, strict=False):
            self.check_own(node, flow[0])
            self.paths.forget_flow(flow)

    # -- counters and the report

    def count(self, node: int, counters: Counters) -> None:
        """Add what a daemon sent. Raises RemoteProtocolError for LIDs that are not the node's or negative counts."""
        for pair in counters.pairs:
            self.check_own(node, pair.slid)
            if not self._can_receive(pair.dlid):
                raise RemoteProtocolError(f"node {node} counted bytes to LID {pair.dlid}, which no HCA has")
            if not 0 <= pair.vl < DATA_LANES:
                raise RemoteProtocolError(f"node {node} counted bytes on lane {pair.vl}: there are {DATA_LANES}")
            if min(pair.nbytes, pair.frames, pair.busy_ns) < 0:
                raise RemoteProtocolError(f"node {node} counted less than nothing from LID {pair.slid} to {pair.dlid}")
        for spray in counters.sprayed:
            self._check_spray(node, spray)
        own = [self._own_links(node, pair.slid, pair.memory) for pair in counters.pairs]
        for landed in counters.landed:
            self.check_own(node, landed.lid)
            self._own_links(node, landed.lid, landed.memory)
            if landed.nbytes < 0:
                raise RemoteProtocolError(f"node {node} counted less than nothing into LID {landed.lid}")
        for pair, first in zip(counters.pairs, own, strict=True):
            self._traffic.book(pair, first, self._ways_of(pair))
        for spray in counters.sprayed:
            self._traffic.book_spray(spray, self._ways_of(spray))
        for landed in counters.landed:
            self._traffic.land(landed)
        low, high = _DEBT_RANGE
        self._debt.update(min(max(sample, low), high) for sample in counters.debt_permille)
        self._retransmits += counters.retransmits
        for errors in counters.errors:
            total = self.link_errors.setdefault(errors.link, LinkErrors(errors.link, 0, 0, 0))
            total.symbol_errors += errors.symbol_errors
            total.link_error_recoveries += errors.link_error_recoveries
            total.frames_lost += errors.frames_lost

    def _check_spray(self, node: int, spray: SprayCounter) -> None:
        self.check_own(node, spray.slid)
        ways = self._ways_of(spray)
        if len(spray.nbytes) != len(ways) or min(spray.nbytes, default=0) < 0:
            raise RemoteProtocolError(
                f"node {node} counted {spray.nbytes} bytes by way from LID {spray.slid} to {spray.dlid}: that flow has "
                f"{len(ways)} ways"
            )

    def count_peers(self, node: int, traffic: PeerTraffic) -> None:
        """Add what GPUs of a node sent each other. Raises RemoteProtocolError for GPUs that are not the node's."""
        if min(traffic.nbytes, traffic.busy_ns) < 0:
            raise RemoteProtocolError(f"node {node} counted less than nothing between its GPUs")
        try:
            self._traffic.book_peers(node, traffic)
        except ConfigError as error:
            raise RemoteProtocolError(f"node {node} counted traffic between GPUs it has not: {error}") from None

    def _own_links(self, node: int, lid: int, memory: int) -> tuple[int, ...]:
        """The links from a memory of the node to its HCA. Raises RemoteProtocolError for one that it does not have."""
        try:
            return self.manager.into_hca(lid, memory)
        except FabricUnhealthy as error:
            raise RemoteProtocolError(f"node {node} counted bytes in a memory it does not have: {error}") from None

    def _can_receive(self, lid: int) -> bool:
        if FIRST_MULTICAST_LID <= lid <= LAST_MULTICAST_LID:
            return True
        return 1 <= lid <= len(self.manager.lids) and self.manager.node(lid).kind is NodeKind.HCA

    def reset(self, now: int) -> None:
        """Zero all counters; flows go on."""
        self._traffic.reset()
        self._debt.clear()
        self._retransmits = 0
        self._activity.reset(now)
        self._since = now

    def report(self, now: int) -> FabricReport:
        """What the fabric carried since start or the last reset."""
        return FabricReport(
            fabric=self.topology.name,
            clock=self.clock,
            dilation=self.dilation,
            elapsed_ns=now - self._since,
            links=self._traffic.link_reports(self._activity, now, shaped=self.clock != "none"),
            pairs=self._traffic.pair_reports(),
            debt_p50_percent=_percentile(self._debt, 0.50) / 10,
            debt_p99_percent=_percentile(self._debt, 0.99) / 10,
            debt_samples=self._debt.total(),
            retransmits=self._retransmits,
            lost_nodes=sorted(self.lost),
            routing=self.manager.routes.engine,
            routing_messages=[*self.manager.routes.messages, *self.manager.routes.warnings],
        )


def check_version(version: int, who: str) -> None:
    """Raise RemoteProtocolError unless the peer speaks our version of the control messages."""
    if version != CONTROL_VERSION:
        raise RemoteProtocolError(
            f"this {who} speaks control version {version}, the subnet manager speaks {CONTROL_VERSION}: "
            "install the same release of fauxrdma on both sides"
        )


def _node_range(hosts: int) -> str:
    return "only node 0" if hosts == 1 else f"nodes 0 to {hosts - 1}"


def _percentile(histogram: Counter[int], fraction: float) -> float:
    """The nearest-rank percentile of the samples in a histogram; 0 without samples."""
    rank = max(1, math.ceil(histogram.total() * fraction))
    return float(_nth(sorted(histogram.items()), rank))


def _nth(counts: Iterable[tuple[int, int]], rank: int) -> int:
    for value, count in counts:
        rank -= count
        if rank <= 0:
            return value
    return 0
