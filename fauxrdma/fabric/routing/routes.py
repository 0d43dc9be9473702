"""The outcome of a sweep: forwarding tables, the lanes that keep them free of deadlock, and what the engine had to say.

Tables live in one array, since a large fabric has tens of millions of entries; `Routes.tables` shows it as mappings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from functools import cached_property

import numpy as np

from fauxrdma.fabric.routing.dependencies import (
    IntArray,
    find_circle,
    links_of,
    used_by_any_shortest,
    used_by_tables,
)
from fauxrdma.fabric.routing.ethernet import ETHERNET_ENGINES, FlowKey, Load, pick_port, unloaded
from fauxrdma.fabric.routing.lanes import IslandLanes, Lanes
from fauxrdma.fabric.routing.switch_graph import NO_PORT, PortArray, SwitchGraph

__all__ = ["Routes", "Table", "Tables"]


class Table(MutableMapping[int, int]):
    """One switch's forwarding table: destination LID -> output port (0: the switch itself). A view, not a copy."""

    def __init__(self, row: PortArray) -> None:
        self._row = row

    def __getitem__(self, lid: int) -> int:
        port = int(self._row[lid]) if 0 < lid < len(self._row) else NO_PORT
        if port == NO_PORT:
            raise KeyError(lid)
        return port

    def __setitem__(self, lid: int, port: int) -> None:
        self._row[lid] = port

    def __delitem__(self, lid: int) -> None:
        self[lid]
        self._row[lid] = NO_PORT

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._row != NO_PORT).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._row != NO_PORT))


class Tables(Mapping[str, Table]):
    """Forwarding tables by switch name."""

    def __init__(self, graph: SwitchGraph, ports: PortArray) -> None:
        self._number = graph.number
        self._ports = ports

    def __getitem__(self, switch: str) -> Table:
        return Table(self._ports[self._number[switch]])

    def __iter__(self) -> Iterator[str]:
        return iter(self._number)

    def __len__(self) -> int:
        return len(self._number)


class Routes:
    """What an engine computed.

    `asked` is the engine that was wanted, `engine` the one really used; they differ after a fall-back, which `messages`
    explains in OpenSM's words. `ports[switch number, LID]` is the output port, NO_PORT where there is none;
    `tables[switch name][LID]` is the same as a mapping. `warnings` has a sentence on a credit loop if the routes have
    one, and `credit_loop` the ids of its links. `lanes` says which virtual lane keeps whom free of deadlock; None: all
    traffic is on lane 0. `parts`: the routes of each island, where there are several.
    """

    def __init__(
        self,
        graph: SwitchGraph,
        engine: str,
        ports: PortArray,
        *,
        asked: str | None = None,
        messages: tuple[str, ...] = (),
        lanes: Lanes | IslandLanes | None = None,
        seed: int = 0,
        parts: tuple[Routes, ...] = (),
    ) -> None:
        self.graph = graph
        self.engine = engine
        self.asked = engine if asked is None else asked
        self.messages = messages
        self.ports = ports
        self.tables = Tables(graph, ports)
        self.lanes = lanes
        self.seed = seed
        self.parts = parts
        self.any_shortest = engine in ETHERNET_ENGINES
        self.credit_loop = self._find_credit_loop()

    def _find_credit_loop(self) -> list[int]:
        if self.parts:
            return next((part.credit_loop for part in self.parts if part.credit_loop), [])
        if self.lanes is not None:
            return []
        return links_of(self.graph, find_circle(self.graph, self._dependencies()))

    def _dependencies(self) -> IntArray:
        if self.any_shortest:
            return used_by_any_shortest(self.graph)
        return used_by_tables(self.graph, self.ports)

    def choices(self, switch: int, lid: int) -> tuple[int, ...]:
        """The ports by which switch number `switch` may send to an HCA: the one of its table, or, on Ethernet, all that
        start a shortest path. Empty if it cannot be reached."""
        port = int(self.ports[switch, lid])
        if port == NO_PORT:
            return ()
        if not self.any_shortest or int(self.graph.peers[switch, port]) < 0:
            return (port,)
        hops = self.graph.hops[:, self._switch_of[lid]]
        return tuple(trunk.port for trunk in self.graph.trunks[switch] if hops[trunk.peer] == hops[switch] - 1)

    def port_for(self, switch: int, flow: FlowKey, load: Load = unloaded) -> int:
        """The port by which switch number `switch` sends a packet of `flow`; NO_PORT if it cannot."""
        ports = self.choices(switch, flow.dlid)
        if len(ports) < 2:
            return ports[0] if ports else NO_PORT
        links = {trunk.port: trunk.link for trunk in self.graph.trunks[switch]}
        return pick_port(self.engine, [(port, links[port]) for port in ports], flow, self.seed, switch, load)

    @cached_property
    def _switch_of(self) -> dict[int, int]:
        return {end.lid: end.switch for end in self.graph.endpoints}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the person who runs the fabric."""
        if not self.credit_loop:
            return ()
        names = [self.graph.topology.links[link].name for link in self.credit_loop]
        return (
            f"the routes of {self.engine} have a credit loop, {', '.join(names)}, back to {names[0]}: when the buffers "
            "along it fill up, traffic can stop for ever. dfsssp has none",
        )

    def sl(self, slid: int, dlid: int) -> int:
        """The service level of traffic from one LID to another; it is also its virtual lane."""
        return 0 if self.lanes is None else self.lanes.lane(slid, dlid)
