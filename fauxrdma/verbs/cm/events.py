"""What happens to connections, as programs hear of it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.verbs.cm.parameters import EventType
from fauxrdma.verbs.device import Context
from fauxrdma.wire.control import LENGTH_BYTES, decode

if TYPE_CHECKING:
    from fauxrdma.verbs.cm.cmid import CMID

__all__ = ["CMEvent", "CMEventChannel", "ConnectionEvents", "Listener", "connection_events"]


class Listener(Protocol):
    """Hears of notices about its number."""

    def notice(self, notice: V.CmNotice) -> None:
        """Something happened."""


class ConnectionEvents:
    """The connection notices of one context, for all CMIDs of it. Threads may wait at a time: one reads for all."""

    CLOSE_ORDER = -1

    def __init__(self, context: Context) -> None:
        _, fds = context._channel.request(V.CmChannel(), V.Created, expect_fds=1)
        self.fd = fds[0]
        self.listeners: weakref.WeakValueDictionary[int, CMID] = weakref.WeakValueDictionary()
        self._early: dict[int, list[V.CmNotice]] = {}
        self._turn = threading.Condition()
        self._reading = False
        self.gone = False
        context._children.add(self)

    def add(self, number: int, listener: CMID) -> None:
        """From now on `listener` hears of `number`, and of what came before."""
        with self._turn:
            self.listeners[number] = listener
            early = self._early.pop(number, [])
        for notice in early:
            listener.notice(notice)

    def forget(self, number: int) -> None:
        """Nobody hears of it any more."""
        with self._turn:
            self.listeners.pop(number, None)
            self._early.pop(number, None)

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Until `ready()`, reading notices meanwhile. False when it was not in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._turn:
                while not ready() and self._reading:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._turn.wait(left)
                if ready():
                    return True
                self._reading = True
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                came = self.read(left)
            finally:
                with self._turn:
                    self._reading = False
                    self._turn.notify_all()
            if not came and not ready():
                return False

    def read(self, timeout_s: float | None) -> bool:
        """Hand on the next notice; False when none came in time. Raises VerbsError(EIO) when the daemon is gone."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        if not poller.poll(None if timeout_s is None else timeout_s * 1000):
            return False
        if self.fd < 0:
            raise VerbsError(errno.EINVAL, "the context of this connection was closed")
        length = os.read(self.fd, LENGTH_BYTES)
        if not length:
            self.gone = True
            raise VerbsError(errno.EIO, "the HCA daemon is gone, and its connections with it")
        notice = decode(os.read(self.fd, int.from_bytes(length, "little")))
        assert isinstance(notice, V.CmNotice)
        number = notice.listener or notice.handle
        listener = self.listeners.get(number)
        if listener is not None:
            listener.notice(notice)
        elif not notice.listener:
            with self._turn:
                self._early.setdefault(number, []).append(notice)
        return True

    def close(self) -> None:
        """Release the descriptor. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


_events: weakref.WeakKeyDictionary[Context, ConnectionEvents] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def connection_events(context: Context) -> ConnectionEvents:
    """Those of this context, made when first asked for."""
    with _making:
        if context not in _events:
            _events[context] = ConnectionEvents(context)
        return _events[context]


class CMEventChannel:
    """Where the events of CMIDs that were made with it wait, in order; `fd` is readable while there are some."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._local = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._epoll.register(self._local, select.EPOLLIN)
        self._queue: deque[CMEvent] = deque()
        self._sources: dict[int, ConnectionEvents] = {}

    @property
    def fd(self) -> int:
        """To wait for in an event loop."""
        return self._epoll.fileno()

    def add(self, events: ConnectionEvents) -> None:
        """Hear of a context's connections, too."""
        if events.fd not in self._sources:
            self._sources[events.fd] = events
            self._epoll.register(events.fd, select.EPOLLIN)

    def put(self, event: CMEvent) -> None:
        """An event happened."""
        self._queue.append(event)
        os.eventfd_write(self._local, 1)

    def get_event(self, timeout_s: float | None = None) -> CMEvent | None:
        """The next event, or None when none came in time (rdma_get_cm_event). Raises VerbsError(EIO) when the daemon is
        gone."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._queue:
            left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._epoll.poll(left)
            if not ready:
                return None
            for fd, _ in ready:
                if fd in self._sources:
                    self._sources[fd].read(0)
        os.eventfd_read(self._local)
        return self._queue.popleft()

    def close(self) -> None:
        """Release its descriptors. Idempotent."""
        if not self._epoll.closed:
            self._epoll.close()
            with contextlib.suppress(OSError):
                os.close(self._local)

    def __enter__(self) -> CMEventChannel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class CMEvent:
    """An event: `CMEvent(channel)` waits for the next one of a channel (rdma_get_cm_event).

    `event_type` is an EventType, `status` an errno or a reason of rejection, `private_data` what the peer said (padded
    with zeros), `id` the CMID it is about; of a request that is the listener, and the new CMID is CMID(event).
    """

    def __init__(self, channel: CMEventChannel | None = None, *, timeout_s: float | None = None) -> None:
        self.event_type = EventType.RDMA_CM_EVENT_ADDR_RESOLVED
        self.status = 0
        self.private_data = b""
        self.id: CMID | None = None
        self.qpn = self.qkey = 0
        self.ah_attr: AHAttr | None = None
        self.notice: V.CmNotice | None = None
        if channel is not None:
            event = channel.get_event(timeout_s)
            if event is None:
                raise VerbsError(errno.ETIMEDOUT, f"no connection event within {timeout_s} s")
            self.__dict__.update(event.__dict__)

    @staticmethod
    def of(kind: EventType, cmid: CMID, notice: V.CmNotice | None = None, status: int = 0) -> CMEvent:
        """The event that a notice is, or one that happened here."""
        event = CMEvent()
        event.event_type, event.id, event.notice = kind, cmid, notice
        event.status = status
        if notice is not None:
            event.status = status or notice.status
            event.private_data = notice.parameters.private
            event.qpn, event.qkey = notice.parameters.qpn, notice.parameters.qkey
        return event

    def event_str(self) -> str:
        """The event's name (rdma_event_str)."""
        return self.event_type.name

    def ack_cm_event(self) -> None:
        """Acknowledge it; here nothing waits for that."""

    def __repr__(self) -> str:
        return f"CMEvent({self.event_type.name}, status {self.status})"
