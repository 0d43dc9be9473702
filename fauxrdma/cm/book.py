"""The connections of one HCA, and how they are found: by number, by the peer's number or queue pair, by time.

Every look-up is by a dictionary or a heap: what a message or a deadline costs does not grow with the connections.
"""

from __future__ import annotations

import heapq
import random

from fauxrdma.cm.connection import Connection, State
from fauxrdma.cm.messages import Kind

__all__ = ["ConnectionBook"]


class ConnectionBook:
    """`rng` makes the numbers of connections, which must not be guessable."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.connections: dict[int, Connection] = {}
        self._by_peer: dict[tuple[int, int, bool], Connection] = {}  # passive ones: LID, their number, datagram
        self._by_qpn: dict[tuple[int, int], Connection] = {}  # LID, their queue pair
        self._deadlines: list[tuple[int, int]] = []  # a heap of (deadline, number); those that do not hold are dropped

    def __len__(self) -> int:
        return len(self.connections)

    def number(self, *taken: dict[int, int]) -> int:
        """One that neither a connection nor what is in `taken` has."""
        while True:
            number = self._rng.randrange(1, 1 << 32)
            if number not in self.connections and not any(number in other for other in taken):
                return number

    def transaction(self) -> int:
        """A transaction ID, 64 bits."""
        return self._rng.getrandbits(64)

    def add(self, connection: Connection) -> None:
        """A connection begins; one that was asked for by the peer is found by the peer's number, too."""
        self.connections[connection.number] = connection
        if connection.listener:
            self._by_peer[self._peer_key(connection)] = connection

    def remove(self, connection: Connection) -> None:
        """It is forgotten."""
        del self.connections[connection.number]
        self.part_from_queue_pair(connection)
        connection.deadline_ns = None
        if connection.listener:
            self._by_peer.pop(self._peer_key(connection), None)

    def asked_by(self, lid: int, number: int, datagram: bool) -> Connection | None:
        """The one that a peer asked for under this number of its own."""
        return self._by_peer.get((lid, number, datagram))

    # ---- the peer's queue pairs (IBTA 12.9.8.3.1) ----------------------------------------------------------------

    def with_queue_pair(self, lid: int, qpn: int) -> Connection | None:
        """The one that is believed to be with this queue pair of that HCA. Of number 0, which stands for "none given",
        there is none."""
        return self._by_qpn.get((lid, qpn)) if qpn else None

    def meet_queue_pair(self, connection: Connection, qpn: int) -> None:
        """It is with this queue pair of its peer, until `part_from_queue_pair`."""
        if qpn:
            connection.peer_qpn = qpn
            self._by_qpn[connection.lid, qpn] = connection

    def part_from_queue_pair(self, connection: Connection) -> None:
        """Its peer's queue pair may be connected anew."""
        key = connection.lid, connection.peer_qpn
        if self._by_qpn.get(key) is connection:
            del self._by_qpn[key]

    # ---- time ----------------------------------------------------------------------------------------------------

    def wake_at(self, connection: Connection, deadline_ns: int) -> None:
        """It is due then, and no more at another time."""
        connection.deadline_ns = deadline_ns
        heapq.heappush(self._deadlines, (deadline_ns, connection.number))

    def next_deadline_ns(self) -> int | None:
        """The first time at which one is due."""
        while self._deadlines:
            deadline, number = self._deadlines[0]
            connection = self.connections.get(number)
            if connection is not None and connection.deadline_ns == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def due(self, now: int) -> list[Connection]:
        """Those that are due by now, the first one first; each is returned once."""
        found = []
        while (deadline := self.next_deadline_ns()) is not None and deadline <= now:
            connection = self.connections[heapq.heappop(self._deadlines)[1]]
            connection.deadline_ns = None
            found.append(connection)
        return found

    def sizes(self) -> dict[str, int]:
        """How much is held, by what: for tests, and to see a leak."""
        states = [connection.state for connection in self.connections.values()]
        return {
            "connections": len(states),
            "in_timewait": states.count(State.TIMEWAIT),
            "by_peer": len(self._by_peer),
            "by_queue_pair": len(self._by_qpn),
            "deadlines": len(self._deadlines),
        }

    def _peer_key(self, connection: Connection) -> tuple[int, int, bool]:
        # The number that it was asked for under, which never changes.
        return connection.lid, connection.request.local_id, connection.request.kind == Kind.SIDR_REQ
