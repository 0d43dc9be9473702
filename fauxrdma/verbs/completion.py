"""Completion channels and completion queues."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import threading
import time
from collections import deque

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import RECEIVE_QUEUE_BIT, cq_bytes
from fauxrdma.abi.rings import CompletionRing
from fauxrdma.errors import VerbsError
from fauxrdma.ib.work import WC
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.device import Context
from fauxrdma.verbs.event_account import EventAccount

__all__ = ["CQ", "CompChannel"]

_SPINS = 40
"""Empty polls before `wait` goes to sleep: a few microseconds, less than a wake-up costs."""


class CompChannel:
    """Where completion queues announce completions; `fd` becomes readable."""

    CLOSE_ORDER = 4

    def __init__(self, context: Context) -> None:
        self.context = context
        created, fds = context._channel.request(V.CreateChannel(), V.Created, expect_fds=1)
        self.handle = created.handle
        self.fd = fds[0]
        os.set_blocking(self.fd, False)
        self._awaiting: set[asyncio.Future[None]] = set()
        self._cqs: dict[int, CQ] = {}
        self._waiting: deque[int] = deque()
        self._closed = False
        context._children.add(self)

    def get_cq_event(self, expected_cq: CQ | None = None, timeout_s: float | None = None) -> CQ | None:
        """Wait for an event and return its completion queue; None on timeout. Ack it with `CQ.ack_events`.

        Raises VerbsError(EIO) when the daemon is gone, VerbsError(EINVAL) when the event is of another queue than the
        expected one.
        """
        cq = None
        while cq is None:
            if not self._waiting and not self._fill(timeout_s):
                return None
            with contextlib.suppress(IndexError):  # another thread took it
                cq = self._cqs.get(self._waiting.popleft())  # None: the queue was destroyed after its event
        cq._events.delivered()
        if expected_cq is not None and cq is not expected_cq:
            raise VerbsError(errno.EINVAL, f"the event is of CQ {cq.handle}, expected CQ {expected_cq.handle}")
        return cq

    def _fill(self, timeout_s: float | None) -> bool:
        """Read what the pipe holds; False when nothing came in time."""
        timeout_ms = None if timeout_s is None else max(0.0, timeout_s * 1000)
        poller = select.poll()  # one for each call: threads may wait on one channel for different queues
        poller.register(self.fd, select.POLLIN)
        if not poller.poll(timeout_ms):
            return False
        try:
            data = os.read(self.fd, 4096)
        except BlockingIOError:
            return True  # another thread was faster
        if not data:
            raise VerbsError(errno.EIO, f"the HCA daemon at {self.context._channel.path!r} is gone")
        self._waiting.extend(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8))
        return True

    async def _readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for any event of the channel; all who wait are woken, and look at their own queues."""
        waiter: asyncio.Future[None] = loop.create_future()
        if not self._awaiting:
            loop.add_reader(self.fd, self._wake, loop)
        self._awaiting.add(waiter)
        try:
            await waiter
        finally:
            self._awaiting.discard(waiter)
            if not self._awaiting:
                loop.remove_reader(self.fd)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        error: VerbsError | None = None
        try:
            self._fill(0)
            self._waiting.clear()
        except VerbsError as gone:
            error = gone
        for waiter in self._awaiting:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    def close(self) -> None:
        """Destroy it. Idempotent. Raises VerbsError(EBUSY) while completion queues use it."""
        if not self._closed:
            self.context._destroy("channel", self.handle)
            os.close(self.fd)
            self._closed = True

    def __enter__(self) -> CompChannel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class CQ:
    """A completion queue of `cqe` entries. `channel` is needed for events, `wait` and `next`.

    Poll it often enough: an overflow is IBV_EVENT_CQ_ERR and takes the queue pairs that use it to ERR.
    """

    CLOSE_ORDER = 1

    def __init__(
        self,
        context: Context,
        cqe: int,
        cq_context: object = None,
        channel: CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        self.context = context
        self.cq_context = cq_context
        self.channel = channel
        self.cqe = cqe
        created, fds = context._channel.request(
            V.CreateCq(cqe, channel.handle if channel is not None else None, comp_vector), V.Created, expect_fds=1
        )
        self.handle = created.handle
        self._ring = _attach(fds[0], cqe)
        self._lock = threading.Lock()
        self._stash: deque[tuple[int, ...]] = deque()  # what a purge took out of the ring and has to be polled yet
        self._events = EventAccount(f"CQ {self.handle}")
        self._closed = False
        if channel is not None:
            channel._cqs[self.handle] = self
        context._children.add(self)

    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """Up to `num_entries` completions, oldest first: (how many, the completions). Makes no system call."""
        if self.context._failures:
            self.context._failures.check("poll_cq")
        taken = self._pull(num_entries)
        return len(taken), [self._hand_out(fields) for fields in taken]

    def _pull(self, limit: int) -> list[tuple[int, ...]]:
        """Up to `limit` completions as the daemon wrote them, oldest first."""
        with self._lock:
            stash = self._stash
            taken = [stash.popleft() for _ in range(min(limit, len(stash)))] if stash else []
            if len(taken) < limit:
                taken += self._ring.take(limit - len(taken))
        if taken and self.context._staged:
            self.context._sync_staged()
        return taken

    def _hand_out(self, fields: tuple[int, ...]) -> WC:
        """A completion reaches the program: the slots of its request and of those before it are free."""
        index = self._release(fields)
        wc = WC(*fields)
        wc.wqe_index, wc.is_receive = index, fields[13] != index
        return wc

    def _release(self, fields: tuple[int, ...]) -> int:
        index, qp_num = fields[13], fields[6]
        if index & RECEIVE_QUEUE_BIT:
            index &= ~RECEIVE_QUEUE_BIT
            srq = self.context._srq_of_qp.get(qp_num)
            if srq is not None:
                srq._release()
                return index
            qp = self.context._qps.get(qp_num)
            if qp is not None:
                qp._rq_released = index + 1
        else:
            qp = self.context._qps.get(qp_num)
            if qp is not None:
                qp._sq_released = index + 1
        return index

    def _purge(self, qp_num: int) -> None:
        """Drop the completions of a queue pair that was reset."""
        with self._lock:
            waiting = [*self._stash, *self._ring.take(self.cqe)]
            self._stash = deque(fields for fields in waiting if fields[6] != qp_num)
        for fields in waiting:
            if fields[6] == qp_num:
                self._release(fields)

    def req_notify(self, solicited_only: bool = False) -> None:
        """Ask for one event at the next completion added from now on (with `solicited_only`: solicited or in error).

        Poll again after arming: what came in between raises no event.
        """
        if self.channel is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion channel to notify")
        if self.context._failures:
            self.context._failures.check("req_notify_cq")
        self._arm(solicited_only)

    def _arm(self, solicited_only: bool = False) -> None:
        with self._lock:  # not into a ring that a resize is about to leave behind
            self._ring.arm(solicited_only)

    def ack_events(self, num_events: int) -> None:
        """Acknowledge events got from the channel. Raises VerbsError(EINVAL) for more than were got."""
        self._events.acknowledge(num_events)

    def resize(self, cqe: int) -> None:
        """Make room for `cqe` completions; those that wait are kept, also while more arrive.

        Raises VerbsError(EINVAL), and nothing has changed, for fewer than are waiting or more than the device has.
        """
        with self._lock:
            pending = len(self._stash) + len(self._ring)
            if cqe < pending:
                raise VerbsError(
                    errno.EINVAL, f"Failed to resize CQ {self.handle}: {cqe} entries, {pending} completions are pending"
                )
            _, fds = self.context._channel.request(V.ResizeCq(self.handle, cqe), V.Done, expect_fds=1)
            self._ring = _attach(fds[0], cqe)
            self.cqe = cqe

    def modify(self, cq_count: int, cq_period: int) -> None:
        """Moderate events, as ibv_modify_cq does: one for every `cq_count` completions, or `cq_period` us of fabric
        time after the first that had none. Either 0, as at first: an event at the next completion.

        Raises VerbsError(EINVAL) for values above 65535.
        """
        self.context._request(V.ModifyCq(self.handle, cq_count, cq_period), V.Done)

    def wait(self, max_entries: int = 64, timeout_s: float | None = None) -> list[WC]:
        """Block until there are completions and return up to `max_entries`; an empty list on timeout.

        Polls a little, then sleeps on the channel. Raises VerbsError(EIO) when the daemon is gone.
        """
        for _ in range(_SPINS):
            _, wcs = self.poll(max_entries)
            if wcs:
                return wcs
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        channel = self.channel
        if channel is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion channel to wait on")
        while True:
            self._arm()
            _, wcs = self.poll(max_entries)
            if wcs:
                return wcs
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            event_cq = channel.get_cq_event(timeout_s=left)
            if event_cq is not None:
                event_cq.ack_events(1)

    async def next(self) -> WC:
        """The next completion, without blocking the event loop. Raises VerbsError(EIO) when the daemon is gone."""
        channel = self.channel
        if channel is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion channel to wait on")
        loop = asyncio.get_running_loop()
        while True:
            self._arm()
            _, wcs = self.poll(1)
            if wcs:
                return wcs[0]
            await channel._readable(loop)

    def close(self) -> None:
        """Destroy it. Idempotent. Raises VerbsError(EBUSY) while queue pairs use it.

        Waits until every event that was got is acknowledged, and logs a warning when that takes long; closing the
        context does not wait.
        """
        if self._closed:
            return
        self.context._destroy("cq", self.handle)
        self._closed = True
        if self.channel is not None:
            self.channel._cqs.pop(self.handle, None)
        if not self.context._closed:
            self._events.settle()

    def __enter__(self) -> CQ:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _attach(fd: int, entries: int) -> CompletionRing:
    memory = SharedMemory.attach(fd, cq_bytes(entries))
    memory.close_fd()
    return CompletionRing(memory.view, entries)
