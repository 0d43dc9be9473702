"""All ranks' programs played in virtual time through the queues of a fabric (`fauxrdma.fabric.queues`): what
`fabric_player` does with fair shares, with buffers, flow control and congestion control.

Each message is a flow of the model, and the messages of one rank to another leave one after the other, as from one
queue pair: the next begins when the one before is about to have left, with its congestion control as it then is. The
model goes in steps; a rank that goes on in between starts its message with the next step and has the difference back
when it arrives, so that only who meets whom is uncertain by a step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fauxrdma.collectives.fabric_player import Flight, Operation, PlayedFlow
from fauxrdma.errors import ConfigError, FabricUnhealthy, LocalProtocolError
from fauxrdma.fabric.queues.layout import Layout, Way
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.queues.step import QueueModel
from fauxrdma.topology.graph import Topology
from fauxrdma.units import Rate

__all__ = ["MOST_MESSAGES", "play_in_queues"]

MOST_MESSAGES = 20_000
"""A step looks at every message of the plan: more of them take minutes."""
_LIMIT_NS = 1e9


@dataclass(slots=True)
class _Message:
    """A message of a flow: the rows of the model it takes (several where packets are sprayed), and when its rank had
    it ready. `parts` of it have not arrived; `late_ns`: how long after it was ready its step began."""

    flow: PlayedFlow
    rows: range
    ready_ns: float = 0.0
    late_ns: float = 0.0
    parts: int = 0
    arrived_ns: float = 0.0


def play_in_queues(
    programs: Sequence[Sequence[Operation]],
    ways: dict[PlayedFlow, tuple[tuple[int, ...], ...]],
    lanes: dict[PlayedFlow, int],
    capacities: Sequence[int],
    topology: Topology,
    settings: QueueSettings,
    flights: list[Flight] | None = None,
) -> list[int]:
    """The time in ns, by rank, at which each program ends when all start at 0.

    `ways`: the links that each flow takes, several where it is sprayed over them; `lanes`: its priority; `capacities`:
    payload rates of the links in bits/s. `flights` gets every message, if given. Raises ConfigError for more than
    `MOST_MESSAGES`, FabricUnhealthy when the fabric deadlocks, LocalProtocolError when ranks wait for each other for
    ever.
    """
    return _Play(programs, ways, lanes, capacities, topology, settings, flights).run()


class _Play:
    def __init__(
        self,
        programs: Sequence[Sequence[Operation]],
        ways: dict[PlayedFlow, tuple[tuple[int, ...], ...]],
        lanes: dict[PlayedFlow, int],
        capacities: Sequence[int],
        topology: Topology,
        settings: QueueSettings,
        flights: list[Flight] | None,
    ) -> None:
        self._programs = programs
        self._flights = flights
        self._position = [0] * len(programs)
        self._end = [0.0] * len(programs)
        self._put = [0] * len(programs)
        self._messages: list[list[_Message]] = []
        self._of_row: list[_Message] = []
        sizes: list[float] = []
        rows: list[Way] = []
        for program in programs:
            own: list[_Message] = []
            for flow, nbytes in program:
                if nbytes >= 0:
                    first = len(rows)
                    rows += (Way(links, lanes[flow], float(flow.latency_ns)) for links in ways[flow])
                    own.append(_Message(flow, range(first, len(rows))))
                    # A message of nothing is a packet, too, and waits its turn.
                    sizes += [max(nbytes, 1) / len(ways[flow])] * len(ways[flow])
                    self._of_row += [own[-1]] * len(ways[flow])
            self._messages.append(own)
        if len(rows) > MOST_MESSAGES:
            raise ConfigError(
                f"{len(rows)} messages are more than the {MOST_MESSAGES} that can be played through queues: take "
                "fewer ranks or channels, or --model flows"
            )
        layout = Layout(topology, [Rate(bits) for bits in capacities], rows)
        self._model = QueueModel(layout, sizes, settings, topology.mtu, np.random.default_rng(0))
        self._line = layout.line_rate() * self._model.step_ns
        self._waiting: dict[PlayedFlow, deque[_Message]] = {}
        self._leaving: dict[PlayedFlow, _Message] = {}
        self._followed: list[tuple[_Message, _Message]] = []
        self._arrivals: list[tuple[float, int, _Message]] = []
        self._order = 0

    def run(self) -> list[int]:
        for rank in range(len(self._programs)):
            self._advance(rank, 0.0)
        model = self._model
        while model.busy or self._arrivals:
            while self._arrivals and (self._arrivals[0][0] <= model.now_ns or not model.busy):
                self._arrive(*heapq.heappop(self._arrivals)[::2])
            if not model.busy:
                continue
            through = model.step()
            self._set_right()
            for row, at_ns in through:
                self._part_through(self._of_row[row], at_ns)
            if model.deadlock:
                circle = [model.layout.name(lane) for lane in model.deadlock]
                raise FabricUnhealthy(f"the fabric deadlocks: {' -> '.join([*circle, circle[0]])}")
            if model.now_ns > _LIMIT_NS:
                raise FabricUnhealthy(f"the plan is not done after {_LIMIT_NS / 1e9:g} s of fabric time")
            self._next_ones()
        stuck = [rank for rank, program in enumerate(self._programs) if self._position[rank] < len(program)]
        if stuck:
            raise LocalProtocolError(f"this plan never ends: ranks {stuck[:16]} wait for each other")
        return [round(end) for end in self._end]

    def _advance(self, rank: int, now: float) -> None:
        """Run a rank up to the first message that has not arrived."""
        program, position = self._programs[rank], self._position[rank]
        while position < len(program):
            flow, size = program[position]
            if size >= 0:
                message = self._messages[rank][self._put[rank]]
                self._put[rank] += 1
                message.ready_ns = now
                if flow in self._leaving:
                    self._waiting.setdefault(flow, deque()).append(message)
                else:
                    self._start(message, now, None)
            elif flow.arrived <= ~size:
                break
            position += 1
        self._position[rank] = position
        self._end[rank] = max(self._end[rank], now)

    def _start(self, message: _Message, ready_ns: float, after: _Message | None) -> None:
        model = self._model
        if not model.busy:
            model.jump(ready_ns)
        message.late_ns = model.now_ns - ready_ns
        message.parts = len(message.rows)
        self._leaving[message.flow] = message
        for part, row in enumerate(message.rows):
            model.start(row, None if after is None else after.rows[part])
        if after is not None:
            self._followed.append((after, message))

    def _set_right(self) -> None:
        """Messages that another followed within a step: what it sent in that step was behind their last bytes."""
        model = self._model
        for message, follower in self._followed:
            row = follower.rows[0]
            message.late_ns += (model.sizes[row] - model.unsent[row]) / self._line[row] * model.step_ns
        self._followed.clear()

    def _next_ones(self) -> None:
        """Begin what waits behind messages that will have left with the next step."""
        unsent = self._model.unsent
        for flow, message in list(self._leaving.items()):
            if any(unsent[row] > self._line[row] for row in message.rows):
                continue
            waiting = self._waiting.get(flow)
            if waiting:
                self._start(waiting.popleft(), self._model.now_ns, message)
            elif not any(unsent[row] > 0 for row in message.rows):
                del self._leaving[flow]

    def _part_through(self, message: _Message, at_ns: float) -> None:
        message.parts -= 1
        message.arrived_ns = max(message.arrived_ns, at_ns - message.late_ns)
        if message.parts == 0:
            self._order += 1
            heapq.heappush(self._arrivals, (message.arrived_ns, self._order, message))

    def _arrive(self, at_ns: float, message: _Message) -> None:
        flow = message.flow
        flow.arrived += 1
        if self._flights is not None:
            departed = round(at_ns) - flow.latency_ns
            self._flights.append((flow, min(round(message.ready_ns), departed), departed, round(at_ns)))
        program, position = self._programs[flow.target], self._position[flow.target]
        if position < len(program) and program[position][0] is flow:
            self._advance(flow.target, max(at_ns, self._end[flow.target]))
