"""One collective under way, as torch sees it, and the thread that drives a group's collectives one after another."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from fauxrdma.errors import CollectiveError
from fauxrdma.torch.profiling import begin_event

__all__ = ["CommunicationThread", "FauxrdmaWork"]

if TYPE_CHECKING:

    class _Work:
        """torch's stubs differ from version to version and from its C++; this is all that is used of the base."""

else:
    from torch._C._distributed_c10d import Work as _Work  # not every torch has it as torch.distributed.Work

Tensors = list[torch.Tensor] | list[list[torch.Tensor]]

_completion_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _pool() -> ThreadPoolExecutor:
    """Threads that complete futures: their callbacks may issue collectives and wait, which a communication thread must
    never do for itself."""
    global _completion_pool
    with _pool_lock:
        if _completion_pool is None:
            _completion_pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="fauxrdma-future")
        return _completion_pool


class FauxrdmaWork(_Work):
    """Handle of one collective. `wait` blocks until it is done and raises what it raised."""

    def __init__(self, name: str, result: Tensors, source_rank: int = -1) -> None:
        super().__init__()
        self._name = name
        self._result = result
        self._source = source_rank
        self._finished = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._trigger: Any = None
        self._future: Any = None
        self._end_event = begin_event(name)

    def finish(self, error: BaseException | None, source_rank: int | None = None) -> None:
        """The operation has ended, with `error` or well; `source_rank` is where it came from, if that is known only
        now. Called once."""
        if self._end_event is not None:
            self._end_event()
        with self._lock:
            self._error = error
            if source_rank is not None:
                self._source = source_rank
            self._finished.set()
            trigger = self._trigger
        if trigger is not None:
            _pool().submit(trigger.set_result, None)

    def _outcome(self, _: Any) -> Tensors:
        if self._error is not None:
            raise self._error
        return self._result

    # What torch calls; names and meanings are those of torch.distributed.Work.

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until done. A positive `timeout` shorter than the group's raises CollectiveError when it passes."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        if not self._finished.wait(seconds if seconds > 0 else None):
            raise CollectiveError(f"{self._name} not done after waiting {seconds:g} s; it goes on in the background")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as wait()."""
        self.wait()

    def get_future(self) -> Any:
        """A torch future of the result tensors; completed on a thread of its own, where callbacks may block."""
        with self._lock:
            if self._future is None:
                # Python's Future.set_exception is invisible to C++ (DDP would take the exception for the result); an
                # exception out of a `then` callback is not.
                self._trigger = torch.futures.Future()
                self._future = self._trigger.then(self._outcome)
                if self._finished.is_set():  # nobody has the future yet, so no callback can run here
                    self._trigger.set_result(None)
            return self._future

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._finished.is_set()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._finished.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """What it raised, if it has ended badly."""
        return self._error

    def result(self) -> Tensors:
        """The tensors the collective wrote."""
        return self._result

    def source_rank(self) -> int:
        """The root of a broadcast, the sender of what was received; -1 for operations without one."""
        return self._source

    _source_rank = source_rank


class CommunicationThread:
    """Runs the jobs of one group in the order they were given.

    A synchronous job finds nothing ahead of it most of the time; then the caller's own thread runs it, which saves two
    thread switches. The order stays that of the calls.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], None], FauxrdmaWork] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._stopped = False
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None], work: FauxrdmaWork, *, synchronous: bool) -> None:
        """Run `job` after all earlier ones and finish `work` with its outcome. Raises CollectiveError after `stop`."""
        with self._lock:
            if self._stopped:
                raise CollectiveError("this process group has been shut down")
            # Taking the turn under the lock keeps the order: nobody can be queued between the check and the turn.
            inline = synchronous and self._pending == 0 and self._turn.acquire(blocking=False)
            self._pending += 1
            if not inline:
                self._jobs.put((job, work))
        if inline:
            try:
                self._run(job, work)
            finally:
                self._turn.release()

    def _run(self, job: Callable[[], None], work: FauxrdmaWork) -> None:
        error: BaseException | None = None
        try:
            job()
        except BaseException as caught:
            error = caught
        with self._lock:
            self._pending -= 1
        work.finish(error)

    def _loop(self) -> None:
        while True:
            entry = self._jobs.get()
            if entry is None:
                return
            with self._turn:
                self._run(*entry)

    def stop(self, timeout_s: float) -> bool:
        """Accept nothing more, finish what was given, end the thread; False when it has not within `timeout_s`."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                self._jobs.put(None)
        if threading.current_thread() is self._thread:
            return False
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        # An inline job of another thread may still be at it.
        got = self._turn.acquire(timeout=timeout_s)
        if got:
            self._turn.release()
        return got
