"""One application's connection to the daemon: control verbs in, handles and descriptors out.

Everything an application creates belongs to its session and goes with it: when the connection ends, however it ends,
the queue pairs, queues, regions, descriptors and mappings are released at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import ABI_VERSION, QpLayout, cq_bytes, doorbell_bytes
from fauxrdma.abi.rings import CompletionRing, DoorbellRing, QueuePairRings
from fauxrdma.errors import FauxrdmaError, RemoteProtocolError, VerbsError
from fauxrdma.hca.events import AsyncEvent
from fauxrdma.ib.attributes import AHAttr, QPAttr, QPCap
from fauxrdma.ib.enums import QpAttrMask, QpState, QpType
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.data_path import DataPath
from fauxrdma.runtime.descriptor_passing import receive_with_descriptors, send_with_descriptors
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.queue_rings import CompletionChannel, CompletionQueue, RecvRing, SendRing
from fauxrdma.runtime.subnet_client import SubnetClient
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import NodeWelcome

__all__ = ["AppSession"]

log = logging.getLogger(__name__)


class AppSession:
    """Serves one Unix-socket connection. `on_closed` is called once, when everything has been released."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        node: int,
        welcome: NodeWelcome,
        data_path: DataPath,
        subnet: SubnetClient,
        on_closed: Callable[[AppSession], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._node = node
        self._welcome = welcome
        self._data_path = data_path
        self._subnet = subnet
        self._on_closed = on_closed
        self._buffer = MessageBuffer()
        self._fds: list[int] = []
        self._hca: EmulatedHca | None = None
        self._pds: dict[int, ProtectionDomain] = {}
        self._mrs: dict[int, MemoryRegion] = {}
        self._cqs: dict[int, CompletionQueue] = {}
        self._channels: dict[int, CompletionChannel] = {}
        self._qpns: set[int] = set()
        self._doorbells: DoorbellRing | None = None
        self._doorbell_fd = -1
        self._event_fd = -1
        self._task: asyncio.Task[None] | None = None
        self.closed = False
        loop.add_reader(sock.fileno(), self._readable)

    # ---- the connection ------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            data, came = receive_with_descriptors(self._socket)
        except BlockingIOError:
            return
        except OSError:
            data, came = b"", []
        self._fds += came
        if not data:
            self.close()
            return
        self._buffer.feed(data)
        try:
            for msg in self._buffer:
                self._serve(msg)
                if self.closed:
                    return
                # Descriptors belong to the message they came with; what it did not want is not kept.
                while self._fds:
                    os.close(self._fds.pop())
        except RemoteProtocolError as error:
            log.warning("an application broke the control protocol: %s", error)
            self._reply(V.VerbFailed(errno.EPROTO, str(error)))
            self.close()

    def _serve(self, msg: Message) -> None:
        handler = _HANDLERS.get(type(msg))
        try:
            if handler is None:
                raise VerbsError(errno.EOPNOTSUPP, f"{type(msg).__name__} is not a request")
            if self._hca is None and type(msg) not in (V.ClientHello, V.ListHcas):
                raise VerbsError(errno.EINVAL, f"{type(msg).__name__} before ClientHello: open a device first")
            handler(self, msg)
        except VerbsError as error:
            self._reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except OSError as error:
            # Out of memory or descriptors: the application's problem, not the daemon's end.
            self._reply(V.VerbFailed(error.errno or errno.EIO, f"{type(msg).__name__} failed in the daemon: {error}"))

    def _reply(self, msg: Message, *fds: int) -> None:
        data = pack_frame(msg)
        try:
            sent = send_with_descriptors(self._socket, data, fds)
        except OSError as error:
            log.warning("cannot answer an application: %s", error)
            sent = -1
        if sent != len(data):
            # An application that does not read its answers has stopped speaking the protocol.
            self.close()

    def _take_fd(self) -> int:
        if not self._fds:
            raise VerbsError(errno.EBADF, "Failed to register a MR: no memfd came along (SCM_RIGHTS)")
        return self._fds.pop(0)

    @property
    def hca(self) -> EmulatedHca:
        """The HCA this application opened."""
        assert self._hca is not None
        return self._hca

    # ---- opening -------------------------------------------------------------------------------------------------

    def _list_hcas(self, msg: V.ListHcas) -> None:
        w = self._welcome
        self._reply(V.HcaList(ABI_VERSION, self._node, w.fabric, w.clock, w.dilation, w.hcas))

    def _hello(self, msg: V.ClientHello) -> None:
        if msg.version != ABI_VERSION:
            raise VerbsError(
                errno.EPROTONOSUPPORT,
                f"the application speaks ABI version {msg.version}, this daemon {ABI_VERSION}: use matching releases",
            )
        if self._hca is not None:
            raise VerbsError(errno.EBUSY, "this connection has already opened a device")
        by_name = {hca.info.name: hca for hca in self._data_path.hcas.values()}
        hca = by_name.get(msg.hca)
        if hca is None:
            raise VerbsError(
                errno.ENODEV, f"no HCA called {msg.hca!r} on node {self._node}; there are {', '.join(by_name)}"
            )
        memory = SharedMemory.create(doorbell_bytes(), "fauxrdma-doorbell")
        self._doorbells = DoorbellRing(memory.view)
        self._doorbell_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events_read, self._event_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._event_fd, False)
        self._hca = hca
        self._loop.add_reader(self._doorbell_fd, self._doorbell)
        w = self._welcome
        self._reply(
            V.Opened(ABI_VERSION, self._node, w.fabric, w.clock, w.epoch_ns, w.dilation, hca.info),
            memory.fd,
            self._doorbell_fd,
            events_read,
        )
        memory.close_fd()
        os.close(events_read)

    def _doorbell(self) -> None:
        # Work first, then silence the bell and look again: what was rung in between is seen now, what is rung later
        # wakes us again.
        self._serve_doorbells()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._doorbell_fd)
        self._serve_doorbells()

    def _serve_doorbells(self) -> None:
        assert self._doorbells is not None
        assert self._hca is not None
        qpns = self._doorbells.drain()
        for qpn in self._qpns if qpns is None else qpns:
            # The ring is the application's to write: only its own queue pairs count.
            if qpn in self._qpns:
                self._data_path.doorbell(self._hca, qpn)

    def _async_event(self, event: AsyncEvent) -> None:
        frame = pack_frame(V.AsyncEventNotice(int(event.kind), event.element, event.text))
        try:
            os.write(self._event_fd, frame)
        except OSError as error:
            log.warning("async event %s lost: %s", event.kind.name, error)

    # ---- verbs ---------------------------------------------------------------------------------------------------

    def _alloc_pd(self, msg: V.AllocPd) -> None:
        if len(self._pds) >= self.hca.attributes.max_pd:
            raise VerbsError(
                errno.ENOMEM, f"Failed to allocate a PD: the device has max_pd = {self.hca.attributes.max_pd}"
            )
        handle = self.hca.new_handle()
        self._pds[handle] = ProtectionDomain(handle)
        self._reply(V.Created(handle))

    def _pd(self, handle: int) -> ProtectionDomain:
        pd = self._pds.get(handle)
        if pd is None:
            raise VerbsError(errno.EINVAL, f"there is no protection domain {handle} in this context")
        return pd

    def _reg_mr(self, msg: V.RegMr) -> None:
        fd = self._take_fd()
        hca = self.hca
        try:
            pd = self._pd(msg.pd)
            if len(hca.engine.keys) >= hca.attributes.max_mr:
                raise VerbsError(
                    errno.ENOMEM, f"Failed to register a MR: the device has max_mr = {hca.attributes.max_mr}"
                )
            if not 0 < msg.length <= hca.attributes.max_mr_size:
                raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {msg.length} is not 1 to max_mr_size")
        except VerbsError:
            os.close(fd)
            raise
        try:
            memory = SharedMemory.attach(fd, msg.length)
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: {error}") from None
        memory.close_fd()
        handle = hca.new_handle()
        region = hca.engine.keys.register(handle, pd, msg.addr, msg.length, msg.access, memory.view)
        self._mrs[handle] = region
        self._reply(V.MrKeys(handle, region.lkey, region.rkey))

    def _create_channel(self, msg: V.CreateChannel) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(write_fd, False)
        handle = self.hca.new_handle()
        self._channels[handle] = CompletionChannel(handle, write_fd)
        self._reply(V.Created(handle), read_fd)
        os.close(read_fd)

    def _create_cq(self, msg: V.CreateCq) -> None:
        limit = self.hca.attributes.max_cqe
        if not 1 <= msg.entries <= limit:
            raise VerbsError(errno.EINVAL, f"Failed to create CQ: {msg.entries} entries, legal are 1 to {limit}")
        channel = None
        if msg.channel is not None:
            channel = self._channels.get(msg.channel)
            if channel is None:
                raise VerbsError(errno.EINVAL, f"Failed to create CQ: there is no completion channel {msg.channel}")
        memory = SharedMemory.create(cq_bytes(msg.entries), "fauxrdma-cq")
        ring = CompletionRing(memory.view, msg.entries)
        ring.format()
        cq = CompletionQueue(self.hca.new_handle(), ring, channel)
        if channel is not None:
            channel.users += 1
        self._cqs[cq.cqn] = cq
        self.hca.cqs[cq.cqn] = cq
        self.hca.owners["cq", cq.cqn] = self._async_event
        self._reply(V.Created(cq.cqn), memory.fd)
        memory.close_fd()

    def _create_qp(self, msg: V.CreateQp) -> None:
        limits = self.hca.attributes
        for name, value, limit in (
            ("max_send_wr", msg.max_send_wr, limits.max_qp_wr),
            ("max_recv_wr", msg.max_recv_wr, limits.max_qp_wr),
            ("max_send_sge", msg.max_send_sge, limits.max_sge),
            ("max_recv_sge", msg.max_recv_sge, limits.max_sge),
            ("max_inline_data", msg.max_inline_data, limits.max_inline_data),
        ):
            if not 0 <= value <= limit:
                raise VerbsError(
                    errno.EINVAL, f"Failed to create QP: {name} is {value}, this device takes 0 to {limit}"
                )
        for cqn in (msg.send_cq, msg.recv_cq):
            if cqn not in self._cqs:
                raise VerbsError(
                    errno.EINVAL, f"Failed to create QP: there is no completion queue {cqn} in this context"
                )
        try:
            qp_type = QpType(msg.qp_type)
        except ValueError:
            raise VerbsError(errno.EINVAL, f"Failed to create QP: {msg.qp_type} is not a queue pair type") from None
        pd = self._pd(msg.pd)
        cap = QPCap(msg.max_send_wr, msg.max_recv_wr, msg.max_send_sge, msg.max_recv_sge, msg.max_inline_data)
        layout = QpLayout(cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data)
        memory = SharedMemory.create(layout.total_bytes, "fauxrdma-qp")
        rings = QueuePairRings(memory.view, layout)
        rings.format()
        try:
            qp = self.hca.engine.create_qp(
                qp_type, pd, msg.send_cq, msg.recv_cq, cap, msg.sq_sig_all, SendRing(rings), RecvRing(rings)
            )
        except VerbsError:
            memory.close_fd()
            raise
        self.hca.rings[qp.qpn] = rings
        self.hca.owners["qp", qp.qpn] = self._async_event
        for cqn in (msg.send_cq, msg.recv_cq):
            self._cqs[cqn].users += 1
        self._qpns.add(qp.qpn)
        self._reply(V.QpCreated(qp.qpn), memory.fd)
        memory.close_fd()

    def _modify_qp(self, msg: V.ModifyQp) -> None:
        self._own_qp(msg.qpn)
        mask = QpAttrMask(msg.mask)
        attr = QPAttr(**_known_attributes(msg.attr), ah_attr=AHAttr(msg.dlid, dgid=msg.dgid))
        if mask & QpAttrMask.IBV_QP_AV:
            if not 1 <= msg.dlid <= 0xBFFF:
                raise VerbsError(errno.EINVAL, f"Failed to modify QP: dlid {msg.dlid} is not a unicast LID")
            # The data path needs the route; ask for it before the queue pair can use it.
            self._task = self._loop.create_task(self._modify_with_path(msg.qpn, attr, mask))
        else:
            self._apply_modify(msg.qpn, attr, mask)

    async def _modify_with_path(self, qpn: int, attr: QPAttr, mask: QpAttrMask) -> None:
        try:
            await self._subnet.path(self.hca.info.lid, attr.ah_attr.dlid)
            self._apply_modify(qpn, attr, mask)
        except VerbsError as error:
            self._reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except FauxrdmaError as error:
            self._reply(V.VerbFailed(errno.ENETUNREACH, f"Failed to modify QP: {error}"))

    def _apply_modify(self, qpn: int, attr: QPAttr, mask: QpAttrMask) -> None:
        qp = self._own_qp(qpn)
        actions = self.hca.engine.modify_qp(qpn, attr, mask, self._data_path.clock.now_ns())
        self.hca.rings[qpn].state = qp.state
        if qp.state == QpState.IBV_QPS_RESET:
            self._data_path.forget_qp(self.hca, qpn)
        self._data_path.perform(self.hca, actions)
        self._reply(V.Done())

    def _own_qp(self, qpn: int) -> Any:
        if qpn not in self._qpns:
            raise VerbsError(errno.EINVAL, f"there is no queue pair 0x{qpn:x} in this context")
        return self.hca.engine.qp(qpn)

    def _query_qp(self, msg: V.QueryQp) -> None:
        qp = self._own_qp(msg.qpn)
        attr = {k: int(v) for k, v in asdict(qp.attr).items() if k != "ah_attr"}
        attr["qp_state"] = int(qp.state)
        self._reply(V.QpState(attr, qp.attr.ah_attr.dlid, qp.attr.ah_attr.dgid, qp.last_error))

    def _query_path(self, msg: V.QueryPath) -> None:
        self._task = self._loop.create_task(self._answer_path(msg.dlid))

    async def _answer_path(self, dlid: int) -> None:
        try:
            self._reply(await self._subnet.path(self.hca.info.lid, dlid))
        except FauxrdmaError as error:
            self._reply(V.VerbFailed(errno.ENETUNREACH, str(error)))

    # ---- destroying ----------------------------------------------------------------------------------------------

    def _destroy(self, msg: V.Destroy) -> None:
        kind, handle = msg.kind, msg.handle
        owned: dict[str, Any] = {
            "qp": self._qpns, "cq": self._cqs, "mr": self._mrs, "pd": self._pds, "channel": self._channels,
        }  # fmt: skip
        if kind not in owned or handle not in owned[kind]:
            raise VerbsError(errno.EINVAL, f"there is no {kind} {handle} in this context")
        if kind == "qp":
            self._destroy_qp(handle)
        elif kind == "cq":
            if self._cqs[handle].users:
                raise VerbsError(errno.EBUSY, f"Failed to destroy CQ {handle}: queue pairs still use it")
            self._destroy_cq(handle)
        elif kind == "mr":
            self.hca.engine.keys.deregister(self._mrs.pop(handle))
        elif kind == "pd":
            if self._pds[handle].children:
                raise VerbsError(errno.EBUSY, f"Failed to dealloc PD {handle}: regions or queue pairs still use it")
            del self._pds[handle]
        else:
            if self._channels[handle].users:
                raise VerbsError(errno.EBUSY, f"Failed to destroy completion channel {handle}: queues still use it")
            self._channels.pop(handle).close()
        self._reply(V.Done())

    def _destroy_qp(self, qpn: int) -> None:
        qp = self.hca.engine.qp(qpn)
        self._data_path.forget_qp(self.hca, qpn)
        self.hca.engine.destroy_qp(qpn)
        self.hca.rings.pop(qpn, None)
        self.hca.owners.pop(("qp", qpn), None)
        self._qpns.discard(qpn)
        if qp is not None:
            for cqn in (qp.send_cqn, qp.recv_cqn):
                self._cqs[cqn].users -= 1

    def _destroy_cq(self, cqn: int) -> None:
        cq = self._cqs.pop(cqn)
        self.hca.cqs.pop(cqn, None)
        self.hca.owners.pop(("cq", cqn), None)
        if cq.channel is not None:
            cq.channel.users -= 1

    def close(self) -> None:
        """Release everything the application owned. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        if self._task is not None:
            self._task.cancel()
        if self._hca is not None:
            self._loop.remove_reader(self._doorbell_fd)
            for qpn in list(self._qpns):
                self._destroy_qp(qpn)
            for cqn in list(self._cqs):
                self._destroy_cq(cqn)
            for region in self._mrs.values():
                self._hca.engine.keys.deregister(region)
            for channel in self._channels.values():
                channel.close()
        self._mrs.clear()
        self._pds.clear()
        for fd in (*self._fds, self._doorbell_fd, self._event_fd):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._on_closed(self)


_ATTRIBUTES = frozenset(name for name in QPAttr.__dataclass_fields__ if name != "ah_attr")


def _known_attributes(given: dict[str, int]) -> dict[str, Any]:
    unknown = given.keys() - _ATTRIBUTES
    if unknown:
        raise VerbsError(errno.EINVAL, f"Failed to modify QP: unknown attribute {', '.join(sorted(unknown))}")
    return dict(given)


_HANDLERS: dict[type[Message], Callable[[AppSession, Any], None]] = {
    V.ListHcas: AppSession._list_hcas,
    V.ClientHello: AppSession._hello,
    V.AllocPd: AppSession._alloc_pd,
    V.RegMr: AppSession._reg_mr,
    V.CreateChannel: AppSession._create_channel,
    V.CreateCq: AppSession._create_cq,
    V.CreateQp: AppSession._create_qp,
    V.ModifyQp: AppSession._modify_qp,
    V.QueryQp: AppSession._query_qp,
    V.QueryPath: AppSession._query_path,
    V.Destroy: AppSession._destroy,
}
