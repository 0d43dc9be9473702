"""Shared receive queues."""

from __future__ import annotations

import errno
import struct
import threading
from dataclasses import dataclass, field
from typing import Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import SrqLayout
from fauxrdma.abi.srq_ring import SharedReceiveRing
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import SrqAttr
from fauxrdma.ib.enums import SrqAttrMask
from fauxrdma.ib.work import RecvWR
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.memory import PD
from fauxrdma.verbs.posting import refused

__all__ = ["SRQ", "SrqInitAttr"]


@dataclass(slots=True)
class SrqInitAttr:
    """What a shared receive queue is made of."""

    attr: SrqAttr = field(default_factory=SrqAttr)
    srq_context: object = None

    @property
    def max_wr(self) -> int:
        """Receives it holds."""
        return self.attr.max_wr

    @property
    def max_sge(self) -> int:
        """Scatter/gather entries of each receive."""
        return self.attr.max_sge


class SRQ:
    """A shared receive queue: receives for every queue pair made with `QPInitAttr(srq=...)`, in the order of posting.

    A receive's slot is free again once its completion has been polled, from whichever queue it came to.
    Raises VerbsError: EINVAL for sizes the device does not have, ENOMEM at its limits.
    """

    CLOSE_ORDER = 1

    def __init__(self, pd: PD, init_attr: SrqInitAttr | None = None) -> None:
        attr = (init_attr or SrqInitAttr()).attr
        self.pd = pd
        self.context = pd.context
        self._max_wr, self._max_sge = attr.max_wr, attr.max_sge
        created, fds = self.context._channel.request(
            V.CreateSrq(pd.handle, attr.max_wr, attr.max_sge), V.Created, expect_fds=1
        )
        self.handle: int = created.handle
        self._ring = self._attach(fds[0], attr.max_wr)
        self._lock = threading.Lock()
        self._posted = 0
        self._polled = 0
        self._closed = False
        self.context._children.add(self)

    def _attach(self, fd: int, entries: int) -> SharedReceiveRing:
        layout = SrqLayout(entries, self._max_sge)
        memory = SharedMemory.attach(fd, layout.total_bytes)
        memory.close_fd()
        return SharedReceiveRing(memory.view, layout)

    def get_srq_num(self) -> int:
        """Its number."""
        return self.handle

    def post_recv(self, *wrs: RecvWR) -> None:
        """Post receives, in order and each with its `next_wr` chain. Raises VerbsError: ENOMEM when the queue is full,
        EINVAL for too many SGEs. Receives before the bad one are posted; the error's `bad_wr` is the bad one."""
        if self.context._failures:
            self.context._failures.check("post_srq_recv")
        with self._lock:
            posted = self._posted
            wr: RecvWR | None = None
            try:
                for first in wrs:
                    wr = first
                    while wr is not None:
                        self._put(posted, wr)
                        posted += 1
                        wr = wr.next_wr
            except (VerbsError, struct.error) as error:
                raise refused("receive to SRQ", error, wr) from None
            finally:
                if posted != self._posted:
                    self._posted = posted
                    self._ring.publish(posted)

    def _put(self, index: int, wr: RecvWR) -> None:
        if self._outstanding(index) >= self._max_wr:
            raise VerbsError(
                errno.ENOMEM,
                f"Failed to post receive to SRQ {self.handle}: all {self._max_wr} receives are outstanding; "
                "poll completions of its queue pairs first",
            )
        if len(wr.sg) > self._max_sge:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to post receive to SRQ {self.handle}: {len(wr.sg)} SGEs, it has max_sge {self._max_sge}",
            )
        self._ring.put(index, wr.wr_id, tuple((s.addr, s.length, s.lkey) for s in wr.sg))

    def _outstanding(self, posted: int) -> int:
        return posted - self._polled - self._ring.dropped

    def _release(self) -> None:
        """A completion of one of its receives was polled."""
        with self._lock:
            self._polled += 1

    def modify(self, attr: SrqAttr, mask: int) -> None:
        """Resize it (IBV_SRQ_MAX_WR) or arm the limit event (IBV_SRQ_LIMIT): IBV_EVENT_SRQ_LIMIT_REACHED comes once,
        when fewer than `srq_limit` receives are left.

        Raises VerbsError(EINVAL), and nothing has changed, for a size below the receives outstanding or above the
        device's, and for a limit above the size.
        """
        resize = bool(mask & SrqAttrMask.IBV_SRQ_MAX_WR)
        with self._lock:
            outstanding = self._outstanding(self._posted)
            if resize and attr.max_wr < outstanding:
                raise VerbsError(
                    errno.EINVAL,
                    f"Failed to modify SRQ {self.handle}: max_wr {attr.max_wr}, but {outstanding} are outstanding",
                )
            _, fds = self.context._channel.request(
                V.ModifySrq(self.handle, int(mask), attr.max_wr, attr.srq_limit), V.Done, expect_fds=int(resize)
            )
            if resize:
                self._max_wr = attr.max_wr
                self._ring = self._attach(fds[0], attr.max_wr)

    def query(self) -> SrqAttr:
        """Its size, and the limit as long as it is armed."""
        state: V.SrqState = self.context._request(V.QuerySrq(self.handle), V.SrqState)
        return SrqAttr(state.max_wr, state.max_sge, state.srq_limit)

    def close(self) -> None:
        """Destroy it. Idempotent. Raises VerbsError(EBUSY) while queue pairs use it."""
        if not self._closed:
            self.context._destroy("srq", self.handle)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
