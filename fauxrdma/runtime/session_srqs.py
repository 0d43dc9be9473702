"""The shared-receive-queue verbs of one application."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.abi.layout import SrqLayout
from fauxrdma.abi.srq_ring import SharedReceiveRing
from fauxrdma.errors import VerbsError
from fauxrdma.hca.srq import SharedReceiveQueue
from fauxrdma.ib.enums import AsyncEventType, SrqAttrMask
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.runtime.queue_rings import SrqRing
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["SrqVerbs"]

_MAX_WR = int(SrqAttrMask.IBV_SRQ_MAX_WR)
_LIMIT = int(SrqAttrMask.IBV_SRQ_LIMIT)


class SrqVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self._srqs: dict[int, tuple[SharedReceiveQueue, SrqRing]] = {}
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.CreateSrq: self._create_srq,
            V.ModifySrq: self._modify_srq,
            V.QuerySrq: self._query_srq,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"srq": self._destroy_srq}

    def srq(self, handle: int) -> SharedReceiveQueue:
        """The shared receive queue with this handle. Raises VerbsError(EINVAL) when there is none."""
        return self._find(handle)[0]

    def _find(self, handle: int) -> tuple[SharedReceiveQueue, SrqRing]:
        found = self._srqs.get(handle)
        if found is None:
            raise VerbsError(errno.EINVAL, f"there is no shared receive queue {handle} in this context")
        return found

    def _create_srq(self, msg: V.CreateSrq) -> None:
        hca = self._session.hca
        pd = self._session.memory.pd(msg.pd)
        self._check_size("create", msg.max_wr)
        if not 0 <= msg.max_sge <= hca.attributes.max_srq_sge:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to create SRQ: max_sge is {msg.max_sge}, this device takes 0 to {hca.attributes.max_srq_sge}",
            )
        ring, memory = _new_ring(msg.max_wr, msg.max_sge)
        handle = hca.new_handle()

        def broken() -> None:
            # Not at once: the engine is in the middle of something.
            self._session.loop.call_soon(self._session.ring_broken, AsyncEventType.IBV_EVENT_SRQ_ERR, handle)

        source = SrqRing(ring, broken)
        try:
            srq = hca.engine.srqs.create(handle, pd, source)
        except VerbsError:
            memory.close_fd()
            raise
        srq.on_drop = source.publish_dropped
        self._srqs[handle] = srq, source
        hca.owners["srq", handle] = self._session.async_event
        self._session.reply(V.Created(handle), memory.fd)
        memory.close_fd()

    def _check_size(self, verb: str, max_wr: int) -> None:
        limit = self._session.hca.attributes.max_srq_wr
        if not 1 <= max_wr <= limit:
            raise VerbsError(errno.EINVAL, f"Failed to {verb} SRQ: max_wr is {max_wr}, this device takes 1 to {limit}")

    def _modify_srq(self, msg: V.ModifySrq) -> None:
        srq, source = self._find(msg.srq)
        if msg.mask & ~(_MAX_WR | _LIMIT):
            raise VerbsError(errno.EINVAL, f"Failed to modify SRQ: mask 0x{msg.mask:x} has unknown bits")
        resize = bool(msg.mask & _MAX_WR)
        entries = msg.max_wr if resize else source.ring.layout.entries
        limit = msg.srq_limit if msg.mask & _LIMIT else srq.limit
        if resize:
            self._check_size("modify", entries)
            if entries < len(source):
                raise VerbsError(
                    errno.EINVAL, f"Failed to modify SRQ: max_wr {entries}, but {len(source)} receives are posted"
                )
        if not 0 <= limit <= entries:
            raise VerbsError(
                errno.EINVAL, f"Failed to modify SRQ: srq_limit {limit} is not 0 to the queue's max_wr {entries}"
            )
        fds: tuple[int, ...] = ()
        if resize:
            ring, memory = _new_ring(entries, source.ring.layout.max_sge)
            source.ring.move_to(ring)
            source.ring = ring
            fds = (memory.fd,)
        self._session.reply(V.Done(), *fds)
        if resize:
            memory.close_fd()
        if msg.mask & _LIMIT:
            self._session.data_path.perform(self._session.hca, self._session.hca.engine.srqs.arm(msg.srq, limit))

    def _query_srq(self, msg: V.QuerySrq) -> None:
        srq, source = self._find(msg.srq)
        layout = source.ring.layout
        self._session.reply(V.SrqState(layout.entries, layout.max_sge, srq.limit))

    def _destroy_srq(self, handle: int) -> None:
        self._find(handle)
        self._session.hca.engine.srqs.destroy(handle)
        self._session.hca.owners.pop(("srq", handle), None)
        del self._srqs[handle]

    def close(self) -> None:
        """Destroy everything. Queue pairs are gone already."""
        for handle in list(self._srqs):
            self._destroy_srq(handle)


def _new_ring(entries: int, max_sge: int) -> tuple[SharedReceiveRing, SharedMemory]:
    layout = SrqLayout(entries, max_sge)
    memory = SharedMemory.create(layout.total_bytes, "fauxrdma-srq")
    ring = SharedReceiveRing(memory.view, layout)
    ring.format()
    return ring, memory
