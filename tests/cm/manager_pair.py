"""Two communication managers and the wire between them, in time of their own."""

from __future__ import annotations

import heapq
import random

from fauxrdma.cm import CmMessage, ConnectionManager, Kind, SendMad, State, Tell

__all__ = ["SERVICE", "Pair"]

SERVICE = 0x106 << 16 | 7471


class Pair:
    """Managers of LIDs 1 and 2 with a wire that does to each MAD what `fate` says: how many copies arrive, how late."""

    def __init__(self, seed: int = 1, fate: object = None) -> None:
        self.rng = random.Random(seed)
        self.managers = {lid: ConnectionManager(random.Random(f"{seed}/{lid}")) for lid in (1, 2)}
        self.told: dict[int, list[Tell]] = {1: [], 2: []}
        self.sent: list[tuple[int, Kind]] = []
        self.wire: list[tuple[int, int, int, int, bytes]] = []
        self.now = 0
        self.fate = fate or (lambda: [1000])
        self.dead: set[int] = set()

    def perform(self, lid: int, out: list[SendMad | Tell]) -> None:
        for action in out:
            if isinstance(action, Tell):
                self.told[lid].append(action)
                continue
            self.sent.append((lid, action.message.kind))
            for delay in self.fate():  # type: ignore[operator]
                entry = (self.now + delay, self.rng.getrandbits(32), lid, action.lid, action.message.encode())
                heapq.heappush(self.wire, entry)

    def do(self, lid: int, call: str, *arguments: object) -> object:
        out: list[SendMad | Tell] = []
        result = getattr(self.managers[lid], call)(*arguments, out)
        self.perform(lid, out)
        return result

    def run(self, until_ns: int | None = None) -> None:
        """Until nothing is left to happen, or a time."""
        while True:
            deadlines = [(d, lid) for lid, m in self.managers.items() if (d := m.next_deadline_ns()) is not None]
            if not deadlines and not self.wire:
                return
            at = min([d for d, _ in deadlines] + [entry[0] for entry in self.wire[:1]])
            if until_ns is not None and at > until_ns:
                self.now = until_ns
                return
            self.now = max(self.now, at)
            if self.wire and self.wire[0][0] <= self.now:
                _, _, source, target, mad = heapq.heappop(self.wire)
                if target not in self.dead:
                    out: list[SendMad | Tell] = []
                    self.managers[target].receive(source, mad, self.now, out)
                    self.perform(target, out)
                continue
            for _, lid in deadlines:
                if lid not in self.dead:
                    self.do(lid, "on_timer", self.now)
                else:
                    for connection in self.managers[lid].connections.values():
                        connection.deadline_ns = None

    def whats(self, lid: int) -> list[str]:
        return [tell.what for tell in self.told[lid]]

    # steps

    def connect(self, kind: Kind = Kind.REQ, private: bytes = b"hello", qpn: int = 17) -> int:
        request = CmMessage(kind, service_id=SERVICE, qpn=qpn, psn=99, private=private)
        return self.do(1, "connect", 2, request, self.now)  # type: ignore[return-value]

    def requested(self) -> int:
        return next(tell.number for tell in self.told[2] if tell.what == "request")

    def established(self, qpns: tuple[int, int] = (17, 18)) -> tuple[int, int]:
        """Both numbers of a new connection between these queue pairs."""
        if not self.managers[2].taken(SERVICE):
            self.managers[2].listen(SERVICE, 4)
        mine = self.connect(qpn=qpns[0])
        self.run(self.now + 5000)
        his = next(tell.number for tell in reversed(self.told[2]) if tell.what == "request")
        self.do(2, "accept", his, CmMessage(Kind.REP, qpn=qpns[1], psn=77, private=b"welcome"), self.now)
        self.run(self.now + 5000)
        self.do(1, "establish", mine, self.now)
        self.run(self.now + 5000)
        return mine, his

    def state(self, lid: int, number: int) -> State | None:
        connection = self.managers[lid].connections.get(number)
        return None if connection is None else connection.state
