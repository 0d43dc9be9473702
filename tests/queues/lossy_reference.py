"""Packets of several senders into one queue that drops what does not fit, made good by go-back-N: a referee.

Senders leave gaps of random length between packets, as clocks and hosts do; in perfect step they would drop always the
same one's. Bytes are payload, times ns.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

__all__ = ["Lossy"]

PACKET = 4096


@dataclass(eq=False)
class Sender:
    """`next`: the packet it sends next; `expected`: the packet the receiver waits for; `timer` counts its restarts."""

    number: int
    next: int = 0
    acked: int = 0
    expected: int = 0
    told: bool = False
    busy: bool = False
    timer: int = 0
    done_ns: float | None = None


class Lossy:
    """`senders` of `packets` each over cables of `rate` into one of the same rate, `limit` bytes of queue before it.
    A NAK or acknowledgement takes `back_ns`. Played when made."""

    def __init__(
        self, senders: int, packets: int, rate: float, limit: float, back_ns: float, timeout_ns: float, seed: int
    ) -> None:
        self.packets, self.limit, self.back_ns, self.timeout_ns = packets, limit, back_ns, timeout_ns
        self.time_ns = PACKET / rate
        self.random = random.Random(seed)
        self.senders = [Sender(number) for number in range(senders)]
        self.queue: deque[tuple[Sender, int]] = deque()
        self.draining = False
        self.dropped = self.restarts = self.longest = 0
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        for sender in self.senders:
            self._arm(sender)
            self._send(sender)
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _after(self, ns: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + ns, next(self._order), what))

    def _send(self, sender: Sender) -> None:
        if not sender.busy and sender.next < self.packets:
            number, sender.next, sender.busy = sender.next, sender.next + 1, True
            self._after(self.time_ns * self.random.uniform(0.75, 1.25), lambda: self._sent(sender, number))

    def _sent(self, sender: Sender, number: int) -> None:
        sender.busy = False
        if (len(self.queue) + 1) * PACKET > self.limit:
            self.dropped += 1
        else:
            self.queue.append((sender, number))
            self.longest = max(self.longest, len(self.queue) * PACKET)
            self._drain()
        self._send(sender)

    def _drain(self) -> None:
        if self.queue and not self.draining:
            self.draining = True
            self._after(self.time_ns, lambda: self._arrived(*self.queue.popleft()))

    def _arrived(self, sender: Sender, number: int) -> None:
        self.draining = False
        if number == sender.expected:
            sender.expected, sender.told = number + 1, False
            self._after(self.back_ns, lambda: self._acknowledged(sender, number + 1))
            if sender.expected == self.packets:
                sender.done_ns = self.now
        elif number > sender.expected and not sender.told:
            sender.told = True
            self._after(self.back_ns, lambda: self._go_back(sender, sender.expected))
        self._drain()

    def _acknowledged(self, sender: Sender, until: int) -> None:
        if until > sender.acked:
            sender.acked = until
            self._arm(sender)

    def _go_back(self, sender: Sender, to: int) -> None:
        self.restarts += 1
        sender.acked = max(sender.acked, to)
        sender.next = sender.acked
        self._arm(sender)
        self._send(sender)

    def _arm(self, sender: Sender) -> None:
        sender.timer += 1
        armed = sender.timer
        if sender.acked < self.packets:
            self._after(self.timeout_ns, lambda: self._expired(sender, armed))

    def _expired(self, sender: Sender, armed: int) -> None:
        if sender.timer == armed and sender.acked < self.packets:
            self._go_back(sender, sender.acked)
