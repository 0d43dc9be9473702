"""Events that were delivered have to be acknowledged before what they are about is gone (man ibv_ack_cq_events,
ibv_ack_async_event)."""

from __future__ import annotations

import errno
import logging
import threading

from fauxrdma.errors import VerbsError

__all__ = ["EventAccount"]

log = logging.getLogger(__name__)

_PATIENCE_S = 2.0


class EventAccount:
    """Counts the events of one queue that were delivered and not acknowledged. `what` names the queue."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._changed = threading.Condition()
        self._unacked = 0

    @property
    def unacked(self) -> int:
        """Events delivered and not acknowledged."""
        return self._unacked

    def delivered(self) -> None:
        """One more event was got."""
        with self._changed:
            self._unacked += 1

    def acknowledge(self, count: int) -> None:
        """`count` events are done with. Raises VerbsError(EINVAL) for more than were delivered."""
        with self._changed:
            if not 0 <= count <= self._unacked:
                raise VerbsError(
                    errno.EINVAL,
                    f"Failed to acknowledge {count} events of {self._what}: {self._unacked} are unacknowledged",
                )
            self._unacked -= count
            self._changed.notify_all()

    def settle(self, patience_s: float = _PATIENCE_S) -> None:
        """Wait until every event is acknowledged, as libibverbs does when the queue is destroyed; a warning says what
        is missing when that takes long."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._unacked, patience_s):
                log.warning(
                    "destroying %s waits for %d events that were got and not acknowledged: call %s for each",
                    self._what, self._unacked, "CQ.ack_events or AsyncEvent.ack",
                )  # fmt: skip
                self._changed.wait_for(lambda: not self._unacked)
