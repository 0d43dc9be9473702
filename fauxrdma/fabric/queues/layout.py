"""Where bytes can be: the flows' paths laid out as arrays of *slots*, and the cables they wait for as *lanes*.

A lane is a link and a priority (for InfiniBand a virtual lane). A flow's slots are the queues on its way, one for each
lane it crosses: in slot h wait its bytes for lane `lane[f, h]`. Slot 0 is the sender itself; behind the last is the
receiver, where bytes stay. What waits in slot h + 1 came in by `lane[f, h]` and fills the ingress buffer there.

An HCA reads memory as fast as it sends, so the links from there to the sender's cable have no queue of their own
(`source_links`); at the receiving end the HCA's queue for PCIe, and its PCIe switch's, are slots like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fauxrdma.fabric.transport import PROPAGATION_NS_PER_M
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["Layout", "Way"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Way:
    """What one flow crosses: ids of links in order (`Path.links`), and its priority. `latency_ns`: of a small message,
    which is what a fluid's way through empty queues does not have."""

    links: tuple[int, ...]
    priority: int
    latency_ns: float


class Layout:
    """The slots and lanes of some ways. F ways, H slots each at most, K lanes on L links; absent slots have lane K."""

    def __init__(self, topology: Topology, payload_rates: Sequence[Rate], ways: Sequence[Way]) -> None:
        self.topology = topology
        paths = [self._split(way) for way in ways]
        pairs = sorted({(link, way.priority) for way, (_, queued) in zip(ways, paths, strict=True) for link in queued})
        number = {pair: at for at, pair in enumerate(pairs)}
        self.lanes: list[tuple[int, int]] = pairs
        self.count = len(pairs)
        self.lane = _rows(
            [[number[link, way.priority] for link in queued] for way, (_, queued) in zip(ways, paths, strict=True)],
            self.count,
            extra=1,
        )
        self.last: Numbers = np.array([len(queued) - 1 for _, queued in paths], dtype=np.intp)
        self.came_by: Numbers = np.full_like(self.lane, self.count)
        self.came_by[:, 1:] = np.where(self.lane[:, 1:] < self.count, self.lane[:, :-1], self.count)
        self.latency_ns: Floats = np.array([way.latency_ns for way in ways])

        links = sorted({link for link, _ in pairs})
        place = {link: at for at, link in enumerate(links)}
        self.links = links
        self.link_rate: Floats = np.array([payload_rates[link].bytes_per_ns for link in links])
        self.link_of: Numbers = np.array([place[link] for link, _ in pairs], dtype=np.intp)
        self.priority: NDArray[np.int64] = np.array([priority for _, priority in pairs], dtype=np.int64)
        self.rate: Floats = self.link_rate[self.link_of]
        self.has_classes = self.count > len(links)
        of = [topology.links[link] for link, _ in pairs]
        self.is_cable: Flags = np.array([link.kind == "cable" for link in of], dtype=bool)
        self.from_switch: Flags = np.array(
            [topology.nodes[link.src].kind is NodeKind.SWITCH and link.kind == "cable" for link in of], dtype=bool
        )
        self.into_switch: Flags = np.array(
            [topology.nodes[link.dst].kind is NodeKind.SWITCH for link in of], dtype=bool
        )
        self.propagation_ns: Floats = np.array([link.length_m * PROPAGATION_NS_PER_M for link in of])
        self.signalling = [link.rate for link in of]
        nodes = sorted({link.dst for link in of} | {link.src for link in of})
        self.nodes = nodes
        self.ends_at: Numbers = np.array([nodes.index(link.dst) for link in of], dtype=np.intp)
        self.starts_at: Numbers = np.array([nodes.index(link.src) for link in of], dtype=np.intp)
        waits = np.zeros(self.count + 1, dtype=bool)
        waits[self.came_by.ravel()] = True
        self.has_ingress: Flags = waits[:-1]
        self._names = [topology.links[link].name + (f"/{priority}" if priority else "") for link, priority in pairs]
        self.source_columns = self._source_columns([before for before, _ in paths], payload_rates)

    def _split(self, way: Way) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The links before the sender's cable, and those with queues. Within a host the same links are both: the sender
        has its part of them, and what comes in by them waits its turn for the next."""
        for at, link in enumerate(way.links):
            if self.topology.links[link].kind == "cable":
                return way.links[:at], way.links[at:]
        return way.links[:-1], way.links

    def _source_columns(
        self, before: list[tuple[int, ...]], payload_rates: Sequence[Rate]
    ) -> list[tuple[Numbers, Floats]]:
        """The links between memory and cable that could ever be narrower than the cables behind them: for each place on
        the way the link of every flow, and the rates of those links (the last: none)."""
        cables: dict[int, set[int]] = {}
        for row, links in enumerate(before):
            for link in links:
                cables.setdefault(link, set()).add(int(self.lane[row, 0]))
        narrow = sorted(
            link
            for link, behind in cables.items()
            if payload_rates[link].bytes_per_ns < float(sum(self.rate[lane] for lane in sorted(behind)))
        )
        place = {link: at for at, link in enumerate(narrow)}
        rates = np.array([*(payload_rates[link].bytes_per_ns for link in narrow), np.inf])
        kept = [[place[link] for link in links if link in place] for links in before]
        columns = _rows(kept, len(narrow)) if any(kept) else np.zeros((len(before), 0), dtype=np.intp)
        return [(np.ascontiguousarray(columns[:, at]), rates) for at in range(columns.shape[1])]

    def line_rate(self) -> Floats:
        """What each flow's first cable carries, in bytes per ns (F,)."""
        return self.rate[self.lane[:, 0]]

    def name(self, lane: int) -> str:
        """The lane for a person: `leaf1->spine1`, with `/3` for priority 3 where it is not 0."""
        return self._names[lane]


def _rows(rows: list[list[int]], absent: int, extra: int = 0) -> Numbers:
    """Rows of different lengths as one array, filled up with `absent`, and `extra` columns of it."""
    filled = np.full((len(rows), max(map(len, rows), default=0) + extra), absent, dtype=np.intp)
    for at, row in enumerate(rows):
        filled[at, : len(row)] = row
    return filled
