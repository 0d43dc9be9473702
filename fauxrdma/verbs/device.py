"""Devices: finding emulated HCAs and opening one."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import ABI_VERSION, doorbell_bytes
from fauxrdma.abi.rings import DoorbellRing
from fauxrdma.errors import SetupError, VerbsError
from fauxrdma.ib.async_events import event_element
from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.ib.enums import AsyncEventType
from fauxrdma.ib.profiles import parse_profile
from fauxrdma.ib.rnic import as_adapter_of
from fauxrdma.memory.shared import SharedMemory, address_of
from fauxrdma.runtime.control_channel import open_channel
from fauxrdma.runtime.fabric_clock import FabricClock
from fauxrdma.runtime.injected_failures import CLIENT_VERBS, InjectedFailures
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.verbs.children import Children
from fauxrdma.verbs.event_account import EventAccount
from fauxrdma.verbs.forked import watch_for_fork
from fauxrdma.verbs.port_queries import PortQueries
from fauxrdma.verbs.virtual_timer import VirtualClock
from fauxrdma.wire.control import LENGTH_BYTES, decode
from fauxrdma.wire.fabric_messages import HcaInfo, PathAnswer

if TYPE_CHECKING:
    from fauxrdma.verbs.memory import MR
    from fauxrdma.verbs.queue_pair import QP
    from fauxrdma.verbs.shared_receive import SRQ

__all__ = ["AsyncEvent", "Context", "get_device_list"]

_REMEMBERED = 256
"""Destroyed queues whose events that are still in the pipe are passed over."""


def _socket_path(path: str | None) -> str:
    path = path or os.environ.get("FAUXRDMA_SOCKET")
    if not path:
        raise SetupError(
            "no HCA daemon to talk to: run the program under `fauxrdma run FABRIC -- program`, "
            "or set FAUXRDMA_SOCKET to the socket of a running fauxrdma-hca"
        )
    return path


def get_device_list(socket: str | None = None) -> list[HcaInfo]:
    """The HCAs of this node's daemon. Raises SetupError when no daemon answers at `socket` (or $FAUXRDMA_SOCKET)."""
    return list_node(socket).hcas


def list_node(socket: str | None = None) -> V.HcaList:
    """What this node's daemon emulates: HCAs, fabric, clock."""
    channel = open_channel(_socket_path(socket))
    try:
        return channel.request(V.ListHcas(ABI_VERSION), V.HcaList)[0]
    finally:
        channel.close()


class AsyncEvent:
    """An asynchronous event: its type, the number of the queue pair, completion queue, shared receive queue or port it
    is about, and a sentence. Acknowledge it: destroying what it is about waits for that."""

    def __init__(self, notice: V.AsyncEventNotice, account: EventAccount | None = None) -> None:
        self.event_type = AsyncEventType(notice.kind)
        self.element = notice.element
        self.text = notice.text
        self._account = account
        self._acked = False

    def ack(self) -> None:
        """Acknowledge it, once (ibv_ack_async_event). Raises VerbsError(EINVAL) the second time."""
        if self._acked:
            raise VerbsError(errno.EINVAL, f"Failed to acknowledge {self!r}: it has been acknowledged before")
        self._acked = True
        if self._account is not None:
            self._account.acknowledge(1)

    def __repr__(self) -> str:
        return f"AsyncEvent({self.event_type.name}, 0x{self.element:x}, {self.text!r})"


