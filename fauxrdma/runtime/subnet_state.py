"""What the subnet manager service knows: members, active flows, counters; and the report made of them.

Bookkeeping only: no sockets and no clock. `now` is fabric time in ns. Flows are keyed by (node, the daemon's flow id).
A message that breaks the rules raises RemoteProtocolError with a sentence for the person who started its sender.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fauxrdma.errors import FabricUnhealthy, LocalProtocolError, RemoteProtocolError
from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.subnet import Path, SubnetManager
from fauxrdma.topology.graph import NodeKind
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    Counters,
    DirectoryEntry,
    FabricReport,
    FlowStart,
    HcaInfo,
    LinkReport,
    NodeHello,
    PairReport,
    PathAnswer,
)

__all__ = ["SubnetState"]

_DEBT_RANGE = (-1000, 1_000_000)
"""Debt samples are kept as a histogram of per-mille values, clipped to this range so that it stays small."""


@dataclass(slots=True)
class _Pair:
    """Traffic from one LID to another since the last reset."""

    nbytes: int = 0
    frames: int = 0
    busy_ns: int = 0


class _LinkActivity:
    """Fabric time during which each link had at least one active flow."""

    def __init__(self, links: int) -> None:
        self._flows = [0] * links
        self._since = [0] * links
        self._total = [0] * links

    def start(self, path: Path, now: int) -> None:
        for link in path.links:
            if self._flows[link] == 0:
                self._since[link] = now
            self._flows[link] += 1

    def stop(self, path: Path, now: int) -> None:
        for link in path.links:
            self._flows[link] -= 1
            if self._flows[link] == 0:
                self._total[link] += now - self._since[link]

    def total_ns(self, link: int, now: int) -> int:
        running = now - self._since[link] if self._flows[link] else 0
        return self._total[link] + running

    def reset(self, now: int) -> None:
        for link, flows in enumerate(self._flows):
            self._total[link] = 0
            if flows:
                self._since[link] = now


class SubnetState:
    """The state behind one subnet manager service. `manager` gives addresses and routes; the rest is kept here."""

    def __init__(self, manager: SubnetManager, clock: str, dilation: float) -> None:
        self.manager = manager
        self.topology = manager.topology
        self.clock = clock
        self.dilation = dilation
        self.members: dict[int, NodeHello] = {}
        self.lost: set[int] = set()
        self._model: FabricModel[tuple[int, int]] = FabricModel.of(manager)
        self._paths: dict[tuple[int, int], Path] = {}
        self._activity = _LinkActivity(len(self.topology.links))
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._debt: Counter[int] = Counter()
        self._retransmits = 0
        self._since = 0

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
        for key in [key for key in self._paths if key[0] == node]:
            self.flow_stop(node, key[1], now)

    def hcas(self, node: int) -> list[HcaInfo]:
        """The HCAs of a node as its daemon needs them."""
        out = []
        for hca in self.topology.hcas():
            if hca.host != node:
                continue
            lid = self.manager.lid(hca.name)
            cable = self.topology.fabric_link(hca)
            gpus = self.topology.gpus_of(hca)
            out.append(
                HcaInfo(
                    name=f"hca{hca.index}",
                    index=hca.index,
                    lid=lid,
                    guid=self.manager.guid(lid),
                    gid=self.manager.gid(lid),
                    rate_bps=cable.rate.bits_per_s,
                    mtu=self.topology.mtu,
                    gpu=gpus[0].index if gpus else None,
                    leaf=cable.dst,
                    leaf_port=cable.dst_port,
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

    # -- paths and flows

    def path_answer(self, slid: int, dlid: int) -> PathAnswer:
        """The path between two LIDs, or an answer that says there is none."""
        try:
            path = self.manager.path(slid, dlid)
        except FabricUnhealthy:
            return PathAnswer(slid, dlid, False, 0, [], 0, 0)
        names = [self.topology.links[link].name for link in path.links]
        return PathAnswer(slid, dlid, True, path.switches, names, path.latency_ns, path.rate.bits_per_s)

    def flow_start(self, node: int, start: FlowStart, now: int) -> None:
        """A flow of `node` has data. Starting one that is active moves it. Raises RemoteProtocolError if it cannot be:
        a source LID of another node, a destination that no HCA has, a weight out of range."""
        self.check_own(node, start.slid)
        try:
            path = self.manager.path(start.slid, start.dlid)
            self._model.start((node, start.flow), path, start.weight)
        except (FabricUnhealthy, LocalProtocolError) as error:
            raise RemoteProtocolError(f"node {node} cannot start flow {start.flow}: {error}") from None
        before = self._paths.get((node, start.flow))
        self._activity.start(path, now)
        if before is not None:
            self._activity.stop(before, now)
        self._paths[node, start.flow] = path

    def flow_stop(self, node: int, flow: int, now: int) -> None:
        """A flow has no more data. Stopping one that is not active is harmless."""
        path = self._paths.pop((node, flow), None)
        if path is not None:
            self._activity.stop(path, now)
            self._model.stop((node, flow))

    def grants(self) -> dict[int, dict[int, int]]:
        """Recompute; for each node the rates (bits/s) of its flows that changed."""
        out: dict[int, dict[int, int]] = {}
        for (node, flow), rate in self._model.changes().items():
            out.setdefault(node, {})[flow] = rate
        return out

    def check_own(self, node: int, lid: int) -> None:
        """Raise RemoteProtocolError unless the HCA with `lid` is the node's own."""
        if not (1 <= lid <= len(self.manager.lids) and self.manager.node(lid).host == node):
            raise RemoteProtocolError(f"node {node} has no HCA with LID {lid}: it may only speak for its own")

    # -- counters and the report

    def count(self, node: int, counters: Counters) -> None:
        """Add what a daemon sent. Raises RemoteProtocolError for LIDs that are not the node's or negative counts."""
        for pair in counters.pairs:
            self.check_own(node, pair.slid)
            if not (1 <= pair.dlid <= len(self.manager.lids)) or self.manager.node(pair.dlid).kind is not NodeKind.HCA:
                raise RemoteProtocolError(f"node {node} counted bytes to LID {pair.dlid}, which no HCA has")
            if min(pair.nbytes, pair.frames, pair.busy_ns) < 0:
                raise RemoteProtocolError(f"node {node} counted less than nothing from LID {pair.slid} to {pair.dlid}")
        for pair in counters.pairs:
            total = self._pairs.setdefault((pair.slid, pair.dlid), _Pair())
            total.nbytes += pair.nbytes
            total.frames += pair.frames
            total.busy_ns += pair.busy_ns
        low, high = _DEBT_RANGE
        self._debt.update(min(max(sample, low), high) for sample in counters.debt_permille)
        self._retransmits += counters.retransmits

    def reset(self, now: int) -> None:
        """Zero all counters; flows go on."""
        self._pairs.clear()
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
            links=self._link_reports(now),
            pairs=self._pair_reports(),
            debt_p50_percent=_percentile(self._debt, 0.50) / 10,
            debt_p99_percent=_percentile(self._debt, 0.99) / 10,
            debt_samples=self._debt.total(),
            retransmits=self._retransmits,
            lost_nodes=sorted(self.lost),
        )

    def _link_reports(self, now: int) -> list[LinkReport]:
        nbytes = [0] * len(self.topology.links)
        busy_ns = [0] * len(self.topology.links)
        for (slid, dlid), pair in self._pairs.items():
            for at in self.manager.path(slid, dlid).links:
                nbytes[at] += pair.nbytes
                busy_ns[at] = max(busy_ns[at], pair.busy_ns)
        out = []
        for link in self.topology.links:
            # A short burst may be over before its FlowStart was here: then the sender knows better how long it took.
            active = max(self._activity.total_ns(link.id, now), busy_ns[link.id])
            could = self.manager.payload_rate(link.id).bytes_per_ns * active
            utilisation = min(1.0, nbytes[link.id] / could) if could > 0 and self.clock != "none" else 0.0
            out.append(
                LinkReport(link.name, link.src, link.dst, link.kind, link.rate.bits_per_s, nbytes[link.id], utilisation)
            )
        return out

    def _pair_reports(self) -> list[PairReport]:
        out = []
        for (slid, dlid), pair in sorted(self._pairs.items()):
            path = self.manager.path(slid, dlid)
            src, dst = self.manager.node(slid).name, self.manager.node(dlid).name
            out.append(PairReport(src, dst, pair.nbytes, pair.frames, path.switches, path.latency_ns))
        return out


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
