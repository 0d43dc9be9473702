"""A shared receive queue's memory, from both ends: the application posts, the daemon takes."""

from __future__ import annotations

import struct

from fauxrdma.abi import layout as L
from fauxrdma.abi.rings import RecvFields, pack_receive, unpack_receive

__all__ = ["SharedReceiveRing"]

_HEADER = struct.Struct("<II")


class SharedReceiveRing:
    """The ring of one shared receive queue, over its shared memory. `broken` once the application claimed more than
    the ring holds."""

    __slots__ = ("_data", "_words", "broken", "layout")

    def __init__(self, view: memoryview, layout: L.SrqLayout) -> None:
        self.layout = layout
        self._data = view
        self._words = view[: L.SRQ_HEADER_BYTES].cast("Q")
        self.broken = False

    def format(self) -> None:
        """Write magic and version (the daemon does, once)."""
        _HEADER.pack_into(self._data, 0, L.MAGIC, L.ABI_VERSION)

    @property
    def producer(self) -> int:
        """Receives posted since creation."""
        return self._words[L.SRQ_PRODUCER]

    @property
    def dropped(self) -> int:
        """Receives that were taken and will never complete."""
        return self._words[L.SRQ_DROPPED]

    @dropped.setter
    def dropped(self, count: int) -> None:
        self._words[L.SRQ_DROPPED] = count

    def put(self, index: int, wr_id: int, sges: tuple[tuple[int, int, int], ...]) -> None:
        """Application: fill the slot of receive `index`. Publish with `publish`."""
        pack_receive(self._data, self._slot(index), wr_id, sges)

    def publish(self, producer: int) -> None:
        """Application: everything below `producer` may be taken."""
        self._words[L.SRQ_PRODUCER] = producer

    def take(self) -> tuple[int, RecvFields] | None:
        """Daemon: the next receive and its index, or None."""
        words = self._words
        index, producer = words[L.SRQ_CONSUMER], words[L.SRQ_PRODUCER]
        if index == producer:
            return None
        if not 0 < producer - index <= self.layout.entries:
            words[L.SRQ_CONSUMER] = producer
            self.broken = True
            return None
        fields = unpack_receive(self._data, self._slot(index), self.layout.stride)
        words[L.SRQ_CONSUMER] = index + 1
        return index, fields

    def __len__(self) -> int:
        """Receives posted and not taken."""
        count = self._words[L.SRQ_PRODUCER] - self._words[L.SRQ_CONSUMER]
        return count if 0 <= count <= self.layout.entries else 1

    def move_to(self, other: SharedReceiveRing) -> None:
        """Daemon: carry what is posted and not taken, and all indices, over to a ring of another size."""
        words, target = self._words, other._words
        stride = self.layout.stride
        for index in range(words[L.SRQ_CONSUMER], words[L.SRQ_PRODUCER]):
            old, new = self._slot(index), other._slot(index)
            other._data[new : new + stride] = self._data[old : old + stride]
        for word in (L.SRQ_PRODUCER, L.SRQ_CONSUMER, L.SRQ_DROPPED):
            target[word] = words[word]

    def _slot(self, index: int) -> int:
        return L.SRQ_HEADER_BYTES + index % self.layout.entries * self.layout.stride
