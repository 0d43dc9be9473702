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
import struct
from collections.abc import Callable
from typing import Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import ABI_VERSION, doorbell_bytes
from fauxrdma.abi.rings import DoorbellRing
from fauxrdma.errors import FauxrdmaError, RemoteProtocolError, VerbsError
from fauxrdma.hca.events import AsyncEvent
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import AsyncEventType
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.data_path import DataPath
from fauxrdma.runtime.descriptor_passing import receive_with_descriptors, send_with_descriptors
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.event_pipe import EventPipe
from fauxrdma.runtime.injected_failures import InjectedFailures, destroy_verb, request_verb, verb_of
from fauxrdma.runtime.session_connections import ConnectionVerbs
from fauxrdma.runtime.session_datagrams import DatagramVerbs
from fauxrdma.runtime.session_device_memory import DeviceMemoryVerbs
from fauxrdma.runtime.session_memory import MemoryVerbs
from fauxrdma.runtime.session_ports import PortVerbs
from fauxrdma.runtime.session_qps import QpVerbs
from fauxrdma.runtime.session_queues import QueueVerbs
from fauxrdma.runtime.session_srqs import SrqVerbs
from fauxrdma.runtime.session_timers import TimerVerbs
from fauxrdma.runtime.session_windows import WindowVerbs
from fauxrdma.runtime.subnet_client import SubnetClient
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import NodeWelcome, PeerTraffic

