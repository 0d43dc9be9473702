"""The operations that are measured: how large their buffers are, where they lie in place, and how they are called.

A size stands, as in nccl-tests, for the larger side of an operation: its `count` is that of the whole buffer for
all_reduce, reduce, broadcast and sendrecv, and of one rank's block (rounded down) for the others. In place, what a rank
sends and receives share one buffer by NCCL's rules: the same place, or the block of the rank's number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.communicator import Communicator
from fauxrdma.perf.coll.element_types import REDUCTIONS, ElementType

__all__ = ["OPERATIONS", "Buffers", "Case", "Operation"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `send_blocks` and `receive_blocks` say which sides hold a block for every rank; `in_place_checked`
    is False where a result in place is not defined (sendrecv, as in nccl-tests)."""

    name: str
    reduces: bool = False
    rooted: bool = False
    send_blocks: bool = False
    receive_blocks: bool = False
    in_place_checked: bool = True

    @property
    def by_blocks(self) -> bool:
        """Whether a size is divided by the number of ranks."""
        return self.send_blocks or self.receive_blocks

    def count(self, nbytes: int, itemsize: int, world_size: int) -> int:
        """Elements that a call names for a size of `nbytes`: nccl-tests' `count` column."""
        whole = nbytes // itemsize
        return whole // world_size if self.by_blocks else whole

    def size(self, count: int, itemsize: int, world_size: int) -> int:
        """Bytes of the larger side: nccl-tests' `size` column."""
        return count * itemsize * (world_size if self.by_blocks else 1)


OPERATIONS = {
    one.name: one
    for one in (
        Operation("all_reduce", reduces=True),
        Operation("reduce", reduces=True, rooted=True),
        Operation("broadcast", rooted=True),
        Operation("all_gather", receive_blocks=True),
        Operation("reduce_scatter", reduces=True, send_blocks=True),
        Operation("all_to_all", send_blocks=True, receive_blocks=True),
        Operation("gather", rooted=True, receive_blocks=True),
        Operation("scatter", rooted=True, send_blocks=True),
        Operation("sendrecv", in_place_checked=False),
    )
}


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one rank passes: both views of one buffer when `in_place`."""

    send: Array
    receive: Array
    in_place: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One operation on one size, the same on all ranks. `reduction` is empty where nothing is reduced."""

    operation: Operation
    element: ElementType
    reduction: str
    root: int
    count: int
    world_size: int

    @property
    def size(self) -> int:
        """Bytes, as the table has them."""
        return self.operation.size(self.count, self.element.itemsize, self.world_size)

    @property
    def send_count(self) -> int:
        """Elements of what a rank sends."""
        return self.count * (self.world_size if self.operation.send_blocks else 1)

    @property
    def receive_count(self) -> int:
        """Elements of what a rank receives."""
        return self.count * (self.world_size if self.operation.receive_blocks else 1)

    def buffers(self, rank: int, in_place: bool) -> Buffers:
        """Buffers of rank `rank`, full of zeros."""
        dtype = self.element.dtype
        if not in_place:
            return Buffers(np.zeros(self.send_count, dtype), np.zeros(self.receive_count, dtype), False)
        whole = np.zeros(max(self.send_count, self.receive_count), dtype)
        own = rank * self.count
        send = whole[own : own + self.count] if self.send_count < self.receive_count else whole
        receive = whole[own : own + self.count] if self.receive_count < self.send_count else whole
        return Buffers(send, receive, True)

    def call(self, communicator: Communicator, buffers: Buffers) -> None:
        """Do it once. Raises what the communicator raises."""
        _CALLS[self.operation.name](communicator, buffers, self)


def _reducing(case: Case) -> dict[str, Any]:
    return {"op": REDUCTIONS[case.reduction], "arithmetic": case.element.arithmetic}


def _all_reduce(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    if not buffers.in_place:
        buffers.receive[...] = buffers.send  # the communicator works in place: the copy is part of the price
    communicator.all_reduce(buffers.receive, **_reducing(case))


def _reduce(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    array = buffers.send
    if communicator.rank == case.root and not buffers.in_place:
        array = buffers.receive
        array[...] = buffers.send
    communicator.reduce(array, case.root, **_reducing(case))


def _broadcast(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    if communicator.rank == case.root and not buffers.in_place:
        buffers.receive[...] = buffers.send
    communicator.broadcast(buffers.receive, case.root)


def _all_gather(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    communicator.all_gather(buffers.receive, buffers.send)


def _reduce_scatter(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    communicator.reduce_scatter(buffers.receive, buffers.send, **_reducing(case))


def _all_to_all(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    communicator.all_to_all(buffers.receive, buffers.send)


def _gather(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    output = buffers.receive if communicator.rank == case.root else None
    communicator.gather(output, buffers.send, case.root)


def _scatter(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    array = buffers.send if communicator.rank == case.root else None
    communicator.scatter(buffers.receive, array, case.root)


def _sendrecv(communicator: Communicator, buffers: Buffers, case: Case) -> None:
    n, rank = communicator.world_size, communicator.rank
    receiving = communicator.irecv(buffers.receive, (rank - 1) % n)
    communicator.send(buffers.send, (rank + 1) % n)
    receiving.wait()


_CALLS: dict[str, Callable[[Communicator, Buffers, Case], None]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "sendrecv": _sendrecv,
}
