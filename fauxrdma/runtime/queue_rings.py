"""The daemon's side of an application's rings, in the shape the engine wants."""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.abi.layout import RECEIVE_QUEUE_BIT
from fauxrdma.abi.rings import CompletionRing, QueuePairRings
from fauxrdma.abi.srq_ring import SharedReceiveRing
from fauxrdma.hca.work_queue import RecvWqe, SendWqe
from fauxrdma.ib.enums import WcStatus
from fauxrdma.ib.work import WC
from fauxrdma.runtime.event_pipe import EventPipe

__all__ = ["CompletionChannel", "CompletionQueue", "RecvRing", "SendRing", "SrqRing"]


class SendRing:
    """WorkSource of send requests. `on_broken` hears of an application that claims more than the ring holds."""

    __slots__ = ("_on_broken", "_rings", "advance", "peek_lone_write")

    def __init__(self, rings: QueuePairRings, on_broken: Callable[[], None]) -> None:
        self._rings = rings
        self._on_broken = on_broken
        self.peek_lone_write = rings.peek_lone_write
        self.advance = rings.advance_sends

    def fetch(self) -> SendWqe | None:
        """The next posted send, or None."""
        taken = self._rings.take_send()
        if taken is None:
            if self._rings.broken:
                self._rings.broken = False
                self._on_broken()
            return None
        index, fields = taken
        wr_id, opcode, flags, remote_addr, rkey, imm, sges, inline, compare_add, swap, handle = fields
        return SendWqe(
            index, wr_id, opcode, flags, sges, remote_addr, rkey, imm, inline,
            compare_add=compare_add, swap=swap, handle=handle,
        )  # fmt: skip

    def __len__(self) -> int:
        return self._rings.pending_sends()


class RecvRing:
    """WorkSource of receive requests. `on_broken` as for SendRing."""

    __slots__ = ("_on_broken", "_rings")

    def __init__(self, rings: QueuePairRings, on_broken: Callable[[], None]) -> None:
        self._rings = rings
        self._on_broken = on_broken

    def fetch(self) -> RecvWqe | None:
        """The next posted receive, or None."""
        taken = self._rings.take_recv()
        if taken is None:
            if self._rings.broken:
                self._rings.broken = False
                self._on_broken()
            return None
        index, (wr_id, sges) = taken
        return RecvWqe(index, wr_id, sges)

    def __len__(self) -> int:
        return self._rings.pending_recvs()


class SrqRing:
    """WorkSource of a shared receive queue; `ring` is replaced when it is resized. `on_broken` as for SendRing."""

    __slots__ = ("_on_broken", "ring")

    def __init__(self, ring: SharedReceiveRing, on_broken: Callable[[], None]) -> None:
        self.ring = ring
        self._on_broken = on_broken

    def fetch(self) -> RecvWqe | None:
        """The next posted receive, or None."""
        taken = self.ring.take()
        if taken is None:
            if self.ring.broken:
                self.ring.broken = False
                self._on_broken()
            return None
        index, (wr_id, sges) = taken
        return RecvWqe(index, wr_id, sges)

    def publish_dropped(self, count: int) -> None:
        """Tell the application how many receives were taken and will never complete: their slots are free."""
        self.ring.dropped = count

    def __len__(self) -> int:
        return len(self.ring)


class CompletionChannel:
    """The daemon's end of a completion channel, with the number of queues that announce there."""

    def __init__(self, handle: int, pipe: EventPipe) -> None:
        self.handle = handle
        self.users = 0
        self._pipe = pipe

    def notify(self, cqn: int) -> None:
        """Tell the application that this completion queue has something."""
        self._pipe.put(cqn.to_bytes(8, "little"))

    def close(self) -> None:
        """Release the descriptor. Idempotent."""
        self._pipe.close()


class CompletionQueue:
    """A completion queue: the ring, the channel it may wake, and the moderation of that (event for every `count`
    completions, or `period_us` of fabric time after the first without one; either 0: at once).

    `later(ns, call)` calls back after a span of fabric time. `ring` is replaced when the queue is resized.
    """

    def __init__(
        self,
        cqn: int,
        ring: CompletionRing,
        channel: CompletionChannel | None,
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self.cqn = cqn
        self.ring = ring
        self.channel = channel
        self.users = 0
        self._later = later
        self._count = 0
        self._period_us = 0
        self._held = 0
        self._round = 0  # of moderation: a timer of an earlier one is void

    def moderate(self, count: int, period_us: int) -> None:
        """Set the moderation. What is held back is announced."""
        self._count, self._period_us = count, period_us
        if self._held:
            self._notify()

    def add(self, wc: WC, solicited: bool) -> bool:
        """Add a completion and raise the event if armed. False when there is no room."""
        index = wc.wqe_index | (RECEIVE_QUEUE_BIT if wc.is_receive else 0)
        fields = (
            wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len & 0xFFFFFFFF, wc.imm_data, wc.qp_num, wc.src_qp,
            wc.wc_flags, wc.pkey_index, wc.slid, wc.sl, wc.timestamp_ns, index,
        )  # fmt: skip
        if not self.ring.push(fields):
            return False
        if self.channel is not None and self.ring.armed_for(solicited or wc.status != WcStatus.IBV_WC_SUCCESS):
            self._announce()
        return True

    def _announce(self) -> None:
        self._held += 1
        if self._held >= self._count or not self._period_us:
            self._notify()
        elif self._held == 1:
            current = self._round
            self._later(self._period_us * 1000, lambda: self._period_over(current))

    def _period_over(self, which: int) -> None:
        if which == self._round and self._held:
            self._notify()

    def _notify(self) -> None:
        self._held = 0
        self._round += 1
        self.ring.disarm()
        assert self.channel is not None
        self.channel.notify(self.cqn)
