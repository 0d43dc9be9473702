"""A CMID: one end of a connection, or a listener, with its queue pair (rdma_create_id, rdma_create_ep and so on)."""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import IBV_QP_STATE, AccessFlags, Mtu, QpState, QpType, SendFlags, WrOpcode
from fauxrdma.ib.gids import gid_table, short_gid
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.verbs.address import AH
from fauxrdma.verbs.cm.events import CMEvent, CMEventChannel, connection_events
from fauxrdma.verbs.cm.parameters import (
    RAI_PASSIVE,
    UDP_QKEY,
    AddrInfo,
    ConnParam,
    EventType,
    PortSpace,
    address_text,
)
from fauxrdma.verbs.completion import CQ, CompChannel
from fauxrdma.verbs.device import Context, get_device_list
from fauxrdma.verbs.memory import MR, PD
from fauxrdma.verbs.queue_pair import QP, QPInitAttr

__all__ = ["CMID"]

_E = EventType
_ACCESS = int(
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
_KINDS = {
    "request": _E.RDMA_CM_EVENT_CONNECT_REQUEST,
    "response": _E.RDMA_CM_EVENT_CONNECT_RESPONSE,
    "established": _E.RDMA_CM_EVENT_ESTABLISHED,
    "rejected": _E.RDMA_CM_EVENT_REJECTED,
    "unreachable": _E.RDMA_CM_EVENT_UNREACHABLE,
    "disconnected": _E.RDMA_CM_EVENT_DISCONNECTED,
    "timewait_exit": _E.RDMA_CM_EVENT_TIMEWAIT_EXIT,
}
_SIGNALED = int(SendFlags.IBV_SEND_SIGNALED)


class CMID:
    """Made of an AddrInfo it is synchronous: calls return when what they ask for has happened, and the queue pair is
    made with it. Made of a CMEventChannel it is asynchronous: calls return at once, and events tell. Made of a CMEvent
    (CONNECT_REQUEST) it is the new end of that connection; :meth:`get_request` is the same, synchronous.

    `qp_init_attr` and `pd` are for the queue pair; without completion queues it gets its own. `context` is the open
    device (default: the one with the address `src`, else the node's first), which the caller then closes.

    Raises VerbsError: EADDRINUSE, ENETUNREACH for an address nobody has, ECONNREFUSED for a rejection (`private_data`
    has what the peer said), ETIMEDOUT for a peer that does not answer, ECONNRESET for one that is gone.
    """

    CLOSE_ORDER = -2
    _CONTEXT: ClassVar[Callable[..., Context]] = Context
    _PD: ClassVar[Callable[..., PD]] = PD
    _MR: ClassVar[Callable[..., MR]] = MR
    """What it makes: fauxrdma.compat has its own."""

    def __init__(
        self,
        creator: AddrInfo | CMEventChannel | CMEvent | None = None,
        qp_init_attr: QPInitAttr | None = None,
        pd: PD | None = None,
        port_space: int = PortSpace.RDMA_PS_TCP,
        listen_id: CMID | None = None,
        *,
        context: Context | None = None,
    ) -> None:
        self.port_space = PortSpace(port_space)
        self.channel = creator if isinstance(creator, CMEventChannel) else None
        self._info = creator if isinstance(creator, AddrInfo) else None
        self._init = qp_init_attr
        self._given_context = context
        self._context: Context | None = None
        self._owns_context = False
        self.pd = pd
        self.qp: QP | None = None
        self.listen_id = listen_id
        self.private_data = b""
        self.port = 0
        self._number = 0
        self._kind = "connection"
        self._peer: tuple[int, str, int] = (0, "", 0)  # LID, GID, port
        self._param = ConnParam()
        self._psn = random.getrandbits(24)
        self._requests: deque[V.CmNotice] = deque()
        self._happened: deque[CMEvent] = deque()
        self._made: list[CQ | CompChannel | QP | PD | MR] = []
        self._request: V.CmNotice | None = None
        self._closed = False
        self._passive = False
        self.event = CMEvent()
        """The last event that a synchronous call waited for."""
        if isinstance(creator, CMEvent):
            self._from_request(creator)
        elif self._info is not None:
            self._from_address(self._info)

    # ---- beginnings ----------------------------------------------------------------------------------------------

    @property
    def context(self) -> Context:
        """The open device."""
        if self._context is None:
            self._open(None)
        assert self._context is not None
        return self._context

    def _open(self, source: str | None) -> None:
        if self._context is not None:
            return
        if self._given_context is not None:
            self._context = self._given_context
        elif self.pd is not None:
            self._context = self.pd.context
        else:
            self._context, self._owns_context = type(self)._CONTEXT(name=_device_of(source)), True
        self._context._children.add(self)
        events = connection_events(self._context)
        if self.channel is not None:
            self.channel.add(events)

    def _from_address(self, info: AddrInfo) -> None:
        self.port_space = info.port_space
        self._open(info.src)
        if info.flags & RAI_PASSIVE:
            self.port = info.src_service
            return
        assert info.dst is not None
        self.resolve_addr(info.dst, info.dst_service)
        if self._init is not None:
            self.create_qp(self._init)

    def _from_request(self, event: CMEvent) -> None:
        parent, notice = event.id, event.notice
        if parent is None or notice is None or event.event_type != _E.RDMA_CM_EVENT_CONNECT_REQUEST:
            raise VerbsError(errno.EINVAL, f"Failed to create CM ID: {event!r} is no request")
        self.channel = parent.channel
        self.port_space = parent.port_space
        self.listen_id = parent
        self.pd = self.pd or parent.pd
        self._given_context = parent.context
        self._open(None)
        self._passive = True
        self._request, self.private_data = notice, notice.parameters.private
        self._peer = notice.lid, notice.gid, notice.port
        self._take(notice.handle)
        init = self._init or parent._init
        if init is not None:
            self.create_qp(init)

    def _take(self, number: int) -> None:
        self._number = number
        connection_events(self.context).add(number, self)

    def bind_addr(self, info: AddrInfo | str | None = None, port: int = 0) -> None:
        """Choose the device by its address, and the port to listen to (0: any)."""
        source, self.port = (info.src, info.src_service) if isinstance(info, AddrInfo) else (info, port)
        self._open(source)

    def resolve_addr(self, dst: AddrInfo | str, port: int = 0, timeout_ms: int = 2000) -> None:
        """Find out who has an address: ADDR_RESOLVED, or ADDR_ERROR (synchronous: ENETUNREACH)."""
        gid = dst.dst if isinstance(dst, AddrInfo) else address_text(dst)
        assert gid is not None
        port = dst.dst_service if isinstance(dst, AddrInfo) else port
        try:
            lid: int = self.context._request(V.CmResolve(gid), V.CmResolved).lid
        except VerbsError as error:
            if self.channel is None or error.errno != errno.ENETUNREACH:
                raise
            self._say(_E.RDMA_CM_EVENT_ADDR_ERROR, error.errno)
            return
        self._peer = lid, gid, port
        self._say(_E.RDMA_CM_EVENT_ADDR_RESOLVED)

    def resolve_route(self, timeout_ms: int = 2000) -> None:
        """Ask for the way there: ROUTE_RESOLVED, or ROUTE_ERROR (synchronous: an error)."""
        try:
            self.context.path(self._peer[0])
        except VerbsError as error:
            if self.channel is None:
                raise
            self._say(_E.RDMA_CM_EVENT_ROUTE_ERROR, error.errno or errno.ENETUNREACH)
            return
        self._say(_E.RDMA_CM_EVENT_ROUTE_RESOLVED)

    def create_qp(self, qp_init_attr: QPInitAttr) -> QP:
        """Make the queue pair, in INIT (of RDMA_PS_UDP in RTS); `qp` is it."""
        datagram = self.port_space == PortSpace.RDMA_PS_UDP
        if self.pd is None:
            self.pd = type(self)._PD(self.context)
            self._made.append(self.pd)
        given = qp_init_attr
        init = QPInitAttr(
            QpType.IBV_QPT_UD if datagram else QpType.IBV_QPT_RC, given.scq, given.rcq, given.cap, given.sq_sig_all,
            given.qp_context, given.srq,
        )  # fmt: skip
        for name, length in (("scq", init.cap.max_send_wr), ("rcq", init.cap.max_recv_wr)):
            if getattr(init, name) is None:
                channel = CompChannel(self.context)
                cq = CQ(self.context, max(1, length), None, channel, 0)
                self._made += [channel, cq]
                setattr(init, name, cq)
        attr = QPAttr(qp_access_flags=_ACCESS, qkey=UDP_QKEY, sq_psn=self._psn)
        self.qp = QP(self.pd, init, attr)
        self._made.append(self.qp)
        return self.qp

    # ---- connecting ----------------------------------------------------------------------------------------------

    def listen(self, backlog: int = 16) -> None:
        """Hear requests; `port` is the port."""
        message = V.CmListen(int(self.port_space), self.port, backlog)
        answer: V.CmListening = self.context._request(message, V.CmListening)
        self.port, self._kind = answer.port, "listener"
        self._take(answer.handle)

    def get_request(self, timeout_s: float | None = None) -> Self:
        """Wait for a request (synchronous); the new end, whose `private_data` is what the peer said."""
        if not self._wait(lambda: bool(self._requests), timeout_s):
            raise VerbsError(errno.ETIMEDOUT, f"Failed to get request: none within {timeout_s} s")
        return type(self)(CMEvent.of(_E.RDMA_CM_EVENT_CONNECT_REQUEST, self, self._requests.popleft()))

    def connect(self, param: ConnParam | None = None, timeout_s: float | None = None) -> None:
        """Ask the peer; ESTABLISHED, or REJECTED or UNREACHABLE."""
        self._param = param or ConnParam()
        lid, gid, port = self._peer
        if not lid:
            raise VerbsError(errno.EINVAL, "Failed to connect: resolve the address first")
        message = V.CmConnect(lid, gid, int(self.port_space), port, self._parameters(self._param))
        self._take(self.context._request(message, V.Created).handle)
        if self.channel is None:
            self._until(_E.RDMA_CM_EVENT_ESTABLISHED, "connect", timeout_s)

    def accept(self, param: ConnParam | None = None, timeout_s: float | None = None) -> None:
        """Accept a request: the queue pair is made ready first; ESTABLISHED when the peer's is, too."""
        self._param = param or ConnParam()
        if self._request is None:
            raise VerbsError(errno.EINVAL, "Failed to accept: this is no request")
        if self.qp is not None and self.port_space == PortSpace.RDMA_PS_TCP:
            self._make_ready(self._request)
        self.context._request(V.CmAccept(self._number, self._parameters(self._param)), V.Done)
        if self.channel is None and self.port_space == PortSpace.RDMA_PS_TCP:
            self._until(_E.RDMA_CM_EVENT_ESTABLISHED, "accept", timeout_s)

    def reject(self, private_data: bytes = b"") -> None:
        """Refuse a request."""
        self.context._request(V.CmReject(self._number, private_data), V.Done)

    def establish(self) -> None:
        """The queue pair is ready for a CONNECT_RESPONSE (only where it was not made by `create_qp`)."""
        self.context._request(V.CmEstablish(self._number), V.Done)

    def disconnect(self, timeout_s: float | None = None) -> None:
        """Part: the queue pair goes to ERR, which flushes it; DISCONNECTED when the peer knows, or does not answer."""
        self._stop()
        self.context._request(V.CmDisconnect(self._number), V.Done)
        if self.channel is None:
            self._until(_E.RDMA_CM_EVENT_DISCONNECTED, "disconnect", timeout_s)

    def wait_disconnected(self, timeout_s: float | None = None) -> None:
        """Until the peer has parted (synchronous). Raises VerbsError(ETIMEDOUT) when it did not in time."""
        self._until(_E.RDMA_CM_EVENT_DISCONNECTED, "wait", timeout_s)

    def _stop(self) -> None:
        if self.qp is not None and self.qp.qp_state not in (QpState.IBV_QPS_RESET, QpState.IBV_QPS_ERR):
            self.qp.modify(QPAttr(qp_state=QpState.IBV_QPS_ERR), IBV_QP_STATE)

    def _parameters(self, param: ConnParam) -> V.CmParameters:
        qpn = param.qp_num if self.qp is None else self.qp.qp_num
        mtu = int(Mtu.of_bytes(self.context.hca.mtu))
        return V.CmParameters(
            qpn, self._psn, UDP_QKEY, param.resources, param.depth, param.flow_control, param.retry, param.rnr_retry,
            param.srq, mtu, param.private_data,
        )  # fmt: skip

    def _make_ready(self, notice: V.CmNotice) -> None:
        """The queue pair to RTR and RTS, by what the peer said and we do."""
        assert self.qp is not None
        theirs, ours = notice.parameters, self._param
        limits = self.context.profile.attributes
        mtu = int(Mtu.of_bytes(self.context.hca.mtu))
        attr = QPAttr(
            ah_attr=self.qp.address_of({"lid": self._peer[0], "gid": self._peer[1]}),
            path_mtu=min(theirs.path_mtu or mtu, mtu),
            dest_qp_num=theirs.qpn,
            rq_psn=theirs.psn,
            sq_psn=self._psn,
            max_dest_rd_atomic=min(ours.resources, limits.max_qp_rd_atom),
            max_rd_atomic=min(ours.depth, theirs.responder_resources, limits.max_qp_init_rd_atom),
            min_rnr_timer=12,
            timeout=14,
            retry_cnt=theirs.retry_count if self._passive else ours.retry,
            rnr_retry=theirs.rnr_retry_count,
        )
        self.qp.to_rts(attr)

    # ---- what happens --------------------------------------------------------------------------------------------

    def notice(self, notice: V.CmNotice) -> None:
        """The daemon says that something happened."""
        event = CMEvent.of(_KINDS[notice.what], self, notice)
        kind = event.event_type
        if kind == _E.RDMA_CM_EVENT_CONNECT_REQUEST and self.channel is None:
            self._requests.append(notice)
            return
        if kind == _E.RDMA_CM_EVENT_CONNECT_RESPONSE and self.qp is not None:
            self.private_data = event.private_data
            self._make_ready(notice)
            self.establish()
            return
        if kind == _E.RDMA_CM_EVENT_ESTABLISHED and self.port_space == PortSpace.RDMA_PS_UDP:
            event.ah_attr = self._address()
        elif kind == _E.RDMA_CM_EVENT_ESTABLISHED and not self._passive:
            event.private_data = self.private_data
        elif kind == _E.RDMA_CM_EVENT_DISCONNECTED:
            self._stop()
        elif kind == _E.RDMA_CM_EVENT_UNREACHABLE:
            event.status = errno.ETIMEDOUT
        if kind == _E.RDMA_CM_EVENT_REJECTED or event.ah_attr is not None:
            self.private_data = event.private_data
        if self.channel is not None:
            self.channel.put(event)
        else:
            self._happened.append(event)

    def _address(self) -> AHAttr:
        assert self.qp is not None
        return self.qp.address_of({"lid": self._peer[0], "gid": self._peer[1]})

    def _say(self, kind: EventType, status: int = 0) -> None:
        if self.channel is not None:
            self.channel.put(CMEvent.of(kind, self, status=status))

    def _wait(self, ready: object, timeout_s: float | None) -> bool:
        return connection_events(self.context).wait(ready, timeout_s)  # type: ignore[arg-type]

    def _until(self, kind: EventType, verb: str, timeout_s: float | None) -> CMEvent:
        """The next event of that kind (synchronous); others that end the connection are errors."""
        while True:
            if not self._wait(lambda: bool(self._happened), timeout_s):
                raise VerbsError(errno.ETIMEDOUT, f"Failed to {verb}: nothing happened within {timeout_s} s")
            event = self._happened.popleft()
            got = event.event_type
            if got == kind:
                self.event = event
                return event
            if got == _E.RDMA_CM_EVENT_REJECTED:
                raise VerbsError(errno.ECONNREFUSED, f"Failed to {verb}: the peer rejected it (reason {event.status})")
            if got == _E.RDMA_CM_EVENT_UNREACHABLE:
                raise VerbsError(errno.ETIMEDOUT, f"Failed to {verb}: the peer does not answer")
            if got == _E.RDMA_CM_EVENT_DISCONNECTED:
                raise VerbsError(errno.ECONNRESET, f"Failed to {verb}: the peer has parted")

    # ---- conveniences (rdma/rdma_verbs.h) ------------------------------------------------------------------------

    def _region(self, length: int, access: int) -> MR:
        if self.pd is None:
            self.pd = type(self)._PD(self.context)
            self._made.append(self.pd)
        made = type(self)._MR(self.pd, length, access)
        self._made.append(made)
        return made

    def reg_msgs(self, length: int) -> MR:
        """A region for sends and receives."""
        return self._region(length, int(AccessFlags.IBV_ACCESS_LOCAL_WRITE))

    def reg_read(self, length: int) -> MR:
        """A region that peers may read."""
        return self._region(length, int(AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_REMOTE_READ))

    def reg_write(self, length: int) -> MR:
        """A region that peers may write."""
        return self._region(length, int(AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_REMOTE_WRITE))

    def _queue(self) -> QP:
        if self.qp is None:
            raise VerbsError(errno.EINVAL, "there is no queue pair: give qp_init_attr, or call create_qp")
        return self.qp

    def post_recv(self, mr: MR, wr_id: int = 0) -> None:
        """Post a receive into all of a region."""
        self._queue().post_recv(RecvWR(wr_id, [SGE(mr.buf, mr.length, mr.lkey)]))

    def post_send(self, mr: MR, flags: int = _SIGNALED, wr_id: int = 0) -> None:
        """Send all of a region."""
        self._post(WrOpcode.IBV_WR_SEND, mr, flags, wr_id)

    def post_read(self, mr: MR, remote_addr: int, rkey: int, flags: int = _SIGNALED, wr_id: int = 0) -> None:
        """Read into all of a region."""
        self._post(WrOpcode.IBV_WR_RDMA_READ, mr, flags, wr_id, remote_addr, rkey)

    def post_write(self, mr: MR, remote_addr: int, rkey: int, flags: int = _SIGNALED, wr_id: int = 0) -> None:
        """Write all of a region."""
        self._post(WrOpcode.IBV_WR_RDMA_WRITE, mr, flags, wr_id, remote_addr, rkey)

    def post_ud_send(self, mr: MR, ah: AH, rqpn: int, flags: int = _SIGNALED, wr_id: int = 0) -> None:
        """Send all of a region as a datagram."""
        wr = SendWR(wr_id, WrOpcode.IBV_WR_SEND, [SGE(mr.buf, mr.length, mr.lkey)], 0, flags)
        wr.set_wr_ud(ah, rqpn, UDP_QKEY)
        self._queue().post_send(wr)

    def _post(self, opcode: int, mr: MR, flags: int, wr_id: int, addr: int = 0, rkey: int = 0) -> None:
        sge = SGE(mr.buf, mr.length, mr.lkey)
        self._queue().post_send(SendWR(wr_id, opcode, [sge], 0, flags, addr, rkey))

    def get_send_comp(self, timeout_s: float | None = None) -> WC | None:
        """The next completion of a send; None when none came in time."""
        return next(iter(self._queue().scq.wait(1, timeout_s)), None)

    def get_recv_comp(self, timeout_s: float | None = None) -> WC | None:
        """The next completion of a receive; None when none came in time."""
        return next(iter(self._queue().rcq.wait(1, timeout_s)), None)

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of everything that was made with it; a connection is parted. Idempotent."""
        if self._closed:
            return
        self._closed = True
        context = self._context
        if context is not None and not context._closed:
            if self._number:
                connection_events(context).forget(self._number)
                context._destroy(self._kind, self._number)
            for made in sorted(self._made, key=lambda thing: thing.CLOSE_ORDER):
                made.close()
            # Events name their CMID, and the regions' mappings are not to wait for a collection of cycles.
            self._made.clear()
            self._happened.clear()
            self.event = CMEvent()
            if self._owns_context:
                context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _device_of(source: str | None) -> str:
    """The name of this node's device with that address, or the default one's. Raises VerbsError(EADDRNOTAVAIL)."""
    if source is None:
        return os.environ.get("FAUXRDMA_HCA") or "hca1"
    for hca in get_device_list():
        if source in [short_gid(gid) for gid, _ in gid_table(hca.guid, hca.lid, hca.gid, hca.transport, hca.subnet)]:
            return hca.name
    raise VerbsError(errno.EADDRNOTAVAIL, f"Failed to bind address: no device of this node has {source}")
