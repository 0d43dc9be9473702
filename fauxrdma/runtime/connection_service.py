"""The communication manager of one HCA in its daemon: MADs through queue pair 1, one timer, programs by connection."""

from __future__ import annotations

import random
from collections.abc import Callable

from fauxrdma.cm import ConnectionManager, SendMad, Tell
from fauxrdma.runtime.fabric_clock import Clock
from fauxrdma.wire.headers import Frame

__all__ = ["ConnectionService"]

Owner = Callable[[Tell], None]


class ConnectionService:
    """`owners[number]` is told what happens to a connection, and to a listener's requests. `send(lid, mad)` sends,
    `later(ns, call)` calls back after a span of fabric time."""

    def __init__(
        self,
        clock: Clock,
        send: Callable[[int, bytes], None],
        later: Callable[[int, Callable[[], None]], None],
    ) -> None:
        self._clock = clock
        self._send = send
        self._later = later
        self.manager = ConnectionManager(random.SystemRandom())
        self.owners: dict[int, Owner] = {}
        self._armed_ns: int | None = None

    @property
    def now(self) -> int:
        """Fabric time in ns."""
        return self._clock.now_ns()

    def perform(self, out: list[SendMad | Tell]) -> None:
        """Carry out what the manager wants."""
        for action in out:
            if isinstance(action, SendMad):
                self._send(action.lid, action.message.encode())
            else:
                owner = self.owners.get(action.listener or action.number)
                if owner is not None:
                    owner(action)
        self._arm()

    def received(self, frame: Frame) -> None:
        """A management datagram is here."""
        out: list[SendMad | Tell] = []
        self.manager.receive(frame.slid, b"".join(frame.payload), self.now, out)
        self.perform(out)

    def _arm(self) -> None:
        deadline = self.manager.next_deadline_ns()
        if deadline is not None and (self._armed_ns is None or deadline < self._armed_ns):
            self._armed_ns = deadline
            self._later(max(0, deadline - self.now), lambda: self._due(deadline))

    def _due(self, deadline: int) -> None:
        if self._armed_ns == deadline:
            self._armed_ns = None
        out: list[SendMad | Tell] = []
        self.manager.on_timer(self.now, out)
        self.perform(out)
