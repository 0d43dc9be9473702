"""Deadlock: a circle of lanes, each of which cannot send because the buffer it leads to waits for the next.

A lane waits for the lanes that the bytes in the ingress buffer at its end wait for. Where every lane of a circle has
bytes to send and none of them has sent as much as a packet for long, they never will. A circle in the routes alone is
no deadlock (that is the static check, `fauxrdma.fabric.routing`); pauses alone, however long, are none either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["DeadlockDetector", "find_circle"]

Floats = NDArray[np.float64]


def find_circle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """The first circle in a graph, from its smallest member on; empty if there is none."""
    state: dict[int, int] = {}  # 1: on the way being looked at, 2: leads nowhere
    for start in sorted(waits_for):
        if start in state:
            continue
        trail = [start]
        todo = [iter(waits_for[start])]
        state[start] = 1
        while trail:
            found = next(todo[-1], None)
            if found is None:
                state[trail.pop()] = 2
                todo.pop()
            elif state.get(found) == 1:
                circle = trail[trail.index(found) :]
                first = circle.index(min(circle))
                return circle[first:] + circle[:first]
            elif found not in state and found in waits_for:
                state[found] = 1
                trail.append(found)
                todo.append(iter(waits_for[found]))
    return []


class DeadlockDetector:
    """Looks every `interval_ns` whether lanes that have something to send have sent less than `packet` bytes since."""

    def __init__(self, lanes: int, interval_ns: float, packet: float) -> None:
        self._interval = interval_ns
        self._packet = packet
        self._look_at = interval_ns
        self._served: Floats = np.zeros(lanes)
        self._waited: NDArray[np.bool_] = np.zeros(lanes, dtype=bool)

    def look(
        self,
        now_ns: float,
        served: Floats,
        waiting: Floats,
        queued: Floats,
        lane: NDArray[np.intp],
        came_by: NDArray[np.intp],
    ) -> list[int]:
        """The lanes of a circle, in the order they wait for each other; empty for none, or if it is not yet time.

        `served`: (K,) bytes ever sent; `waiting`: (K,) bytes that wait now; `queued`, `lane`, `came_by`: (F, H), the
        bytes in each slot, the lane they wait for and the one they came by, K where there is none."""
        if now_ns < self._look_at:
            return []
        self._look_at = now_ns + self._interval
        waits = waiting > self._packet
        stuck = waits & self._waited & (served - self._served < self._packet)
        self._served = served.copy()
        self._waited = waits
        if not stuck.any():
            return []
        count = len(served)
        is_stuck = np.append(stuck, False)
        # Crumbs of a fluid do not hold anything up: a buffer waits for what takes up at least a packet of it.
        edges = (came_by < count) & (lane < count) & is_stuck[came_by] & is_stuck[lane] & (queued > 0)
        pairs, place = np.unique(came_by[edges] * count + lane[edges], return_inverse=True)
        amounts = np.bincount(place, queued[edges], minlength=len(pairs))
        graph: dict[int, list[int]] = {}
        for pair, amount in zip(pairs.tolist(), amounts.tolist(), strict=True):
            if amount >= self._packet:
                graph.setdefault(pair // count, []).append(pair % count)
        return find_circle(graph)
