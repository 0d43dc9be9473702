"""Staging between two ranks of one node, in memory that both map: no socket, no daemon, no copy in between.

The receiver makes an **inbox** in a memfd; the sender opens it through ``/proc/<pid>/fd/<n>`` and writes its messages
straight into the slots. A header of 8-byte words, each written by one side only, says how far both are::

    word 0      magic and layout version
    word 1      messages put so far (sender)
    word 2      credits given back so far (receiver)
    word 3      1 when the sender has left (sender)
    words 8..   for each slot: bytes of its message, fabric time in ns at which it was put, signature of the
                call it belongs to (sender)
    at the end  why the sender has left: UTF-8, padded with zeros (sender)

A word is stored by one aligned 8-byte move, so the other side sees the old or the new value. What a word announces is
written before it; `fence` keeps processors that reorder stores from turning that round.
"""

from __future__ import annotations

import mmap
import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fauxrdma.errors import RemoteProtocolError

__all__ = ["SharedInbox", "fence", "open_descriptor_of"]

_MAGIC = 0xFA05_1B0C_0000_0001
_PUT, _CREDITS, _SENDER_LEFT, _SLOTS = 1, 2, 3, 8
_PAGE = 4096
_REASON_BYTES = 2048

_lock = threading.Lock()


def fence() -> None:
    """Everything stored before is visible before anything stored or loaded after: taking a lock is a full barrier."""
    _lock.acquire()
    _lock.release()


def open_descriptor_of(pid: int, fd: int, flags: int) -> int:
    """A descriptor of ours for descriptor `fd` of process `pid` of the same user. Raises OSError if that may not be."""
    return os.open(f"/proc/{pid}/fd/{fd}", flags | os.O_CLOEXEC)


class SharedInbox:
    """One direction of the staging between two ranks: `slots` slots of `slot_bytes` bytes.

    `memory` is a uint8 array of all slots. The receiver makes one with `create`, the sender opens it with `attach`.
    """

    def __init__(self, fd: int, slots: int, slot_bytes: int, *, fresh: bool) -> None:
        self.fd = fd
        header = -(-(8 * (_SLOTS + 3 * slots) + _REASON_BYTES) // _PAGE) * _PAGE
        length = header + slots * slot_bytes
        try:
            if fresh:
                os.ftruncate(fd, length)
            elif os.fstat(fd).st_size != length:
                raise RemoteProtocolError(f"an inbox of {os.fstat(fd).st_size} bytes where {length} were agreed")
            self._map = mmap.mmap(fd, length)
        except BaseException:
            os.close(fd)
            raise
        self._words = memoryview(self._map)[:header].cast("Q")
        self._reason = memoryview(self._map)[header - _REASON_BYTES : header]
        self._slots = slots
        self.memory: NDArray[Any] = np.frombuffer(self._map, np.uint8, slots * slot_bytes, header)
        if fresh:
            self._words[0] = _MAGIC
        elif self._words[0] != _MAGIC:
            self.close()
            raise RemoteProtocolError("what the peer gave is no inbox of this version of fauxrdma")

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> SharedInbox:
        """An empty inbox. Its memory is taken as it is first written."""
        return cls(os.memfd_create("fauxrdma-inbox", os.MFD_CLOEXEC), slots, slot_bytes, fresh=True)

    @classmethod
    def attach(cls, pid: int, fd: int, slots: int, slot_bytes: int) -> SharedInbox:
        """The inbox that process `pid` holds as descriptor `fd`. Raises OSError when the system does not allow it,
        RemoteProtocolError when it is something else."""
        return cls(open_descriptor_of(pid, fd, os.O_RDWR), slots, slot_bytes, fresh=False)

    # The sender's side.

    def announce(self, number: int, nbytes: int, put_ns: int, call: int) -> None:
        """Message `number` of the call with signature `call`, whose bytes are in its slot, was put at fabric time
        `put_ns`."""
        words = self._words
        at = _SLOTS + 3 * (number % self._slots)
        words[at] = nbytes
        words[at + 1] = put_ns
        words[at + 2] = call
        fence()
        words[_PUT] = number + 1

    def leave(self, reason: str = "") -> None:
        """Nothing more is sent, because of `reason`."""
        text = reason.encode()[:_REASON_BYTES]
        self._reason[: len(text)] = text
        fence()
        self._words[_SENDER_LEFT] = 1

    @property
    def credits(self) -> int:
        """Credits given back since the beginning."""
        return self._words[_CREDITS]

    # The receiver's side.

    @property
    def put(self) -> int:
        """Messages put since the beginning."""
        return self._words[_PUT]

    def message(self, number: int) -> tuple[int, int, int]:
        """(bytes, fabric ns of the put, signature of the call) of message `number`, which is not yet given back."""
        at = _SLOTS + 3 * (number % self._slots)
        return self._words[at], self._words[at + 1], self._words[at + 2]

    def give_back(self, count: int) -> None:
        """Return `count` credits."""
        fence()
        self._words[_CREDITS] += count

    @property
    def sender_left(self) -> bool:
        """Whether the sender has left: what is put by then is all there will be."""
        return bool(self._words[_SENDER_LEFT])

    @property
    def reason(self) -> str:
        """Why it has left, "" if it just closed."""
        return self._reason.tobytes().rstrip(b"\0").decode(errors="ignore")

    # Both.

    def close(self) -> None:
        """Unmap it, unless arrays still look into it (then when those are gone). Idempotent."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        self.memory = np.empty(0, np.uint8)
        self._words.release()
        self._reason.release()
        try:
            self._map.close()
        except BufferError:
            pass
