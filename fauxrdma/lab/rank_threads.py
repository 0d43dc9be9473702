"""Ranks as threads of this process, for notebooks and tests: each with a communicator on an HCA of a running lab."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fauxrdma.communicator import Communicator
from fauxrdma.errors import ConfigError
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import Context

__all__ = ["ThreadStore", "run_on_ranks"]

T = TypeVar("T")
_RENDEZVOUS_TIMEOUT_S = 30.0


class ThreadStore:
    """What the ranks of one process tell each other when they connect; a rank waits `timeout_s` for another's word."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._ended = ""

    def end(self, reason: str) -> None:
        """Have nobody wait any more for what will not come."""
        with self._changed:
            self._ended = self._ended or reason
            self._changed.notify_all()

    def set(self, key: str, value: bytes) -> None:
        """As in a torch store."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """As in a torch store: waits."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or self._ended, self._timeout_s)
            if key not in self._values:
                raise TimeoutError(self._ended or f"{key} was never set")
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """As in a torch store."""
        with self._changed:
            return all(key in self._values for key in keys)


def run_on_ranks(lab: LocalLab, work: Callable[[Communicator], T], **options: Any) -> list[T]:
    """Call `work(communicator)` for every rank of `lab` at the same time, each in a thread; returns what each returned,
    by rank. `options` are Communicator's.

    When a rank raises, the others fail in the collective that they wait in; the first exception in time is raised once
    all have ended. Raises ConfigError in virtual time, which waits for processes, not for threads.
    """
    if lab.clock == "virtual":
        raise ConfigError(
            "ranks that are threads cannot run in virtual time, which goes on when a whole process waits: choose "
            "clock paced or none, or run a script with run()"
        )
    store = ThreadStore(_RENDEZVOUS_TIMEOUT_S)
    results: dict[int, T] = {}
    failures: list[BaseException] = []
    open_ones: dict[int, Communicator] = {}

    def run(rank: int) -> None:
        place = lab.placement.places[rank]
        try:
            with Context(f"hca{place.hca}", socket=str(lab.socket_path(place.node))) as context:
                given = {"gpu": place.gpu, **options}
                with Communicator(rank, lab.world_size, store, context=context, **given) as communicator:
                    open_ones[rank] = communicator
                    try:
                        results[rank] = work(communicator)
                    except BaseException as error:
                        failures.append(error)  # before the others have theirs, which follow from it
                        raise
                    finally:
                        del open_ones[rank]
        except BaseException as error:
            error.add_note(f"in rank {rank} (node {place.node}, GPU {place.gpu})")
            if error not in failures:
                failures.append(error)
            reason = f"rank {rank} failed: {error!r}"
            store.end(reason)
            for other in list(open_ones.values()):
                other.abort(reason)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(lab.world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(lab.world_size)]