class Context(PortQueries):
    """An open HCA. `name` is the device (hca1, hca2, ...; default $FAUXRDMA_HCA, else hca1), `socket` the daemon's Unix
    socket (default $FAUXRDMA_SOCKET).

    Closing it closes, in order, everything made from it. Raises SetupError when there is no daemon, VerbsError(ENODEV)
    for an unknown device.
    """

    def __init__(self, name: str | None = None, socket: str | None = None) -> None:
        self._channel = open_channel(_socket_path(socket))
        self._children = Children()
        self._qps: weakref.WeakValueDictionary[int, QP] = weakref.WeakValueDictionary()
        self._srq_of_qp: dict[int, SRQ] = {}  # by number
        self._lock = threading.Lock()  # of the doorbells
        self._reading = threading.Lock()  # of the asynchronous events
        self._failures = InjectedFailures()
        self._accounts: dict[tuple[str, int], EventAccount] = {}
        self._destroyed: deque[tuple[str, int]] = deque(maxlen=_REMEMBERED)
        self._staged: set[MR] = set()  # regions that live by copies
        self._reached: bool | None = None  # whether the daemon can use process_vm on us, once it was tried
        self._closed = False
        wanted = name or os.environ.get("FAUXRDMA_HCA") or "hca1"
        try:
            opened, fds = self._channel.request(V.ClientHello(ABI_VERSION, wanted, os.getpid()), V.Opened, expect_fds=3)
        except VerbsError:
            self._channel.close()
            raise
        memory = SharedMemory.attach(fds[0], doorbell_bytes())
        memory.close_fd()
        self._doorbells = DoorbellRing(memory.view)
        self._doorbell_fd, self.async_fd = fds[1], fds[2]
        self.hca = opened.hca
        self.profile = as_adapter_of(opened.hca.transport, parse_profile(opened.profile))
        self.name = opened.hca.name
        self.node = opened.node
        self.fabric = opened.fabric
        self.clock = opened.clock
        self.host_shape = HostShape.from_dict(opened.host_shape)
        self.virtual: VirtualClock | None = VirtualClock(self._channel) if opened.clock == "virtual" else None
        """Under clock `virtual`: what threads wait for fabric time with."""
        self._clock = self.virtual or FabricClock(opened.epoch_ns, opened.dilation)
        watch_for_fork(self)
        Children.tell(self)

    @property
    def socket(self) -> str:
        """The daemon's Unix socket: where the other HCAs of this node are opened, too."""
        return str(self._channel.path)

    @property
    def dilation(self) -> float:
        """Wall seconds per fabric second."""
        return self._clock.dilation

    def fabric_now_ns(self) -> int:
        """Fabric time now, in ns."""
        return self._clock.now_ns()

    def _wallclock_ns(self, fabric_ns: int) -> int:
        """Nanoseconds since 1970 at a fabric time."""
        return self._clock.wall_ns(fabric_ns) + time.time_ns() - time.monotonic_ns()

    @property
    def num_comp_vectors(self) -> int:
        """Legal values of a completion queue's comp_vector are below this."""
        return self.query_device().num_comp_vectors

    def query_device(self) -> DeviceAttr:
        """Limits and identity of the device."""
        if self._failures:
            self._failures.check("query_device")
        return self.profile.device_attributes(self.hca.guid)

    def query_drop_counters(self) -> dict[str, int]:
        """Datagrams that UD queue pairs of this HCA did not take since the daemon started, by reason: qkey_violations,
        no_receive, receive_too_short, wrong_address, no_queue_pair."""
        counters: dict[str, int] = self._request(V.QueryCounters(), V.DropCounters).counters
        return counters

    def count_peer_traffic(self, source_gpu: int, target_gpu: int, nbytes: int, busy_ns: int) -> None:
        """Tell the fabric's counters that `nbytes` went from one GPU of this node to another without an HCA, which took
        `busy_ns` of fabric time. Raises VerbsError(EINVAL) for GPUs that are not two of the node's."""
        self._request(V.CountPeerTraffic(source_gpu, target_gpu, nbytes, busy_ns), V.Done)

    def inject_failure(self, verb: str, errno_: int, after: int = 0, count: int = 1) -> None:
        """For tests: let `verb` of this context succeed `after` times, then fail `count` times with VerbsError(errno_).

        `verb` is libibverbs' name without ibv_: reg_mr, create_qp, modify_qp, destroy_cq, dereg_mr, ... and also
        post_send, post_recv, post_srq_recv, poll_cq, req_notify_cq. Raises VerbsError(EINVAL), naming the verbs there
        are, for others.
        """
        if verb in CLIENT_VERBS:
            self._failures.add(verb, errno_, after, count)
        else:
            self._request(V.InjectFailure(verb, errno_, after, count), V.Done)

    def path(self, dlid: int) -> PathAnswer:
        """The fabric's path from this HCA to the one with LID `dlid`. Raises VerbsError when the manager is gone."""
        return self._channel.request(V.QueryPath(dlid), PathAnswer)[0]

    def get_async_event(self, timeout_s: float | None = None) -> AsyncEvent | None:
        """The next asynchronous event, or None when none came in time.

        When the daemon has died this is IBV_EVENT_DEVICE_FATAL.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            notice = self._next_notice()
            if notice is None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._readable(left):
                    return None
                continue
            kind = event_element(notice.kind)
            if (kind, notice.element) in self._destroyed:
                continue  # raised before its queue was destroyed, and read only now
            return AsyncEvent(notice, self._account(kind, notice.element))

    def _readable(self, timeout_s: float | None) -> bool:
        poller = select.poll()
        poller.register(self.async_fd, select.POLLIN)
        return bool(self._channel.wait(poller, timeout_s))

    def _next_notice(self) -> V.AsyncEventNotice | None:
        """The next event in the pipe, and no more: programs wait for `async_fd` to be readable, which it must be while
        there are others. None when there is none."""
        with self._reading:
            if self._closed:
                raise VerbsError(errno.EINVAL, "Failed to get an asynchronous event: the context is closed")
            if not self._readable(0):
                return None
            length = os.read(self.async_fd, LENGTH_BYTES)
            if not length:
                return V.AsyncEventNotice(AsyncEventType.IBV_EVENT_DEVICE_FATAL, 0, "the HCA daemon is gone")
            notice = decode(os.read(self.async_fd, int.from_bytes(length, "little")))
            assert isinstance(notice, V.AsyncEventNotice)
            return notice

    # ---- for the other verbs objects -----------------------------------------------------------------------------

    def _request(self, msg: Any, answer: Any) -> Any:
        return self._channel.request(msg, answer)[0]

    def _daemon_reaches_us(self) -> bool:
        """Whether the daemon may read and write this process's memory (ptrace_scope, seccomp, other pid namespaces and
        missing capabilities forbid it); tried once, with a few bytes of ours."""
        if self._reached is None:
            token = bytearray(os.urandom(16))
            expected = bytes(reversed(token))
            try:
                self._request(V.ProbeMemory(address_of(memoryview(token)), bytes(token)), V.Done)
            except VerbsError as error:
                if error.errno != errno.EPERM:
                    raise
            self._reached = bytes(token) == expected
        return self._reached

    def _sync_staged(self) -> None:
        """Make the buffers of staged regions and what the HCA sees of them equal, where there still is a buffer."""
        for region in tuple(self._staged):
            with contextlib.suppress(VerbsError):
                region.sync()

    def _ring(self, qpn: int) -> None:
        if self._closed:
            raise VerbsError(errno.EINVAL, "Failed to post: the context is closed")
        with self._lock:
            self._doorbells.ring(qpn)
        os.eventfd_write(self._doorbell_fd, 1)

    def _destroy(self, kind: str, handle: int) -> None:
        """Destroy an object; when the daemon is gone so is the object."""
        if self._closed:
            return
        try:
            self._request(V.Destroy(kind, handle), V.Done)
        except VerbsError as error:
            if error.errno not in (errno.EIO, errno.EPERM):
                raise
        self._destroyed.append((kind, handle))
        account = self._accounts.pop((kind, handle), None)
        if account is not None:
            account.settle()

    def _account(self, kind: str, element: int) -> EventAccount | None:
        """Where events of this element are counted; None for those of a port or the device."""
        if not kind:
            return None
        account = self._accounts.get((kind, element))
        if account is None:
            account = self._accounts[kind, element] = EventAccount(f"{kind} {element}")
        account.delivered()
        return account

    def close(self) -> None:
        """Close everything made from this context, then the context. Idempotent."""
        if self._closed:
            return
        # Hanging up makes the daemon release everything, also what the program lost sight of; the objects here only
        # have their descriptors to close. Queue pairs before queues, regions and domains: each object names its rank.
        self._closed = True
        for child in sorted(self._children, key=lambda child: child.CLOSE_ORDER):
            with contextlib.suppress(VerbsError):
                child.close()
        self._channel.close()
        if self.virtual is not None:
            self.virtual.close()
        os.close(self._doorbell_fd)
        os.close(self.async_fd)
        self._doorbell_fd = self.async_fd = -1  # their numbers may soon be somebody else's

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "async_fd"):
            self._closed = True
            self._channel.close()
            os.close(self._doorbell_fd)
            os.close(self.async_fd)

    def __repr__(self) -> str:
        return f"Context({self.name!r}, node {self.node}, LID {self.hca.lid}, fabric {self.fabric!r})"
