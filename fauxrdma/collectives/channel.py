"""The staging slots between this rank and one peer, and who may use which.

Each direction of a pair has `slots` slots of `slot_bytes` bytes in the memory of the receiver (the **inbox**,
registered for remote writes) and as many in the memory of the sender (the **outbox**, registered for local reads).
Message number k, counted from the beginning of the connection, uses slot k modulo `slots` on both sides.

A sender may put message k when it holds a credit for it: k < slots + credits received. A receiver returns a credit when
it has consumed a message and no forward reads the slot any more, strictly in order. So a credit also means that the
sender's own slot is free again. Credits ride on data going the other way, or travel alone in batches.

Pure bookkeeping: no time, no sockets. Raises RemoteProtocolError when the peer breaks these rules.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["Channel"]


class Channel:
    """Both directions of the staging with one peer. `inbox` and `outbox` are uint8 arrays of slots x slot_bytes."""

    __slots__ = (
        "_calls",
        "_forwards",
        "_freed",
        "_holds",
        "_lengths",
        "_outbox",
        "_views",
        "arrived",
        "completed",
        "consumed",
        "credits_received",
        "credits_returned",
        "given_back",
        "inbox",
        "peer",
        "sent",
        "slot_bytes",
        "slots",
    )

    def __init__(self, peer: int, slots: int, slot_bytes: int, inbox: Array, outbox: Array) -> None:
        if slots < 1 or slot_bytes % 64 or slot_bytes < 64:
            raise LocalProtocolError(
                f"staging needs slots >= 1 of a multiple of 64 bytes, got {slots} of {slot_bytes} bytes"
            )
        if inbox.nbytes != slots * slot_bytes or outbox.nbytes != slots * slot_bytes:
            raise LocalProtocolError(
                f"staging of {slots} slots of {slot_bytes} bytes does not fit buffers of {inbox.nbytes} and "
                f"{outbox.nbytes} bytes"
            )
        self.peer = peer
        self.slots = slots
        self.slot_bytes = slot_bytes
        self.inbox = inbox
        self._outbox = outbox
        self.sent = 0
        """Messages put so far."""
        self.completed = 0
        """Messages whose put has completed locally."""
        self.credits_received = 0
        self.arrived = 0
        """Messages that have landed in the inbox."""
        self.consumed = 0
        """Messages that belong to plans which are done: the number of the next plan's message 0."""
        self.given_back = 0
        """Messages consumed and read by nobody any more, in order."""
        self.credits_returned = 0
        self._lengths = [0] * slots
        self._calls: list[int | None] = [None] * slots
        self._freed: set[int] = set()
        self._holds: dict[int, int] = {}
        self._forwards: deque[tuple[int, Channel, int]] = deque()
        self._views: dict[Any, tuple[list[Array], list[Array]]] = {}

    # The sending side.

    def may_put(self, number: int) -> bool:
        """Whether the credit for message `number` is here (then its outbox slot may be written, too)."""
        return number < self.slots + self.credits_received

    def credit(self, count: int) -> None:
        """The peer gave `count` slots back."""
        self.credits_received += count
        if self.credits_received > self.sent:
            raise RemoteProtocolError(
                f"rank {self.peer} returned {self.credits_received} staging slots, but only {self.sent} were used"
            )

    def forward(self, number: int, source: Channel, source_number: int) -> None:
        """Message `number` is put out of the inbox slot of `source`: hold that slot until the put completes."""
        source._holds[source_number] = source._holds.get(source_number, 0) + 1
        self._forwards.append((number, source, source_number))

    def put_completed(self, count: int) -> None:
        """The first `count` messages put have completed locally."""
        self.completed = max(self.completed, count)
        while self._forwards and self._forwards[0][0] < count:
            _, source, source_number = self._forwards.popleft()
            source.release(source_number)

    # The receiving side.

    def data(self, sequence: int, nbytes: int, call: int | None = None) -> None:
        """A message of `nbytes` has landed; `sequence` is its number, or the low 8 bits of it at least; `call` the
        signature of the call it belongs to, if its way carries one."""
        if (sequence ^ self.arrived) & 0xFF:
            raise RemoteProtocolError(
                f"rank {self.peer} sent message {sequence & 0xFF} where {self.arrived & 0xFF} was expected (modulo 256)"
            )
        if self.arrived - self.given_back >= self.slots:
            raise RemoteProtocolError(f"rank {self.peer} overran the {self.slots} staging slots it was given")
        self._lengths[self.arrived % self.slots] = nbytes
        self._calls[self.arrived % self.slots] = call
        self.arrived += 1

    def length(self, number: int) -> int:
        """Bytes of message `number`, which has arrived and is not given back."""
        return self._lengths[number % self.slots]

    def landed(self, number: int, nbytes: int) -> Array:
        """The first `nbytes` bytes of message `number` where they have landed."""
        start = number % self.slots * self.slot_bytes
        return self.inbox[start : start + nbytes]

    def call(self, number: int) -> int | None:
        """The signature of the call that message `number` belongs to; None where its way carries none."""
        return self._calls[number % self.slots]

    def release(self, number: int) -> None:
        """One reader of inbox message `number` is done: the plan (once), and each forward (when its put completes)."""
        holds = self._holds.pop(number, 0)
        if holds:
            if holds > 1:
                self._holds[number] = holds - 1
            return
        if number < self.given_back or number in self._freed:
            raise LocalProtocolError(f"message {number} from rank {self.peer} was released twice")
        self._freed.add(number)
        while self.given_back in self._freed:
            self._freed.remove(self.given_back)
            self.given_back += 1

    @property
    def credits_owed(self) -> int:
        """Slots given back that the peer has not been told about."""
        return self.given_back - self.credits_returned

    def take_credits(self, most: int) -> int:
        """Take up to `most` owed credits, to be sent to the peer now."""
        count = min(self.credits_owed, most)
        self.credits_returned += count
        return count

    # Memory.

    def slot_views(self, dtype: np.dtype[Any]) -> tuple[list[Array], list[Array]]:
        """The slots as arrays of `dtype`: (inbox slots, outbox slots), each as many whole elements as fit."""
        views = self._views.get(dtype)
        if views is None:
            views = self._views[dtype] = (self._cut(self.inbox, dtype), self._cut(self._outbox, dtype))
        return views

    def _cut(self, memory: Array, dtype: np.dtype[Any]) -> list[Array]:
        usable = self.slot_bytes // dtype.itemsize * dtype.itemsize
        starts = range(0, self.slots * self.slot_bytes, self.slot_bytes)
        return [memory[start : start + usable].view(dtype) for start in starts]
