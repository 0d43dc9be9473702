"""The flows of one daemon: one queue pair's traffic to one destination.

A connected queue pair has one flow. A UD queue pair has one for every LID it has sent to; a multicast group counts as
the LIDs of its members, and each of them gets its copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fauxrdma.ib.enums import LinkLayer, QpType
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.wire.headers import Frame

__all__ = ["Flow", "FlowTable"]


class Flow:
    """One queue pair's outgoing traffic to `dlid`."""

    __slots__ = ("active", "dlid", "fid", "hca", "label", "link", "patient_ack", "qpn", "ready", "weight")

    def __init__(self, fid: int, hca: EmulatedHca, qpn: int, dlid: int, link: PeerLink | None) -> None:
        self.fid = fid
        self.hca = hca
        self.qpn = qpn
        self.label = qpn if hca.info.link_layer == LinkLayer.IBV_LINK_LAYER_ETHERNET else 0
        self.dlid = dlid
        self.link = link
        self.ready = False  # the engine said WantsLink and was not yet found empty
        self.active = False  # the subnet manager counts it
        self.weight = 1.0
        self.patient_ack: Frame | None = None


class FlowTable:
    """Flows by queue pair and by id. `link_of(slid, dlid)` resolves a destination, `opened(flow)` is told of each new
    flow, `backlog(flow)` is what a flow has still to send, in bytes."""

    def __init__(
        self,
        link_of: Callable[[int, int], PeerLink | None],
        opened: Callable[[Flow], None],
        backlog: Callable[[Flow], int],
    ) -> None:
        self._link_of = link_of
        self._opened = opened
        self._backlog = backlog
        self._connected: dict[tuple[int, int], Flow] = {}  # (LID, queue pair)
        self._datagram: dict[tuple[int, int], dict[int, Flow]] = {}  # (LID, queue pair) to destination
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
        qp = hca.engine.qp(qpn)
        if qp is None:
            return None
        if qp.qp_type == QpType.IBV_QPT_UD:
            flows = self._datagram.setdefault(key, {})
            flow = flows.get(dlid)
            if flow is None:
                flow = flows[dlid] = self._open(hca, qpn, dlid)
            return flow
        flow = self._connected[key] = self._open(hca, qpn, qp.dlid)
        return flow

    def next_flow(self, hca: EmulatedHca, qpn: int) -> Flow | None:
        """The flow that the queue pair's next frame belongs to. For a multicast group it is the member that is furthest
        behind: the others wait, since a send queue is in order."""
        flow = self._connected.get((hca.info.lid, qpn))
        if flow is not None:
            return flow
        if hca.engine.qp(qpn) is None:
            return None
        dlid = hca.engine.destination(qpn)
        flows = [self.flow(hca, qpn, member) for member in self._members.get(dlid, ())]
        found = [flow for flow in flows if flow is not None]
        if not found:
            return self.flow(hca, qpn, dlid)
        busy = [flow for flow in found if flow.link is not None and not flow.link.writable]
        return max(busy or found, key=self._backlog)

    def _open(self, hca: EmulatedHca, qpn: int, dlid: int) -> Flow:
        flow = Flow(self._next_id, hca, qpn, dlid, self._link_of(hca.info.lid, dlid))
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

    def copies(self, frame: Frame) -> list[Frame]:
        """The frames that leave for a multicast frame: one for each member."""
        return [replace(frame, dlid=lid) for lid in self._members.get(frame.dlid, ())]
