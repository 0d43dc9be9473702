"""The packet memories: what a switch or HCA holds, what of it is set aside, and from what filling on it drops.

REFERENCE C: a port and priority may fill `XOFF = alpha (B - headroom - reserved - shared used)` before it pauses;
`shared used` is what the others and it have taken beyond their reserves. Without PFC a queue may grow to `alpha` of
what is free (dynamic thresholds). Whatever the settings, what does not fit into B is dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fauxrdma.fabric.queues.layout import Layout
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.queues.sums import sums
from fauxrdma.topology.graph import NodeKind
from fauxrdma.units import Rate

__all__ = ["Buffers"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Buffers:
    """The memories behind K lanes. `lossless`: (K,), the lanes that PFC governs. Bytes."""

    def __init__(self, layout: Layout, settings: QueueSettings, lossless: Flags, step_ns: float) -> None:
        self._layout = layout
        self._settings = settings
        self._counted: Flags = layout.is_cable & layout.has_ingress
        topology = layout.topology
        priorities = len(set(layout.priority[lossless].tolist()))
        size, aside = [], []
        for name in layout.nodes:
            cables = [link for link in topology.links_from(name) if link.kind == "cable"]
            fastest = max((link.rate for link in cables), default=Rate(0))
            kind = topology.nodes[name].kind
            if kind is NodeKind.SWITCH:
                size.append(settings.buffers.of_switch(fastest))
            else:
                size.append(settings.buffers.of_hca(fastest) if kind is NodeKind.HCA else np.inf)
            # Each cable's other direction has the same rate and length, and its ingress here.
            room = sum(self._headroom(layout, link.id, step_ns) for link in cables) * priorities
            aside.append(room + settings.buffers.reserved_bytes * len(cables))
        self.size: Floats = np.array(size)
        self._most_in = self.used(layout.rate * step_ns)
        self._aside: Floats = np.minimum(np.array(aside), 0.9 * self.size)

    def _headroom(self, layout: Layout, link: int, step_ns: float) -> float:
        cable = layout.topology.links[link]
        delay = cable.length_m * 5.0 + self._settings.pfc.response_ns
        return self._settings.pfc.headroom_delays * cable.rate.bytes_per_ns * max(delay, step_ns)

    def used(self, held: Floats) -> Floats:
        """What each node (N,) holds, from what each ingress (K,) does."""
        return sums(self._layout.ends_at, held * self._counted, len(self.size))

    def xoff(self, held: Floats) -> Floats:
        """The threshold of each ingress (K,), from what each holds."""
        if self._settings.pfc.xoff_bytes is not None:
            return np.full(len(held), self._settings.pfc.xoff_bytes)
        reserved = self._settings.buffers.reserved_bytes
        shared = sums(self._layout.ends_at, np.maximum(held - reserved, 0.0) * self._counted, len(self.size))
        free = np.maximum(self.size - self._aside - shared, 0.0)
        return reserved + self._settings.pfc.alpha * free[self._layout.ends_at]

    def overflow(self, used: Floats, coming: Floats) -> Floats | None:
        """What part of the bytes that come in over each lane (K,) finds no room; None if all do."""
        if not (used + self._most_in > self.size).any():
            return None
        node_in = self.used(coming)
        over = used + node_in - self.size
        if not (over > 0).any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            part = np.where((over > 0) & (node_in > 0), np.minimum(over / node_in, 1.0), 0.0)
        return np.where(self._counted, part[self._layout.ends_at], 0.0)

    def refuse(self, used: Floats, queue: Floats, joining: Floats) -> Floats | None:
        """Without PFC: what part of the bytes that join each egress queue (K,) is over its threshold; None for none."""
        free = np.maximum(self.size - used, 0.0)
        limit = self._settings.buffers.lossy_alpha * free[self._layout.starts_at]
        over = queue + joining - limit
        full = (over > 0) & (joining > 0) & np.isfinite(limit)
        if not full.any():
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(full, np.minimum(over / joining, 1.0), 0.0)