__all__ = ["AppSession"]

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


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
        profile: str,
        on_closed: Callable[[AppSession], None],
    ) -> None:
        self.loop = loop
        self._socket = sock
        self._node = node
        self._welcome = welcome
        self.data_path = data_path
        self.subnet = subnet
        self._profile = profile
        self._on_closed = on_closed
        self._buffer = MessageBuffer()
        self._fds: list[int] = []
        self._hca: EmulatedHca | None = None
        self.memory = MemoryVerbs(self)
        self.queues = QueueVerbs(self)
        self.qps = QpVerbs(self)
        self.srqs = SrqVerbs(self)
        self.device_memory = DeviceMemoryVerbs(self)
        self.datagrams = DatagramVerbs(self)
        windows, ports, timers = WindowVerbs(self), PortVerbs(self), TimerVerbs(self)
        self._verbs = (
            ConnectionVerbs(self), self.qps, self.datagrams, self.srqs, self.queues, windows, self.memory,
            self.device_memory, ports, timers,
        )  # fmt: skip
        self._handlers: dict[type[Message], Callable[[Any], None]] = {
            V.ListHcas: self._list_hcas,
            V.ClientHello: self._hello,
            V.QueryPath: self._query_path,
            V.CountPeerTraffic: self._count_peer_traffic,
            V.Destroy: self._destroy,
            V.InjectFailure: self._inject_failure,
        }
        for verbs in self._verbs:
            self._handlers.update(verbs.handlers)
        self._failures = InjectedFailures()
        self._doorbells: DoorbellRing | None = None
        self._doorbell_fd = -1
        self._events: EventPipe | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
        self.data_path.touched()
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
            self.reply(V.VerbFailed(errno.EPROTO, str(error)))
            self.close()

    def _serve(self, msg: Message) -> None:
        handler = self._handlers.get(type(msg))
        try:
            if handler is None:
                raise VerbsError(errno.EOPNOTSUPP, f"{type(msg).__name__} is not a request")
            if self._hca is None and type(msg) not in (V.ClientHello, V.ListHcas):
                raise VerbsError(errno.EINVAL, f"{type(msg).__name__} before ClientHello: open a device first")
            if self._failures:
                self._failures.check(verb_of(msg))
            if self._hca is not None and self._hca.failed and type(msg) not in (V.Destroy, V.QueryPort):
                raise VerbsError(errno.EIO, f"{verb_of(msg)}: the HCA has failed (IBV_EVENT_DEVICE_FATAL)")
            handler(msg)
        except VerbsError as error:
            self.reply(V.VerbFailed(error.errno or errno.EIO, error.strerror or str(error)))
        except OSError as error:
            # Out of memory or descriptors: the application's problem, not the daemon's end.
            self.reply(V.VerbFailed(error.errno or errno.EIO, f"{type(msg).__name__} failed in the daemon: {error}"))

    def track(self, task: asyncio.Task[None]) -> None:
        """Keep a task that answers a request; it ends with the session."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.data_path.touched()

    @property
    def busy(self) -> bool:
        """Whether an answer is being prepared."""
        return bool(self._tasks)

    def reply(self, msg: Message, *fds: int) -> None:
        """Answer the request being served; descriptors go along."""
        data = pack_frame(msg)
        self.data_path.touched()
        try:
            sent = send_with_descriptors(self._socket, data, fds)
        except OSError as error:
            log.warning("cannot answer an application: %s", error)
            sent = -1
        if sent != len(data):
            # An application that does not read its answers has stopped speaking the protocol.
            self.close()

    def take_fd(self) -> int:
        """The descriptor that came with the request. Raises VerbsError(EBADF) when there is none."""
        if not self._fds:
            raise VerbsError(errno.EBADF, "Failed to register a MR: no memfd came along (SCM_RIGHTS)")
        return self._fds.pop(0)

    def later(self, fabric_ns: int, call: Callable[[], None]) -> None:
        """Call back after a span of fabric time, not before, if the session lasts that long."""
        self.data_path.later(fabric_ns, lambda: None if self.closed else call())

    def descriptors(self) -> list[int]:
        """Where the application is heard."""
        return [fd for fd in (self._socket.fileno(), self._doorbell_fd) if fd >= 0]

    def waits_for(self) -> list[str]:
        """What the application can wait for, as far as the device knows, in words."""
        return [*self.queues.waits_for(), *self.qps.waits_for()] if self._hca is not None else []

    @property
    def peer_pid(self) -> int:
        """The application's process, as the kernel knows it in our pid namespace; 0 when it is not in it."""
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid: int = _CREDENTIALS.unpack(credentials)[0]
        return pid

    @property
    def gpus(self) -> int:
        """GPUs of the node."""
        return int(self._welcome.host_shape["gpus"] or 0)

    @property
    def hca(self) -> EmulatedHca:
        """The HCA this application opened."""
        assert self._hca is not None
        return self._hca

    # ---- opening -------------------------------------------------------------------------------------------------

    def _list_hcas(self, msg: V.ListHcas) -> None:
        w = self._welcome
        self.reply(V.HcaList(ABI_VERSION, self._node, w.fabric, w.clock, w.dilation, self._profile, w.hcas))

    def _hello(self, msg: V.ClientHello) -> None:
        if msg.version != ABI_VERSION:
            raise VerbsError(
                errno.EPROTONOSUPPORT,
                f"the application speaks ABI version {msg.version}, this daemon {ABI_VERSION}: use matching releases",
            )
        if self._hca is not None:
            raise VerbsError(errno.EBUSY, "this connection has already opened a device")
        by_name = {hca.info.name: hca for hca in self.data_path.hcas.values()}
        hca = by_name.get(msg.hca)
        if hca is None:
            raise VerbsError(
                errno.ENODEV, f"no HCA called {msg.hca!r} on node {self._node}; there are {', '.join(by_name)}"
            )
        memory = SharedMemory.create(doorbell_bytes(), "fauxrdma-doorbell")
        self._doorbells = DoorbellRing(memory.view)
        self._doorbell_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        events_read, events_write = os.pipe2(os.O_CLOEXEC)
        self._events = EventPipe(self.loop, events_write, self.data_path.gate)
        self._hca = hca
        hca.port.listeners.append(self.async_event)
        self.loop.add_reader(self._doorbell_fd, self._doorbell)
        w = self._welcome
        self.reply(
            V.Opened(
                ABI_VERSION,
                self._node,
                w.fabric,
                w.clock,
                w.epoch_ns,
                w.dilation,
                self._profile,
                hca.info,
                w.host_shape,
            ),
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
        for qpn in self.qps.qpns if qpns is None else qpns:
            # The ring is the application's to write: only its own queue pairs count.
            if qpn in self.qps.qpns:
                self.data_path.doorbell(self._hca, qpn)

    def async_event(self, event: AsyncEvent) -> None:
        """Tell the application of an asynchronous event."""
        if self._events is not None:
            self._events.put(pack_frame(V.AsyncEventNotice(int(event.kind), event.element, event.text)))

    def _count_peer_traffic(self, msg: V.CountPeerTraffic) -> None:
        gpus = range(self.gpus)
        if msg.source == msg.target or msg.source not in gpus or msg.target not in gpus:
            raise VerbsError(errno.EINVAL, f"there is no way from GPU {msg.source} to GPU {msg.target} of this node")
        if min(msg.nbytes, msg.busy_ns) < 0:
            raise VerbsError(errno.EINVAL, f"{msg.nbytes} bytes in {msg.busy_ns} ns cannot have been sent")
        self.subnet.send(PeerTraffic(msg.source, msg.target, msg.nbytes, msg.busy_ns))
        self.reply(V.Done())

    async def resolve(self, verb: str, attr: AHAttr) -> AHAttr:
        """`attr` with the LID of the port that has its GID, on Ethernet; elsewhere it is there. Raises VerbsError when
        nobody has it, FabricUnhealthy when the manager is gone."""
        port = self.hca.port
        if not port.ethernet or attr.is_multicast:
            return attr
        return port.resolved(verb, attr, await self.subnet.find(attr.dgid))

    def _query_path(self, msg: V.QueryPath) -> None:
        self.track(self.loop.create_task(self._answer_path(msg.dlid)))

    async def _answer_path(self, dlid: int) -> None:
        try:
            self.reply(await self.subnet.path(self.hca.info.lid, dlid))
        except FauxrdmaError as error:
            self.reply(V.VerbFailed(errno.ENETUNREACH, str(error)))

    def forget_paths(self, qpn: int) -> None:
        """A queue pair is gone: so are the ways of its own that it had through the fabric."""
        if self.subnet.forget_label(self.hca.info.lid, self.hca.flow_label(qpn)):
            self.subnet.report(self.data_path.counters())

    def ring_broken(self, kind: AsyncEventType, element: int) -> None:
        """The application has overwritten the indices of a work queue."""
        if not self.closed:
            now = self.data_path.clock.now_ns()
            self.data_path.perform(self.hca, self.hca.engine.ring_broken(kind, element, now))

    def _inject_failure(self, msg: V.InjectFailure) -> None:
        known = {request_verb(kind) for kind in self._handlers if kind not in (V.Destroy, V.InjectFailure)}
        known.update(destroy_verb(kind) for verbs in self._verbs for kind in verbs.destroyers)
        if msg.verb not in known:
            raise VerbsError(errno.EINVAL, f"there is no verb {msg.verb!r}: {', '.join(sorted(known))}")
        self._failures.add(msg.verb, msg.errno_, msg.after, msg.count)
        self.reply(V.Done())

    # ---- destroying ----------------------------------------------------------------------------------------------

    def _destroy(self, msg: V.Destroy) -> None:
        for verbs in self._verbs:
            destroyer = verbs.destroyers.get(msg.kind)
            if destroyer is not None:
                destroyer(msg.handle)
                self.reply(V.Done())
                return
        raise VerbsError(errno.EINVAL, f"there is no {msg.kind} {msg.handle} in this context")

    def close(self) -> None:
        """Release everything the application owned. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for task in self._tasks:
            task.cancel()
        if self._hca is not None:
            self.loop.remove_reader(self._doorbell_fd)
            # Queue pairs before what they use.
            for verbs in self._verbs:
                verbs.close()
                verbs.handlers.clear()
                verbs.destroyers.clear()
        # Nothing is left to a later garbage collection: mappings go with their last reference, now.
        self._handlers.clear()
        self._doorbells = None
        if self._events is not None:
            self._events.close()
        for fd in (*self._fds, self._doorbell_fd):
            if fd >= 0:
                os.close(fd)
        self._fds.clear()
        self._on_closed(self)
