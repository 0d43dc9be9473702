"""What the engine takes from a queue pair's rings, and the interface to those rings.

The engine pulls: it fetches a work request only when it can act on it. The runtime implements :class:`WorkSource` over
shared memory, tests over a deque.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fauxrdma.ib.enums import WcStatus

__all__ = ["RecvWqe", "SendWqe", "WorkList", "WorkSource"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Sge = tuple[int, int, int]
"""Address, length in bytes, lkey."""


@dataclass(slots=True)
class SendWqe:
    """A send work request in the engine. `index` counts the queue's requests from 0 and comes back in the completion.

    The lower half is the requester's: PSN range, what has been cut into frames (`sent`), what of a READ has come back
    (`received`), and `failure` once the request is doomed.
    """

    index: int
    wr_id: int
    opcode: int
    flags: int
    sges: tuple[Sge, ...] = ()
    remote_addr: int = 0
    rkey: int = 0
    imm: int = 0
    inline: bytes | None = None

    length: int = 0
    first_psn: int = 0
    last_psn: int = 0
    sent: int = 0
    cut: bool = False
    received: int = 0
    answered: bool = False
    checked: bool = False
    failure: WcStatus | None = None
    pieces: list[memoryview] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class RecvWqe:
    """A receive work request in the engine."""

    index: int
    wr_id: int
    sges: tuple[Sge, ...] = ()


class WorkSource(Protocol[T_co]):
    """A queue the application posts to and the engine takes from, in order."""

    def fetch(self) -> T_co | None:
        """The next request, or None when there is none yet."""

    def __len__(self) -> int:
        """Requests posted and not yet fetched."""


class WorkList(deque[T]):
    """A WorkSource in plain memory, for tests and the simulator."""

    def fetch(self) -> T | None:
        """The next request, or None."""
        return self.popleft() if self else None


def slice_pieces(pieces: list[memoryview], offset: int, nbytes: int) -> tuple[memoryview, ...]:
    """The views that cover `nbytes` from `offset` of a scatter/gather list; never a copy."""
    if nbytes == 0:
        return ()
    if len(pieces) == 1:
        return (pieces[0][offset : offset + nbytes],)
    out: list[memoryview] = []
    for piece in pieces:
        size = len(piece)
        if offset >= size:
            offset -= size
            continue
        take = min(size - offset, nbytes)
        out.append(piece[offset : offset + take])
        nbytes -= take
        offset = 0
        if nbytes == 0:
            break
    return tuple(out)
