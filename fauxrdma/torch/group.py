"""One process group's machinery: its communicator, the thread that drives it, and how a call becomes a Work.

What torch calls by name is added by collective_calls.py and point_to_point_calls.py; process_group.py puts it together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from fauxrdma.communicator import Communicator, process_statistics
from fauxrdma.torch.work import CommunicationThread, FauxrdmaWork, Tensors

__all__ = ["Group", "scatter_back"]

if TYPE_CHECKING:

    class _ProcessGroup:
        """torch's stubs differ from version to version and from its C++; this is all that is used of the base."""

        def __init__(self, rank: int, size: int) -> None: ...

        def rank(self) -> int: ...

        def size(self) -> int: ...

else:
    _ProcessGroup = dist.ProcessGroup


class Group(_ProcessGroup):
    """Rank `rank` of `size`. `timeout` bounds each collective (wall time)."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._timeout = timeout
        self._sequence = 0
        self._started: list[FauxrdmaWork] | None = None
        self._communicator = Communicator(
            rank, size, store, timeout_s=timeout.total_seconds(), statistics=process_statistics()
        )
        self._thread = CommunicationThread(f"fauxrdma-rank{rank}")

    def _limit_s(self, opts: Any) -> float:
        """The seconds a call may take: those of its options, where -1 ms stands for the group's."""
        timeout = getattr(opts, "timeout", None)
        seconds = timeout.total_seconds() if timeout is not None else -1.0
        return seconds if seconds > 0 else self._timeout.total_seconds()

    def _start(
        self,
        name: str,
        job: Callable[[Communicator], None],
        result: Tensors,
        opts: Any = None,
        source_rank: int = -1,
    ) -> FauxrdmaWork:
        """Run `job` after all earlier ones; at once, on this thread, if the call is synchronous and none is ahead."""
        limit = self._limit_s(opts)
        communicator = self._communicator
        work = FauxrdmaWork(name, result, source_rank)

        def run() -> None:
            communicator.timeout_s = limit
            job(communicator)

        self._sequence += 1
        self._thread.submit(run, work, synchronous=not getattr(opts, "asyncOp", True))
        return self._remember(work)

    def _remember(self, work: FauxrdmaWork) -> FauxrdmaWork:
        """`work`, which belongs to the coalesced call if one is being made."""
        if self._started is not None:
            self._started.append(work)
        return work

    # torch's coalescing manager for calls without a coalesced form: one handle for several.

    def _start_coalescing(self, device: Any = None) -> None:
        self._started = []

    def _end_coalescing(self, device: Any = None) -> FauxrdmaWork:
        works, self._started = self._started or [], None

        def wait_for_all(communicator: Communicator) -> None:
            for work in works:
                work.wait()

        return self._start("coalesced", wait_for_all, [])


def scatter_back(whole: Any, arrays: Sequence[Any]) -> None:
    """Copy consecutive parts of `whole` into `arrays`, whatever their strides."""
    start = 0
    for array in arrays:
        array[...] = whole[start : start + array.size].reshape(array.shape)
        start += array.size
