"""Shared receive queues: receives that any of several queue pairs may take (IBTA vol. 1, 10.2.9).

A queue pair with a shared receive queue takes a receive when a message needs one, in the order of posting over all its
queue pairs. It sees the queue through :class:`SharedReceives`, a work source that is empty unless the queue pair can
receive: flushing a queue pair therefore completes the receive it holds and touches none that is still shared.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fauxrdma.errors import VerbsError
from fauxrdma.hca.events import Action, AsyncEvent, Complete
from fauxrdma.hca.work_queue import RecvWqe, WorkSource
from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.ib.enums import AsyncEventType, QpState
from fauxrdma.memory.regions import ProtectionDomain

if TYPE_CHECKING:
    from fauxrdma.hca.queue_pair import QueuePair

__all__ = ["SharedReceiveQueue", "SharedReceiveQueues", "SharedReceives"]

_RECEIVING = frozenset((QpState.IBV_QPS_RTR, QpState.IBV_QPS_RTS, QpState.IBV_QPS_SQD, QpState.IBV_QPS_SQE))


@dataclass(slots=True, eq=False)
class SharedReceiveQueue:
    """One shared receive queue. `source` yields its receives, whose memory belongs to `pd`.

    `limit` is armed when not 0: fewer receives left than that set `limit_reached`, once, and `limit` back to 0.
    `dropped` counts receives that were taken and never complete, because their queue pair was reset or destroyed or
    their completion found no room; `on_drop` is told of its new value.
    """

    srqn: int
    pd: ProtectionDomain
    source: WorkSource[RecvWqe] = field(repr=False)
    limit: int = 0
    limit_reached: bool = False
    users: int = 0
    dropped: int = 0
    on_drop: Callable[[int], None] | None = field(default=None, repr=False)

    def fetch(self) -> RecvWqe | None:
        """The next receive, or None."""
        wqe = self.source.fetch()
        if self.limit and wqe is not None:
            self.check_limit()
        return wqe

    def drop(self, count: int = 1) -> None:
        """Count receives that will never complete."""
        self.dropped += count
        if self.on_drop is not None:
            self.on_drop(self.dropped)

    def check_limit(self) -> None:
        """Note that fewer receives are left than the armed limit."""
        if len(self.source) < self.limit:
            self.limit = 0
            self.limit_reached = True


class SharedReceives:
    """The shared queue as one queue pair's receive queue: a WorkSource. `in_hand` receives have been taken by the
    queue pair and not completed."""

    __slots__ = ("in_hand", "qp", "srq")

    def __init__(self, srq: SharedReceiveQueue, qp: QueuePair) -> None:
        self.srq = srq
        self.qp = qp
        self.in_hand = 0

    def fetch(self) -> RecvWqe | None:
        """The next receive, or None when there is none or the queue pair's state does not receive."""
        if self.qp.state not in _RECEIVING:
            return None
        wqe = self.srq.fetch()
        if wqe is not None:
            self.in_hand += 1
        return wqe

    def forget(self) -> None:
        """What the queue pair holds will never complete."""
        self.srq.drop(self.in_hand)
        self.in_hand = 0

    def __len__(self) -> int:
        return len(self.srq.source) if self.qp.state in _RECEIVING else 0


class SharedReceiveQueues:
    """The shared receive queues of one HCA, by number. `qps` are the HCA's queue pairs."""

    def __init__(self, attributes: DeviceAttr, qps: Mapping[int, QueuePair]) -> None:
        self._attributes = attributes
        self._qps = qps
        self._srqs: dict[int, SharedReceiveQueue] = {}

    def __len__(self) -> int:
        return len(self._srqs)

    def create(self, srqn: int, pd: ProtectionDomain, source: WorkSource[RecvWqe]) -> SharedReceiveQueue:
        """A new one called `srqn`. Raises VerbsError(ENOMEM) at the device's limit."""
        if len(self._srqs) >= self._attributes.max_srq:
            raise VerbsError(errno.ENOMEM, f"Failed to create SRQ: the device has max_srq = {self._attributes.max_srq}")
        srq = self._srqs[srqn] = SharedReceiveQueue(srqn, pd, source)
        pd.children += 1
        return srq

    def destroy(self, srqn: int) -> None:
        """Remove one. Raises VerbsError(EBUSY) while queue pairs use it."""
        srq = self._srqs[srqn]
        if srq.users:
            raise VerbsError(errno.EBUSY, f"Failed to destroy SRQ {srqn}: {srq.users} queue pairs still use it")
        del self._srqs[srqn]
        srq.pd.children -= 1

    def arm(self, srqn: int, limit: int) -> list[Action]:
        """Ask for one IBV_EVENT_SRQ_LIMIT_REACHED when fewer than `limit` receives are left; 0 asks for none.

        When fewer are left already the event comes at once: who arms after the queue ran low must hear of it.
        """
        srq = self._srqs[srqn]
        srq.limit = limit
        srq.check_limit()
        out: list[Action] = []
        self.settle(out)
        return out

    def settle(self, out: list[Action]) -> None:
        """Count the receives of shared queues that `out` completes, and report limits that were reached."""
        for action in out:
            if type(action) is Complete and action.wc.is_receive:
                qp = self._qps.get(action.wc.qp_num)
                if qp is not None and isinstance(qp.rq, SharedReceives):
                    qp.rq.in_hand -= 1
        for srq in self._srqs.values():
            if srq.limit_reached:
                srq.limit_reached = False
                text = f"shared receive queue {srq.srqn} has {len(srq.source)} receives left"
                out.append(AsyncEvent(AsyncEventType.IBV_EVENT_SRQ_LIMIT_REACHED, srq.srqn, text))
