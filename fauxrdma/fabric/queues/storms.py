"""HCAs that do not take in: a pause storm, or on InfiniBand an HCA that grants no more credits.

A broken HCA, or one whose host has stopped, pauses its cable without end. The switch's queue for it fills up, then the
ingress buffers of all that sends there are full, and those ports pause in turn: the storm spreads, and stops flows that
never go near the HCA (Guo et al., SIGCOMM 2016, 6.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.layout import Layout
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.units import parse_time_ns

__all__ = ["Storm", "lanes_held", "now_held"]


@dataclass(frozen=True, slots=True)
class Storm:
    """The HCA of that name takes nothing in from `start_ns` until `stop_ns`, of that priority or (None) of any."""

    hca: str
    start_ns: float = 0.0
    stop_ns: float = float("inf")
    priority: int | None = None

    @classmethod
    def parse(cls, text: str, topology: Topology) -> Storm:
        """Read ``n3.hca1``, ``n3.hca1@100us`` or ``n3.hca1@100us-600us``. Raises ConfigError."""
        name, at, times = text.partition("@")
        node = topology.nodes.get(name)
        if node is None or node.kind is not NodeKind.HCA:
            raise ConfigError(f"{text!r}: {topology.name} has no HCA called {name!r}: write n3.hca1@100us-600us")
        start, dash, stop = times.partition("-")
        storm = cls(name, parse_time_ns(start) if at else 0.0, parse_time_ns(stop) if dash else float("inf"))
        if storm.stop_ns <= storm.start_ns:
            raise ConfigError(f"{text!r}: it ends before it begins")
        return storm


def lanes_held(storm: Storm, layout: Layout) -> NDArray[np.intp]:
    """The lanes that lead to the HCA of a storm."""
    topology = layout.topology
    return np.array(
        [
            lane
            for lane, (link, priority) in enumerate(layout.lanes)
            if topology.links[link].kind == "cable"
            and topology.links[link].dst == storm.hca
            and storm.priority in (None, priority)
        ],
        dtype=np.intp,
    )


def now_held(storms: Sequence[tuple[Storm, NDArray[np.intp]]], now_ns: float) -> list[NDArray[np.intp]]:
    """The lanes of the storms that blow now."""
    return [lanes for storm, lanes in storms if storm.start_ns <= now_ns < storm.stop_ns]
