"""Completion channels and completion queues."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import threading
import time
from collections import deque
from typing import Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import RECEIVE_QUEUE_BIT, cq_bytes
from fauxrdma.abi.rings import CompletionRing
from fauxrdma.errors import VerbsError
from fauxrdma.ib.work import WC
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.device import Context
from fauxrdma.verbs.event_account import EventAccount

__all__ = ["CQ", "CompChannel"]

_EVENT_BYTES = 8
"""Of an event in the channel's pipe: the queue's handle."""

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
        self._turn = threading.Condition()  # of those in CQ.wait: one reads the channel, for all
        self._reading = False
        self._woken: set[int] = set()  # queues whose event another thread's CQ.wait has read
        self._closed = False
        context._children.add(self)

    def get_cq_event(self, expected_cq: CQ | None = None, timeout_s: float | None = None) -> CQ | None:
        """Wait for an event and return its completion queue; None on timeout. Ack it with `CQ.ack_events`.

        Raises VerbsError(EIO) when the daemon is gone, VerbsError(EINVAL) when the event is of another queue than the
        expected one.
        """
        if self._closed:
            raise VerbsError(errno.EINVAL, "Failed to get a CQ event: the completion channel was destroyed")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        cq, queues = None, self._cqs.get
        while cq is None:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            handle = self._read(left)
            if handle is None:
                return None
            cq = queues(handle)  # None: the queue was destroyed after its event
        cq._events.delivered()
        if expected_cq is not None and cq is not expected_cq:
            raise VerbsError(errno.EINVAL, f"the event is of CQ {cq.handle}, expected CQ {expected_cq.handle}")
        return cq

    def _read(self, timeout_s: float | None) -> int | None:
        """The queue of the next event in the pipe; None when none came in time, 0 (no queue) when another thread was
        faster. One event only: programs wait for `fd` to be readable, which it must be while there are more."""
        poller = select.poll()  # one for each call: threads may wait on one channel
        poller.register(self.fd, select.POLLIN)
        if not self.context._channel.wait(poller, timeout_s):
            return None
        try:
            data = os.read(self.fd, _EVENT_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            raise VerbsError(errno.EIO, f"the HCA daemon at {self.context._channel.path!r} is gone")
        return int.from_bytes(data, "little")

    def _wait_for(self, cq: CQ, timeout_s: float | None) -> bool:
        """Until an event of `cq` came (it is acknowledged here), or anything else that makes it worth to look again;
        False when the time is over. Threads may wait for different queues: one at a time reads the channel, and wakes
        whom its event is for."""
        with self._turn:
            if cq.handle not in self._woken and not self._reading:
                self._reading = True
            else:
                if cq.handle not in self._woken:
                    self._turn.wait(timeout_s)
                self._woken.discard(cq.handle)
                return True
        event_cq = None
        try:
            event_cq = self.get_cq_event(timeout_s=timeout_s)
            if event_cq is not None:
                event_cq.ack_events(1)
        finally:
            with self._turn:
                self._reading = False
                if event_cq is not None and event_cq is not cq:
                    self._woken.add(event_cq.handle)
                self._turn.notify_all()
        return event_cq is not None

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
            while self._read(0) is not None:
                pass
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
            self.fd = -1  # the number may soon be somebody else's
            self._closed = True

    def __enter__(self) -> Self:
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
        """Up to `num_entries` completions, oldest first: (how many, the completions). Makes no system call.

        Under clock `virtual` a poll that finds nothing waits until something happens in the fabric, or for what empty
        polls cost in fabric time.
        """
        polled = self.look(num_entries)
        if not polled[0] and self.context.virtual is not None and num_entries > 0:
            self.context.virtual.timer.wait_step()
        return polled

    def look(self, num_entries: int = 1) -> tuple[int, list[WC]]:
        """As `poll`, and finding nothing takes no fabric time: for who goes on to wait for an event."""
        if self.context._failures:
            self.context._failures.check("poll_cq")
        with self._lock:  # the slots, too: they are freed in the order of the completions
            stash = self._stash
            taken = [stash.popleft() for _ in range(min(num_entries, len(stash)))] if stash else []
            if len(taken) < num_entries:
                taken += self._ring.take(num_entries - len(taken))
            wcs = [self._hand_out(fields) for fields in taken]
        if taken and self.context._staged:
            self.context._sync_staged()
        return len(wcs), wcs

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

    def _forget_shared(self, qp_num: int) -> None:
        """A queue pair that shared receives is gone: the slots of those whose completions wait here are free."""
        with self._lock:
            self._stash.extend(self._ring.take(self.cqe))
            for fields in self._stash:
                if fields[6] == qp_num and fields[13] & RECEIVE_QUEUE_BIT:
                    self._release(fields)
            self.context._srq_of_qp.pop(qp_num, None)

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
            _, wcs = self.look(max_entries)
            if wcs:
                return wcs
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        channel = self.channel
        if channel is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion channel to wait on")
        while True:
            self._arm()
            _, wcs = self.look(max_entries)
            if wcs:
                return wcs
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return []
            if not channel._wait_for(self, left) and left is not None:
                return self.look(max_entries)[1]

    async def next(self) -> WC:
        """The next completion, without blocking the event loop. Raises VerbsError(EIO) when the daemon is gone."""
        channel = self.channel
        if channel is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion channel to wait on")
        loop = asyncio.get_running_loop()
        while True:
            self._arm()
            _, wcs = self.look(1)
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
            self.channel._woken.discard(self.handle)
        if not self.context._closed:
            self._events.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _attach(fd: int, entries: int) -> CompletionRing:
    memory = SharedMemory.attach(fd, cq_bytes(entries))
    memory.close_fd()
    return CompletionRing(memory.view, entries)
