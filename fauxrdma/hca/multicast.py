"""Which queue pairs of an HCA hear which multicast groups (IBTA vol. 1, 10.5).

A group has a GID, which the receiver goes by, and a LID, which the fabric forwards by. The HCA is a member of a LID as
long as any of its queue pairs is attached to a group with it.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MulticastTable"]


class MulticastTable:
    """Attachments of one HCA: queue pair to (GID, LID)."""

    def __init__(self) -> None:
        self._attached: dict[bytes, dict[int, set[int]]] = {}  # GID to queue pair to LIDs

    def attach(self, qpn: int, gid: bytes, lid: int) -> None:
        """Let a queue pair hear a group. Attaching again is harmless, as in Linux."""
        self._attached.setdefault(gid, {}).setdefault(qpn, set()).add(lid)

    def detach(self, qpn: int, gid: bytes, lid: int) -> bool:
        """Take it out again; False when it was not attached."""
        qps = self._attached.get(gid, {})
        lids = qps.get(qpn, set())
        if lid not in lids:
            return False
        lids.discard(lid)
        if not lids:
            del qps[qpn]
        if not qps:
            del self._attached[gid]
        return True

    def groups_of(self, qpn: int) -> list[tuple[bytes, int]]:
        """What a queue pair is attached to."""
        return [(gid, lid) for gid, qps in self._attached.items() for lid in sorted(qps.get(qpn, ()))]

    def queue_pairs(self, gid: bytes) -> Sequence[int]:
        """The queue pairs that hear the group, in the order in which they were attached."""
        return list(self._attached.get(gid, ()))

    def lids(self) -> set[int]:
        """The multicast LIDs of which the HCA is a member."""
        return {lid for qps in self._attached.values() for lids in qps.values() for lid in lids}

    @property
    def attachments(self) -> int:
        """Queue pairs attached, counted once for each group."""
        return sum(map(len, self._attached.values()))

    def __len__(self) -> int:
        """Groups with at least one queue pair."""
        return len(self._attached)
