"""What the responders of an HCA hold together: room for the READs and atomics of all its queue pairs."""

from __future__ import annotations

import errno

from fauxrdma.errors import VerbsError

__all__ = ["ResponderResources"]


class ResponderResources:
    """Counts `max_dest_rd_atomic` of the queue pairs against the device's `max_res_rd_atom` (IBTA vol. 1, 11.2.1.2)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[int, int] = {}  # by queue pair
        self._total = 0

    def reserve(self, qpn: int, count: int) -> None:
        """Queue pair `qpn` wants room for `count`, instead of what it has. Raises VerbsError(ENOMEM) when there is not
        that much left."""
        total = self._total - self._held.get(qpn, 0) + count
        if total > self._limit:
            raise VerbsError(
                errno.ENOMEM,
                f"Failed to modify QP: max_dest_rd_atomic {count} and the {total - count} of the other queue pairs "
                f"exceed the device's max_res_rd_atom {self._limit}",
            )
        self._held[qpn] = count
        self._total = total

    def release(self, qpn: int) -> None:
        """Queue pair `qpn` needs none any more."""
        self._total -= self._held.pop(qpn, 0)
