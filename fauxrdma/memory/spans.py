"""Memory of another process, in the shape of a memoryview.

A region over shared memory is a memoryview: the kernel receives into it and sends from it. A region over an existing
buffer of an application cannot be mapped by the daemon; it is reached with `process_vm_readv` and `process_vm_writev`
(one system call and one copy for each access; the target process takes no part and may even be stopped). A
:class:`ProcessSpan` names such bytes. It is sliced like a memoryview, so that scatter/gather lists and multi-frame
messages need not know the difference; where bytes really move, :func:`load` and :func:`set_aside` stand between.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import cast

from fauxrdma.memory.shared import address_of

__all__ = ["Piece", "ProcessMemory", "ProcessSpan", "Unreachable", "load", "set_aside", "store"]

_LONGEST_CALL = 0x7FFFF000
"""One call moves at most this many bytes (MAX_RW_COUNT)."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
for _call in (_libc.process_vm_readv, _libc.process_vm_writev):
    _call.restype = ctypes.c_ssize_t
    _call.argtypes = (
        ctypes.c_int, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.POINTER(_IoVec), ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip


class Unreachable(Exception):
    """The bytes of a span cannot be reached: the process is gone, unmapped them, forbids it, or deregistered them."""


class ProcessMemory:
    """The right to reach memory of process `pid`. Once `revoked`, no span of it moves another byte."""

    __slots__ = ("pid", "revoked")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.revoked = False

    def read(self, address: int, into: memoryview) -> None:
        """Fill `into` from `address`. Raises Unreachable."""
        self._move(_libc.process_vm_readv, address, into, "read")

    def write(self, address: int, data: memoryview) -> None:
        """Store the bytes of a writable view at `address`. Raises Unreachable; part may have been written then."""
        self._move(_libc.process_vm_writev, address, data, "written")

    def _move(self, call: ctypes._NamedFuncPointer, address: int, view: memoryview, word: str) -> None:
        if self.revoked:
            raise Unreachable("its region was deregistered")
        here, left = address_of(view), len(view)
        while left:
            count = min(left, _LONGEST_CALL)
            moved: int = call(self.pid, _IoVec(here, count), 1, _IoVec(address, count), 1, 0)
            if moved <= 0:
                reason = os.strerror(ctypes.get_errno()) if moved < 0 else "nothing moved"
                raise Unreachable(f"{left} B at 0x{address:x} of process {self.pid} cannot be {word}: {reason}")
            here, address, left = here + moved, address + moved, left - moved


class ProcessSpan:
    """`length` bytes at `address` in the memory of another process. Slices name bytes; nothing is copied by them.

    `obj` is the memory it belongs to, as a memoryview's is the object it was made of. Assigning to a slice and
    `bytes()` move the bytes and may raise Unreachable.
    """

    __slots__ = ("address", "length", "obj")

    def __init__(self, memory: ProcessMemory, address: int, length: int) -> None:
        self.obj = memory
        self.address = address
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: slice) -> ProcessSpan:
        start, stop, _ = key.indices(self.length)
        return ProcessSpan(self.obj, self.address + start, max(0, stop - start))

    def __setitem__(self, key: slice, data: bytes | bytearray | memoryview) -> None:
        part = self[key]
        if len(data) != part.length:
            raise ValueError(f"{len(data)} B do not fill a span of {part.length} B")
        if part.length:
            self.obj.write(part.address, memoryview(bytearray(data)))

    def __bytes__(self) -> bytes:
        return bytes(self.read())

    def read(self) -> memoryview:
        """A copy of the bytes. Raises Unreachable."""
        data = memoryview(bytearray(self.length))
        if self.length:
            self.obj.read(self.address, data)
        return data

    def write(self, data: memoryview) -> None:
        """Store a writable view of the same length. Raises Unreachable."""
        self.obj.write(self.address, data)


Piece = memoryview | ProcessSpan
"""A contiguous part of a registered region."""


def load(pieces: tuple[Piece, ...]) -> tuple[memoryview, ...]:
    """What to put on the wire for these pieces: views as they are, a copy of what another process holds.

    Raises Unreachable.
    """
    for piece in pieces:
        if type(piece) is not memoryview:
            break
    else:
        return cast("tuple[memoryview, ...]", pieces)
    return tuple(piece.read() if isinstance(piece, ProcessSpan) else piece for piece in pieces)


def set_aside(pieces: Sequence[Piece]) -> tuple[tuple[memoryview, ...], list[tuple[ProcessSpan, memoryview]]]:
    """Where to receive for these pieces: views as they are, scratch memory for what another process holds; and the
    scratch memory paired with the span it has to be written to once it is full."""
    views: list[memoryview] = []
    aside: list[tuple[ProcessSpan, memoryview]] = []
    for piece in pieces:
        if isinstance(piece, ProcessSpan):
            scratch = memoryview(bytearray(len(piece)))
            aside.append((piece, scratch))
            views.append(scratch)
        else:
            views.append(piece)
    return tuple(views), aside


def store(aside: Sequence[tuple[ProcessSpan, memoryview]]) -> None:
    """Write scratch memory that is full to where it belongs. Raises Unreachable."""
    for span, scratch in aside:
        span.write(scratch)
