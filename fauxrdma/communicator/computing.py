"""Charging a rank's own computing in virtual time: before a call the rank sleeps what it cost, in fabric time.

The rank sleeps by its timer (verbs/virtual_timer.py), so the timekeeper knows when it goes on and waits for it.
"""

from __future__ import annotations

import os
import time

from fauxrdma.topology.computing import COMPUTE_VARIABLE, ComputeCost, compute_cost
from fauxrdma.verbs import Context

__all__ = ["Computing"]


class Computing:
    """One communicator's. With another clock than `virtual` computing takes the time that it takes, and nothing is
    charged. Raises ConfigError for a FAUXRDMA_COMPUTE that is no cost."""

    def __init__(self, context: Context, rank: int) -> None:
        self._virtual = context.virtual
        self._cost: ComputeCost = compute_cost(os.environ.get(COMPUTE_VARIABLE), rank)
        self._by_cpu = self._virtual is not None and self._cost.cpu_factor > 0  # asking is a system call each time
        self._since_ns = 0
        self.resume()

    def charge(self) -> None:
        """A call begins: what was computed since the last one takes its time now."""
        if self._virtual is None:
            return
        cost_ns = self._cost.call_ns
        if self._by_cpu:
            cost_ns += round(self._cost.cpu_factor * (time.process_time_ns() - self._since_ns))
        if cost_ns:
            self._virtual.timer.sleep_until(self._virtual.now_ns() + cost_ns)

    def resume(self) -> None:
        """A call has ended: what the process does from now on is its own."""
        if self._by_cpu:
            self._since_ns = time.process_time_ns()
