"""A packet-level reference for small fabrics, to referee the fluid: an event for each packet and hop, no averages.

Every cable has one queue at its start, first in, first out. A packet is taken in whole, then waits for its next cable.
What came in by a cable and has not left the switch fills that cable's buffer: with credits a packet starts only for
room that is free there; with PFC the cable is paused from `xoff` bytes on until there are `xon`. Senders offer
the packets of their flows in turn, as fast as their cable takes them. Bytes are payload, times ns.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from fauxrdma.fabric.queues.play import Flow
from fauxrdma.fabric.subnet import SubnetManager

__all__ = ["Pfc", "Played", "play_packets"]

PACKET = 4096


@dataclass(frozen=True)
class Pfc:
    """Thresholds in bytes; `response_ns`: until a frame that has arrived is obeyed."""

    xoff: float
    xon: float
    response_ns: float = 500.0


@dataclass(eq=False)
class Packet:
    """The last of its flow if `last`. `hop`: which cable of the path it is on or waits for."""

    flow: int
    path: list[Cable]
    last: bool
    hop: int = 0


@dataclass(eq=False)
class Cable:
    """`inside`: bytes that came by it and are in the switch at its end. `owed`: those and what is on the way there."""

    name: str
    rate: float
    delay_ns: float
    buffer: float
    waiting: deque[Packet] = field(default_factory=deque)
    sources: deque[deque[Packet]] = field(default_factory=deque)
    busy: bool = False
    inside: float = 0.0
    owed: float = 0.0
    asked: bool = False
    paused: bool = False
    pauses: int = 0
    inside_max: float = 0.0
    queue_max: int = 0

    def head(self) -> Packet | None:
        """The packet that goes next."""
        if self.waiting:
            return self.waiting[0]
        return self.sources[0][0] if self.sources else None

    def take(self) -> Packet:
        """The packet that goes now; the next turn is another flow's."""
        if self.waiting:
            return self.waiting.popleft()
        flow = self.sources.popleft()
        packet = flow.popleft()
        if flow:
            self.sources.append(flow)
        return packet


@dataclass
class Played:
    """`completion_ns` of each flow from its start on, None for those that never were complete."""

    completion_ns: list[float | None]
    cables: dict[str, Cable]


def play_packets(manager: SubnetManager, flows: Sequence[Flow], control: Pfc | float) -> Played:
    """Play `flows` until nothing happens any more. `control`: PFC, or how many bytes of credits a cable has."""
    topology = manager.topology
    pfc = control if isinstance(control, Pfc) else None
    cables: dict[int, Cable] = {}
    events: list[tuple[float, int, Callable[[], None]]] = []
    order = count()
    now = 0.0
    completion: list[float | None] = [None] * len(flows)
    fixed: list[float] = []

    def at(when: float, what: Callable[[], None]) -> None:
        heapq.heappush(events, (when, next(order), what))

    def send(cable: Cable) -> None:
        packet = cable.head()
        if packet is None or cable.busy or cable.paused:
            return
        if packet.path[-1] is not cable and cable.owed + PACKET > cable.buffer:
            return
        cable.take()
        cable.busy = True
        if packet.path[-1] is not cable:
            cable.owed += PACKET
        at(now + PACKET / cable.rate, lambda: sent(cable, packet))

    def sent(cable: Cable, packet: Packet) -> None:
        cable.busy = False
        if packet.hop:
            left(packet.path[packet.hop - 1])
        at(now + cable.delay_ns, lambda: arrived(cable, packet))
        send(cable)

    def left(cable: Cable) -> None:
        cable.inside -= PACKET
        if pfc is not None and cable.asked and cable.inside <= pfc.xon:
            cable.asked = False
            at(now + cable.delay_ns + pfc.response_ns, lambda: pause(cable, False))
        at(now + cable.delay_ns, lambda: credit(cable))

    def credit(cable: Cable) -> None:
        cable.owed -= PACKET
        send(cable)

    def pause(cable: Cable, paused: bool) -> None:
        cable.paused = paused
        send(cable)

    def arrived(cable: Cable, packet: Packet) -> None:
        if packet.path[-1] is cable:
            if packet.last:
                completion[packet.flow] = now + fixed[packet.flow] - flows[packet.flow].start_ns
            return
        packet.hop += 1
        cable.inside += PACKET
        cable.inside_max = max(cable.inside_max, cable.inside)
        if pfc is not None and not cable.asked and cable.inside > pfc.xoff:
            cable.asked = True
            cable.pauses += 1
            at(now + cable.delay_ns + pfc.response_ns, lambda: pause(cable, True))
        ahead = packet.path[packet.hop]
        ahead.waiting.append(packet)
        ahead.queue_max = max(ahead.queue_max, len(ahead.waiting) * PACKET)
        send(ahead)

    def start(path: list[Cable], number: int, packets: int) -> None:
        path[0].sources.append(deque(Packet(number, path, n == packets - 1) for n in range(packets)))
        send(path[0])

    for number, flow in enumerate(flows):
        route = manager.path(flow.source, flow.target)
        path = []
        for link in (topology.links[link] for link in manager.cables_of(route.links)):
            rate, delay = manager.payload_rate(link.id).bytes_per_ns, link.length_m * 5.0
            made = Cable(link.name, rate, delay, float("inf") if pfc is not None else float(control))  # type: ignore[arg-type]
            path.append(cables.setdefault(link.id, made))
        fixed.append(route.latency_ns - sum(cable.delay_ns for cable in path))
        packets = -(-flow.nbytes // PACKET)
        at(flow.start_ns, lambda path=path, number=number, packets=packets: start(path, number, packets))  # type: ignore[misc]
    while events:
        now, _, happen = heapq.heappop(events)
        happen()
    return Played(completion, {cable.name: cable for cable in cables.values()})
