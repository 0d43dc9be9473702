"""`torch.distributed` over emulated HCAs: a ProcessGroup in Python, one communicator and one thread per group.

Methods carry torch's names, old and new, because torch finds them by name: from Python, and from C++ (the DDP reducer,
functional collectives, compiled graphs) through its override tables.
"""

from __future__ import annotations

import atexit
import os
import weakref
from datetime import timedelta
from typing import Any

from fauxrdma.communicator import process_statistics
from fauxrdma.errors import CollectiveError, SetupError
from fauxrdma.torch.collective_calls import CollectiveCalls
from fauxrdma.torch.monitored_barrier import monitored_barrier
from fauxrdma.torch.point_to_point_calls import PointToPointCalls

__all__ = ["FauxrdmaProcessGroup", "create_process_group"]

SHUTDOWN_S = 30.0
"""How long `shutdown` waits for collectives under way, in wall time."""

_groups: weakref.WeakSet[FauxrdmaProcessGroup] = weakref.WeakSet()


def create_process_group(options: Any) -> FauxrdmaProcessGroup:
    """The group torch asks for. `options` carries store, group_rank, group_size, timeout and group_id.

    Raises SetupError when this process was not started next to an HCA daemon.
    """
    if not os.environ.get("FAUXRDMA_SOCKET"):
        raise SetupError(
            'init_process_group("fauxrdma") found no HCA daemon: FAUXRDMA_SOCKET is not set; start the script with '
            "`fauxrdma run FABRIC -- script.py` or `fauxrdma compare FABRIC FABRIC -- script.py`"
        )
    store = options.store
    # A blocking get of the communication thread must not lock the connection that the caller's thread uses.
    if hasattr(store, "clone"):
        store = store.clone()
        store.set_timeout(options.timeout)  # for peers that never connect
    return FauxrdmaProcessGroup(store, options.group_rank, options.group_size, options.timeout)


class FauxrdmaProcessGroup(CollectiveCalls, PointToPointCalls):
    """A process group whose collectives run over queue pairs, in call order, on a thread of its own.

    `timeout` bounds each collective (wall time). Collectives raise CollectiveError through `Work.wait`; then the group
    is broken and only `destroy_process_group` is left.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout)
        self._store = store
        self._barriers = 0
        self._name = ""
        self._description = ""
        _groups.add(self)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False, **_: Any) -> None:
        """Return when every rank has called it; else raise CollectiveError that names the first rank missing, or all
        with `wait_all_ranks`."""
        self._barriers += 1
        seconds = (timeout or self._timeout).total_seconds()
        prefix = f"fauxrdma/barrier{self._barriers}"
        monitored_barrier(self._store, prefix, self.rank(), self.size(), seconds, wait_all_ranks=wait_all_ranks)

    # About the group.

    def getBackendName(self) -> str:
        """The name DDP's logger and `get_backend` show."""
        return "fauxrdma"

    # The C++ base keeps name and description in its inner backends, of which this group has none.

    def getGroupName(self) -> str:
        """The name torch registers the group under."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch once the group exists."""
        self._name = name

    def getGroupDesc(self) -> str:
        """The description given to `new_group`."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Called by torch once the group exists."""
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of collectives started from now on."""
        self._timeout = timeout

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    # The end.

    def shutdown(self) -> None:
        """Finish what is under way, then close the communicator and write the statistics. Idempotent."""
        if self._thread.stop(SHUTDOWN_S):
            self._communicator.close()
        process_statistics().write_where_asked()

    def abort(self) -> None:
        """End without waiting for what is under way: it fails, here and at the peers."""
        self._communicator.abort("the process group was aborted")
        if self._thread.stop(2.0):
            self._communicator.close()


def _close_all() -> None:
    """At exit: a script that never called destroy_process_group still leaves nothing behind."""
    for group in list(_groups):
        try:
            group.shutdown()
        except CollectiveError:
            continue


atexit.register(_close_all)
