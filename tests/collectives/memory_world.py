"""All ranks of a plan in one process: executors joined by an in-memory fabric whose order of events is chosen."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from fauxrdma.collectives import Arithmetic, Channel, Plan, PlanExecutor
from fauxrdma.collectives.executor import (
    Action,
    Arrived,
    CreditReturned,
    Event,
    PutCompleted,
    PutMessage,
    ReturnCredits,
    apply_event,
)


class MemoryWorld:
    """`n` ranks with fully connected staging. Messages of one edge stay in order; edges are served as `choose` says."""

    def __init__(self, n: int, *, slots: int, slot_bytes: int, choose: Callable[[int], int]) -> None:
        self.n = n
        self.slot_bytes = slot_bytes
        self.choose = choose
        self.channels: list[dict[int, Channel]] = [{} for _ in range(n)]
        self.outboxes: list[dict[int, np.ndarray]] = [{} for _ in range(n)]
        for rank in range(n):
            for peer in range(n):
                if peer != rank:
                    inbox, outbox = (np.full(slots * slot_bytes, 0xAA, np.uint8) for _ in range(2))
                    self.outboxes[rank][peer] = outbox
                    self.channels[rank][peer] = Channel(peer, slots, slot_bytes, inbox, outbox)
        self.slots = slots
        self.wires: dict[tuple[int, int], deque[tuple[PutMessage | ReturnCredits, np.ndarray]]] = {}
        self.completions: dict[tuple[int, int], deque[int]] = {}
        self.messages = 0
        self.nbytes = [0] * n

    def _source(self, rank: int, put: PutMessage) -> np.ndarray:
        if put.source is None:
            memory, number = self.outboxes[rank][put.peer], put.number
        else:
            memory, number = self.channels[rank][put.source].inbox, put.source_number
        start = number % self.slots * self.slot_bytes
        return memory[start : start + put.nbytes]

    def _perform(self, rank: int, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, PutMessage):
                # A view, not a copy: like a NIC, the wire reads the slot when the message is delivered.
                self.wires.setdefault((rank, action.peer), deque()).append((action, self._source(rank, action)))
                self.messages += 1
                self.nbytes[rank] += action.nbytes
            elif isinstance(action, ReturnCredits):
                self.wires.setdefault((rank, action.peer), deque()).append((action, np.empty(0, np.uint8)))

    def _deliver(self, src: int, dst: int) -> Event:
        action, data = self.wires[(src, dst)].popleft()
        if isinstance(action, ReturnCredits):
            return CreditReturned(src, action.count)
        start = action.number % self.slots * self.slot_bytes
        self.channels[dst][src].inbox[start : start + action.nbytes] = data
        if action.completion:
            self.completions.setdefault((src, dst), deque()).append(action.number + 1)
        return Arrived(src, action.number & 0xFFFFFF, action.nbytes, action.credits)

    def run(
        self,
        plan: Plan,
        buffers: list[dict[str, np.ndarray]],
        arithmetic: Callable[[], Arithmetic | None] = lambda: None,
    ) -> None:
        """Run `plan` on all ranks to the end; fails when nothing can move any more."""
        executors = [
            PlanExecutor(plan, rank, buffers[rank], self.channels[rank], arithmetic()) for rank in range(self.n)
        ]
        not_started = list(range(self.n))
        while not all(executor.done for executor in executors):
            moves: list[tuple[str, Any]] = [("start", rank) for rank in not_started]
            moves += [("deliver", edge) for edge, queue in self.wires.items() if queue]
            moves += [("complete", edge) for edge, queue in self.completions.items() if queue]
            assert moves, "deadlock: " + "; ".join(f"rank {e.rank} waits for {e.waiting_for()}" for e in executors)
            kind, what = moves[self.choose(len(moves))]
            if kind == "start":
                not_started.remove(what)
                self._perform(what, executors[what].start())
                continue
            src, dst = what
            if kind == "deliver":
                rank, event = dst, self._deliver(src, dst)
            else:
                rank, event = src, PutCompleted(dst, self.completions[what].popleft())
            if rank in not_started:
                apply_event(self.channels[rank], event)
            else:
                self._perform(rank, executors[rank].handle(event))
