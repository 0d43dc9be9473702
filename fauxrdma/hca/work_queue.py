"""What the engine takes from a queue pair's rings, and the interface to those rings.

The engine pulls: it fetches a work request only when it can act on it. The runtime implements :class:`WorkSource` over
shared memory, tests over a deque.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fauxrdma.ib.enums import WcStatus, WrOpcode
from fauxrdma.memory.spans import Piece

__all__ = ["LoneWrite", "RecvWqe", "SendList", "SendSource", "SendWqe", "WorkList", "WorkSource"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Sge = tuple[int, int, int]
"""Address, length in bytes, lkey."""


@dataclass(slots=True)
class SendWqe:
    """A send work request in the engine. `index` counts the queue's requests from 0 and comes back in the completion.

    The lower half is the requester's: PSN range, what has been cut into frames (`sent`), what of a READ has come back
    (`received`), and `failure` once the request is doomed. `begun`: something of it has been sent; `executed`: it is a
    local operation and done.
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
    begun: bool = False
    executed: bool = False
    failure: WcStatus | None = None
    pieces: list[Piece] = field(default_factory=list, repr=False)

    # What only some operations use, as in the send request of the ABI (abi/layout.py).
    compare_add: int = 0
    swap: int = 0
    handle: int = 0


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


LoneWrite = tuple[int, int, int, int, int, bytes | Sge]
"""Index, wr_id, flags, remote_addr, rkey, inline data or SGE."""


class SendSource(WorkSource[SendWqe], Protocol):
    """A queue of send requests."""

    def peek_lone_write(self, limit: int, /) -> LoneWrite | None:
        """The request that waits, if it waits alone and is a plain RDMA WRITE of at most `limit` bytes, inline or from
        one SGE; None else. It stays until `advance`."""

    def advance(self, index: int, /) -> None:
        """Every request below `index` has been taken."""


class WorkList(deque[T]):
    """A WorkSource in plain memory, for tests and the simulator."""

    def fetch(self) -> T | None:
        """The next request, or None."""
        return self.popleft() if self else None


class SendList(WorkList[SendWqe]):
    """A SendSource in plain memory."""

    def peek_lone_write(self, limit: int, /) -> LoneWrite | None:
        """As in SendSource."""
        if len(self) != 1 or self[0].opcode != WrOpcode.IBV_WR_RDMA_WRITE:
            return None
        wqe = self[0]
        if wqe.inline is not None:
            source: bytes | Sge = wqe.inline
            length = len(wqe.inline)
        elif len(wqe.sges) == 1 and wqe.sges[0][1]:
            source = wqe.sges[0]
            length = source[1]
        else:
            return None
        return (wqe.index, wqe.wr_id, wqe.flags, wqe.remote_addr, wqe.rkey, source) if length <= limit else None

    def advance(self, index: int, /) -> None:
        """As in SendSource."""
        while self and self[0].index < index:
            self.popleft()


def slice_pieces(pieces: list[Piece], offset: int, nbytes: int) -> tuple[Piece, ...]:
    """The views that cover `nbytes` from `offset` of a scatter/gather list; never a copy."""
    if nbytes == 0:
        return ()
    if len(pieces) == 1:
        return (pieces[0][offset : offset + nbytes],)
    out: list[Piece] = []
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
