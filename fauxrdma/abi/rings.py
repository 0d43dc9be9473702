"""Both ends of the shared-memory rings: the application produces requests and consumes completions, the daemon the
other way round. Pure memory access; doorbells and events are the runtime's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from fauxrdma.abi import layout as L

__all__ = [
    "CompletionRing",
    "DoorbellRing",
    "LoneWrite",
    "QueuePairRings",
    "RecvFields",
    "SendFields",
    "pack_receive",
    "unpack_receive",
]

SendFields = tuple[int, int, int, int, int, int, tuple[tuple[int, int, int], ...], bytes | None, int, int, int]
"""wr_id, opcode, flags, remote_addr, rkey, imm, SGEs, inline data, compare_add, swap, handle."""
RecvFields = tuple[int, tuple[tuple[int, int, int], ...]]
"""wr_id, SGEs."""
LoneWrite = tuple[int, int, int, int, int, bytes | tuple[int, int, int]]
"""Index, wr_id, flags, remote_addr, rkey, inline data or SGE."""

_INDEX_MASK = (1 << 64) - 1
_HEADER = struct.Struct("<II")


class QueuePairRings:
    """The send and the receive ring of one queue pair, over its shared memory. `broken` once the application claimed
    more than a ring holds."""

    __slots__ = ("_data", "_words", "broken", "layout")

    def __init__(self, view: memoryview, layout: L.QpLayout) -> None:
        self.layout = layout
        self.broken = False
        self._data = view
        self._words = view[: L.QP_HEADER_BYTES].cast("Q")

    def format(self) -> None:
        """Write magic and version (the daemon does, once)."""
        _HEADER.pack_into(self._data, 0, L.MAGIC, L.ABI_VERSION)

    # Single-writer indices.
    @property
    def state(self) -> int:
        """The queue pair's state as the daemon last published it."""
        return self._words[L.QP_STATE_WORD]

    @state.setter
    def state(self, value: int) -> None:
        self._words[L.QP_STATE_WORD] = value

    @property
    def sq_producer(self) -> int:
        """Send requests posted since creation."""
        return self._words[L.QP_SQ_PRODUCER]

    @property
    def rq_producer(self) -> int:
        """Receive requests posted since creation."""
        return self._words[L.QP_RQ_PRODUCER]

    @property
    def sq_consumer(self) -> int:
        """Send requests the daemon has taken."""
        return self._words[L.QP_SQ_CONSUMER]

    @property
    def rq_consumer(self) -> int:
        """Receive requests the daemon has taken."""
        return self._words[L.QP_RQ_CONSUMER]

    def put_send(
        self,
        index: int,
        wr_id: int,
        opcode: int,
        flags: int,
        remote_addr: int,
        rkey: int,
        imm: int,
        sges: Sequence[tuple[int, int, int]],
        inline: bytes | None,
        compare_add: int = 0,
        swap: int = 0,
        handle: int = 0,
    ) -> None:
        """Application: fill the slot of send request `index`. Publish with `publish_sends`."""
        at = self.layout.sq_offset + index % self.layout.sq_entries * self.layout.sq_stride
        data = self._data
        inline_bytes = 0 if inline is None else len(inline)
        L.SEND_WQE.pack_into(
            data, at, wr_id, opcode, flags, remote_addr, rkey, imm, len(sges), inline_bytes,
            compare_add, swap, handle, 0,
        )  # fmt: skip
        at += L.SEND_WQE_BYTES
        if inline is not None:
            data[at : at + inline_bytes] = inline
            return
        for addr, length, lkey in sges:
            L.SGE.pack_into(data, at, addr, length, lkey)
            at += L.SGE_BYTES

    def publish_sends(self, producer: int) -> None:
        """Application: everything below `producer` may be taken."""
        self._words[L.QP_SQ_PRODUCER] = producer

    def put_recv(self, index: int, wr_id: int, sges: Sequence[tuple[int, int, int]]) -> None:
        """Application: fill the slot of receive request `index`. Publish with `publish_recvs`."""
        at = self.layout.rq_offset + index % self.layout.rq_entries * self.layout.rq_stride
        pack_receive(self._data, at, wr_id, sges)

    def publish_recvs(self, producer: int) -> None:
        """Application: everything below `producer` may be taken."""
        self._words[L.QP_RQ_PRODUCER] = producer

    def take_send(self) -> tuple[int, SendFields] | None:
        """Daemon: the next send request and its index, or None."""
        words = self._words
        index, producer = words[L.QP_SQ_CONSUMER], words[L.QP_SQ_PRODUCER]
        if index == producer:
            return None
        layout = self.layout
        if not 0 < producer - index <= layout.sq_entries:
            # Only a broken application claims more than the ring holds; what it posted cannot be told any more.
            words[L.QP_SQ_CONSUMER] = producer
            self.broken = True
            return None
        at = layout.sq_offset + index % layout.sq_entries * layout.sq_stride
        data = self._data
        wr_id, opcode, flags, remote_addr, rkey, imm, num_sge, inline_bytes, compare_add, swap, handle, _ = (
            L.SEND_WQE.unpack_from(data, at)
        )
        at += L.SEND_WQE_BYTES
        # What the application wrote is not trusted to stay inside its slot.
        room = layout.sq_stride - L.SEND_WQE_BYTES
        inline: bytes | None = None
        sges: tuple[tuple[int, int, int], ...] = ()
        if flags & 8:
            inline = bytes(data[at : at + min(inline_bytes, room)])
        else:
            sges = _sges(data, at, min(num_sge, room // L.SGE_BYTES))
        words[L.QP_SQ_CONSUMER] = index + 1
        return index, (wr_id, opcode, flags, remote_addr, rkey, imm, sges, inline, compare_add, swap, handle)

    def peek_lone_write(self, limit: int) -> LoneWrite | None:
        """Daemon: the send request that waits, if it waits alone and is a plain RDMA WRITE of at most `limit` bytes,
        inline or from one SGE; None else. Take it with `advance_sends`."""
        words = self._words
        index = words[L.QP_SQ_CONSUMER]
        if words[L.QP_SQ_PRODUCER] != index + 1:
            return None
        layout = self.layout
        at = layout.sq_offset + index % layout.sq_entries * layout.sq_stride
        data = self._data
        wr_id, opcode, flags, remote_addr, rkey, _, num_sge, inline_bytes, *_ = L.SEND_WQE.unpack_from(data, at)
        if opcode != 0:  # IBV_WR_RDMA_WRITE
            return None
        at += L.SEND_WQE_BYTES
        if flags & 8:
            if inline_bytes > limit or inline_bytes > layout.sq_stride - L.SEND_WQE_BYTES:
                return None
            return index, wr_id, flags, remote_addr, rkey, bytes(data[at : at + inline_bytes])
        if num_sge != 1 or layout.sq_stride < L.SEND_WQE_BYTES + L.SGE_BYTES:
            return None
        sge: tuple[int, int, int] = L.SGE.unpack_from(data, at)
        return (index, wr_id, flags, remote_addr, rkey, sge) if 0 < sge[1] <= limit else None

    def advance_sends(self, consumer: int) -> None:
        """Daemon: everything below `consumer` has been taken."""
        self._words[L.QP_SQ_CONSUMER] = consumer

    def take_recv(self) -> tuple[int, RecvFields] | None:
        """Daemon: the next receive request and its index, or None."""
        words = self._words
        index, producer = words[L.QP_RQ_CONSUMER], words[L.QP_RQ_PRODUCER]
        if index == producer:
            return None
        layout = self.layout
        if not 0 < producer - index <= layout.rq_entries:
            # Only a broken application claims more than the ring holds; what it posted cannot be told any more.
            words[L.QP_RQ_CONSUMER] = producer
            self.broken = True
            return None
        at = layout.rq_offset + index % layout.rq_entries * layout.rq_stride
        fields = unpack_receive(self._data, at, layout.rq_stride)
        words[L.QP_RQ_CONSUMER] = index + 1
        return index, fields

    def pending_sends(self) -> int:
        """Posted and not taken."""
        return _pending(self._words[L.QP_SQ_PRODUCER] - self._words[L.QP_SQ_CONSUMER], self.layout.sq_entries)

    def pending_recvs(self) -> int:
        """Posted and not taken."""
        return _pending(self._words[L.QP_RQ_PRODUCER] - self._words[L.QP_RQ_CONSUMER], self.layout.rq_entries)


def pack_receive(data: memoryview, at: int, wr_id: int, sges: Sequence[tuple[int, int, int]]) -> None:
    """Write a receive request into the slot at `at`."""
    L.RECV_WQE.pack_into(data, at, wr_id, len(sges), 0)
    at += L.RECV_WQE_BYTES
    for addr, length, lkey in sges:
        L.SGE.pack_into(data, at, addr, length, lkey)
        at += L.SGE_BYTES


def unpack_receive(data: memoryview, at: int, stride: int) -> RecvFields:
    """The receive request in the slot of `stride` bytes at `at`; more SGEs than it holds are not believed."""
    wr_id, num_sge, _ = L.RECV_WQE.unpack_from(data, at)
    return wr_id, _sges(data, at + L.RECV_WQE_BYTES, min(num_sge, (stride - L.RECV_WQE_BYTES) // L.SGE_BYTES))


def _sges(data: memoryview, at: int, count: int) -> tuple[tuple[int, int, int], ...]:
    if count == 1:
        return (L.SGE.unpack_from(data, at),)
    return tuple(L.SGE.unpack_from(data, at + i * L.SGE_BYTES) for i in range(count))


def _pending(count: int, entries: int) -> int:
    """`count` if the ring can hold it; a wild one counts as 1, so that `take` is called and puts the index right."""
    return count if 0 <= count <= entries else 1


class CompletionRing:
    """A completion queue's ring."""

    __slots__ = ("_data", "_words", "entries")

    def __init__(self, view: memoryview, entries: int) -> None:
        self.entries = entries
        self._data = view
        self._words = view[: L.CQ_HEADER_BYTES].cast("Q")

    def format(self) -> None:
        """Write magic and version (the daemon does, once)."""
        _HEADER.pack_into(self._data, 0, L.MAGIC, L.ABI_VERSION)

    def push(self, fields: tuple[int, ...]) -> bool:
        """Daemon: add a completion (fields as in layout.CQE). False when the ring is full."""
        words = self._words
        producer = words[L.CQ_PRODUCER]
        if producer - words[L.CQ_CONSUMER] >= self.entries:
            return False
        L.CQE.pack_into(self._data, L.CQ_HEADER_BYTES + producer % self.entries * L.CQE_BYTES, *fields)
        words[L.CQ_PRODUCER] = (producer + 1) & _INDEX_MASK
        return True

    def move_to(self, other: CompletionRing) -> None:
        """Daemon: carry what has not been polled, all indices and the arming over to a ring of another size."""
        words, target = self._words, other._words
        for index in range(words[L.CQ_CONSUMER], words[L.CQ_PRODUCER]):
            old = L.CQ_HEADER_BYTES + index % self.entries * L.CQE_BYTES
            new = L.CQ_HEADER_BYTES + index % other.entries * L.CQE_BYTES
            other._data[new : new + L.CQE_BYTES] = self._data[old : old + L.CQE_BYTES]
        for word in (L.CQ_PRODUCER, L.CQ_CONSUMER, L.CQ_ARMED):
            target[word] = words[word]

    def take(self, limit: int) -> list[tuple[int, ...]]:
        """Application: up to `limit` completions, oldest first, without a system call."""
        words = self._words
        consumer = words[L.CQ_CONSUMER]
        count = min(words[L.CQ_PRODUCER] - consumer, limit)
        if count <= 0:
            return []
        data, entries = self._data, self.entries
        out = [
            L.CQE.unpack_from(data, L.CQ_HEADER_BYTES + (consumer + i) % entries * L.CQE_BYTES) for i in range(count)
        ]
        words[L.CQ_CONSUMER] = consumer + count
        return out

    def __len__(self) -> int:
        """Completions waiting to be polled."""
        return self._words[L.CQ_PRODUCER] - self._words[L.CQ_CONSUMER]

    def arm(self, solicited_only: bool) -> None:
        """Application: ask for one event at the next completion."""
        self._words[L.CQ_ARMED] = L.ARMED_SOLICITED if solicited_only else L.ARMED_ANY

    def armed_for(self, solicited_or_error: bool) -> bool:
        """Daemon: whether a completion just added counts for the event that was asked for."""
        armed = self._words[L.CQ_ARMED]
        return armed == L.ARMED_ANY or (armed == L.ARMED_SOLICITED and solicited_or_error)

    def disarm(self) -> None:
        """Daemon: the event is raised."""
        self._words[L.CQ_ARMED] = 0


class DoorbellRing:
    """Which queue pairs of a context have new work."""

    __slots__ = ("_entries", "_words")

    def __init__(self, view: memoryview) -> None:
        self._words = view[: L.DOORBELL_HEADER_BYTES].cast("Q")
        self._entries = view[L.DOORBELL_HEADER_BYTES : L.DOORBELL_HEADER_BYTES + 4 * L.DOORBELL_ENTRIES].cast("I")

    def ring(self, qpn: int) -> None:
        """Application: note the queue pair. A full ring asks the daemon to look at all of them."""
        words = self._words
        producer = words[L.DOORBELL_PRODUCER]
        if producer - words[L.DOORBELL_CONSUMER] >= L.DOORBELL_ENTRIES:
            words[L.DOORBELL_OVERFLOW] = 1
            return
        self._entries[producer % L.DOORBELL_ENTRIES] = qpn
        words[L.DOORBELL_PRODUCER] = producer + 1

    def drain(self) -> list[int] | None:
        """Daemon: queue pairs rung since the last call, without repeats; None when it overflowed (look at all)."""
        words = self._words
        consumer, producer = words[L.DOORBELL_CONSUMER], words[L.DOORBELL_PRODUCER]
        if producer == consumer and not words[L.DOORBELL_OVERFLOW]:
            return []
        count = min(producer - consumer, L.DOORBELL_ENTRIES)
        entries = self._entries
        if count == 1 and not words[L.DOORBELL_OVERFLOW]:
            words[L.DOORBELL_CONSUMER] = producer
            return [entries[consumer % L.DOORBELL_ENTRIES]]
        qpns = list(dict.fromkeys(entries[(consumer + i) % L.DOORBELL_ENTRIES] for i in range(count)))
        words[L.DOORBELL_CONSUMER] = producer
        if words[L.DOORBELL_OVERFLOW]:
            words[L.DOORBELL_OVERFLOW] = 0
            return None
        return qpns
