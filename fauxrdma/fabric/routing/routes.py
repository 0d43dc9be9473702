"""The outcome of a sweep: forwarding tables, the lanes that keep them free of deadlock, and what the engine had to say.

Tables live in one array, since a large fabric has tens of millions of entries; `Routes.tables` shows it as mappings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping

import numpy as np
import numpy.typing as npt

from fauxrdma.fabric.routing.switch_graph import SwitchGraph

__all__ = ["NO_PORT", "Routes", "Table", "Tables"]

NO_PORT = -1

PortArray = npt.NDArray[np.int16]


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
    `tables[switch name][LID]` is the same as a mapping. `lanes` is the number of virtual lanes in use and
    `sl(slid, dlid)` the service level, which is also the lane, of traffic from one HCA to another.
    """

    def __init__(
        self,
        graph: SwitchGraph,
        engine: str,
        ports: PortArray,
        *,
        asked: str | None = None,
        messages: tuple[str, ...] = (),
    ) -> None:
        self.graph = graph
        self.engine = engine
        self.asked = engine if asked is None else asked
        self.messages = messages
        self.ports = ports
        self.tables = Tables(graph, ports)
        self.lanes = 1

    def sl(self, slid: int, dlid: int) -> int:
        """The service level of traffic from one LID to another; virtual lanes map one to one."""
        return 0
