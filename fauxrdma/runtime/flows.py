"""The flows of one daemon: one queue pair's traffic to one destination.

A connected queue pair has one flow. A UD queue pair has one for every LID it has sent to, multicast LIDs included. What
goes to a multicast LID leaves once, as it would on hardware; at the end of the tree every member gets its copy, by a
*branch*: a flow of its own that takes no bandwidth and has that member's latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, GSI_QPN, lane_of_sl
from fauxrdma.ib.enums import QpType
from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.impaired_flow import ImpairedFlow
from fauxrdma.runtime.packet_dealer import PacketDealer
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.wire.headers import Frame

__all__ = ["Flow", "FlowTable"]


class Flow:
    """One queue pair's outgoing traffic to `dlid`; of a branch, `group` is the multicast LID it belongs to, else 0."""

    __slots__ = (
        "active",
        "dealer",
        "dlid",
        "fid",
        "group",
        "hca",
        "label",
        "link",
        "memory",
        "patient_ack",
        "paused",
        "qpn",
        "ready",
        "vl",
        "weight",
    )

    def __init__(self, fid: int, hca: EmulatedHca, qpn: int, dlid: int, group: int = 0, sl: int = 0) -> None:
        self.fid = fid
        self.hca = hca
        self.qpn = qpn
        self.label = hca.flow_label(qpn)
        self.dlid = dlid
        self.group = group
        self.vl = lane_of_sl(sl)  # of a connection; a datagram names its own
        self.link: PeerLink | None = None
        self.ready = False  # the engine said WantsLink and was not yet found empty
        self.active = False  # the subnet manager counts it
        self.memory = HOST_MEMORY  # that its bytes are read from, as the subnet manager knows it
        self.weight = 1.0
        self.patient_ack: Frame | None = None
        self.dealer: PacketDealer | ImpairedFlow | None = None  # of a flow that is sprayed, or whose path has a fault
        self.paused = False  # its priority does not move: what it sends is held

    def lane_of(self, frame: Frame) -> int:
        """The virtual lane that a frame of this flow takes."""
        return self.vl or lane_of_sl(frame.sl)

    @property
    def key(self) -> tuple[int, int, int]:
        """What its way through the fabric depends on: source LID, destination LID, label (0 for a group's)."""
        if self.group or self.dlid >= FIRST_MULTICAST_LID:
            return self.hca.info.lid, self.group or self.dlid, 0
        return self.hca.info.lid, self.dlid, self.label

    @property
    def priority(self) -> int:
        """The service level that its queue pair was given; datagrams count as 0."""
        qp = self.hca.engine.qp(self.qpn)
        return 0 if qp is None else qp.attr.ah_attr.sl


class FlowTable:
    """Flows by queue pair and by id. `link_of(flow)` resolves a destination, `opened(flow)` is told of each new flow.
    `shaped`: whether flows are paced, and not by what their links take."""

    def __init__(
        self, link_of: Callable[[Flow], PeerLink | None], opened: Callable[[Flow], None], *, shaped: bool
    ) -> None:
        self._link_of = link_of
        self._opened = opened
        self._shaped = shaped
        self._connected: dict[tuple[int, int], Flow] = {}  # (LID, queue pair)
        self._datagram: dict[tuple[int, int], dict[tuple[int, int], Flow]] = {}  # to (destination, group or 0)
        self._members: dict[int, tuple[int, ...]] = {}  # multicast LID to the LIDs of the HCAs that hear it
        self._next_id = 1
        self.by_id: dict[int, Flow] = {}

    def __iter__(self) -> Iterator[Flow]:
        return iter(list(self.by_id.values()))

    def connected(self, lid: int, qpn: int) -> Flow | None:
        """The flow of a connected queue pair, if it has sent anything yet."""
        return self._connected.get((lid, qpn))

    def flow(self, hca: EmulatedHca, qpn: int, dlid: int) -> Flow | None:
        """The flow of a queue pair to a unicast LID, opened if need be; None when there is no such queue pair."""
        key = (hca.info.lid, qpn)
        flow = self._connected.get(key)
        if flow is not None:
            return flow
        if qpn == GSI_QPN:
            return self._datagram_flow(hca, qpn, dlid, 0)
        qp = hca.engine.qp(qpn)
        if qp is None:
            return None
        if qp.qp_type == QpType.IBV_QPT_UD:
            return self._datagram_flow(hca, qpn, dlid, 0)
        flow = self._connected[key] = self._open(hca, qpn, qp.dlid, sl=qp.attr.ah_attr.sl)
        return flow

    def _datagram_flow(self, hca: EmulatedHca, qpn: int, dlid: int, group: int) -> Flow:
        flows = self._datagram.setdefault((hca.info.lid, qpn), {})
        flow = flows.get((dlid, group))
        if flow is None:
            flow = flows[dlid, group] = self._open(hca, qpn, dlid, group)
        return flow

    def next_flow(self, hca: EmulatedHca, qpn: int) -> Flow | None:
        """The flow that the queue pair's next frame belongs to. Unshaped, for a multicast group it is a branch whose
        link has no room, if there is one: the others wait, since a send queue is in order."""
        flow = self._connected.get((hca.info.lid, qpn))
        if flow is not None:
            return flow
        if hca.engine.qp(qpn) is None:
            return None
        dlid = hca.engine.destination(qpn)
        branches = [] if self._shaped else self.branches(hca, qpn, dlid)
        busy = [branch for branch in branches if branch.link is not None and not branch.link.writable]
        return next(iter(busy or branches), None) or self.flow(hca, qpn, dlid)

    def _open(self, hca: EmulatedHca, qpn: int, dlid: int, group: int = 0, sl: int = 0) -> Flow:
        flow = Flow(self._next_id, hca, qpn, dlid, group, sl)
        flow.link = self._link_of(flow)
        self._next_id += 1
        self.by_id[flow.fid] = flow
        self._opened(flow)
        return flow

    def forget(self, lid: int, qpn: int) -> list[Flow]:
        """Drop the flows of a queue pair; they are returned."""
        gone = list(self._datagram.pop((lid, qpn), {}).values())
        flow = self._connected.pop((lid, qpn), None)
        if flow is not None:
            gone.append(flow)
        for flow in gone:
            flow.ready = False
            del self.by_id[flow.fid]
        return gone

    # ---- multicast -----------------------------------------------------------------------------------------------

    def set_members(self, group: int, lids: tuple[int, ...]) -> None:
        """Who hears a multicast LID now."""
        if lids:
            self._members[group] = lids
        else:
            self._members.pop(group, None)

    def branches(self, hca: EmulatedHca, qpn: int, group: int) -> list[Flow]:
        """The flows to the members of a group, in the order of their LIDs."""
        if hca.engine.qp(qpn) is None:
            return []
        return [self._datagram_flow(hca, qpn, lid, group) for lid in self._members.get(group, ())]
