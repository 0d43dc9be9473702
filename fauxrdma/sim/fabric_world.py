"""A whole fabric in one process, in virtual time: the HCAs of all nodes, the subnet manager's routes and rates.

What the daemons of a lab with ``--clock virtual`` are made of, joined without sockets: the same data path
(`fauxrdma.runtime.virtual_data_path`) for each node, and the same state of the subnet manager. So the same operations
complete at the same nanoseconds as there, and thousands of them are played in a second::

    world = FabricWorld("fat-tree", nodes=2, gpus=2)
    a, b = world.pair(world.hcas[0], world.hcas[2])
    ...
    world.run()

A program is callbacks: of a completion (`SimHca.on_completion`), or of an instant (`world.at`). What it posts at an
instant is carried out at that instant.

No cable fails here, and there are no multicast groups: both are the daemons' conversation with the subnet manager.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from fauxrdma.fabric.dilation import choose_quantum
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.hca.events import Action, Doorbell, Event
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.ib.work import WC
from fauxrdma.memory.location import gpu_memory
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.runtime.event_trace import EventTrace, in_order
from fauxrdma.runtime.peer_directory import PeerDirectory
from fauxrdma.runtime.peer_links import PeerLink
from fauxrdma.runtime.subnet_manager import VIRTUAL_QUANTUM_DILATION
from fauxrdma.runtime.subnet_state import SubnetState
from fauxrdma.runtime.virtual_data_path import VirtualClock, VirtualDataPath
from fauxrdma.sim.base import BaseWorld, SimHca, SimQp
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import block_places
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import FlowLanding, FlowStart, FlowStop, PathAnswer
from fauxrdma.wire.headers import Frame, decode_header, encode_header

__all__ = ["FabricWorld", "Turns", "WorldNode"]


class Turns:
    """Stands where the event loop stands: calls that were put off, in order."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """Put a call off."""
        self._calls.append((call, arguments))

    def run(self) -> None:
        """Make them all."""
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)


class _Link:
    """To another node: it holds what it is sent until that arrives."""

    writable = True

    def __init__(self, target: WorldNode) -> None:
        self._target = target

    def send(self, frame: Frame) -> None:
        """As PeerLink; the bytes are those of now."""
        copy = decode_header(encode_header(frame))
        copy.payload = (memoryview(bytearray(b"".join(frame.payload))),) if frame.nbytes else ()
        self._target.hold(copy)

    def let_go(self, memory: object) -> None:
        """As PeerLink: nothing is kept."""

    def close(self) -> None:
        """As PeerLink."""


class _Peers(PeerDirectory):
    """Links to the other nodes of a world; `node_of(lid)` says which has an HCA."""

    def __init__(self, node_of: Callable[[int], WorldNode | None], *arguments: Any) -> None:
        super().__init__(*arguments)
        self._node_of = node_of

    def _link_to(self, dlid: int) -> PeerLink | None:
        if dlid in self._own:
            return self._local
        node = self._node_of(dlid)
        return _Link(node) if node is not None else None


class WorldNode(VirtualDataPath):
    """One node's HCAs."""

    def __init__(self, world: FabricWorld, node: int, turns: Turns, quantum: int, *, adaptive: bool) -> None:
        self._world = world
        super().__init__(
            cast(Any, turns), node, world.clock, shaped=True, quantum=quantum,
            notify=lambda message: world.told(node, message), path=world.path, want_path=lambda *_: None,
            adaptive=adaptive,
        )  # fmt: skip

    def _make_peers(self, loop: Any, node: int) -> PeerDirectory:
        return _Peers(self._world.node_of, loop, node, 0, self._path, self._deliver_locally, self._link_writable)


class _Queues:
    """A queue pair's queues in plain memory, as its HCA looks at them."""

    def __init__(self, qp: SimQp) -> None:
        self._qp = qp
        self.state = int(qp.qp.state)

    def pending_sends(self) -> int:
        """Posted and not taken."""
        return len(self._qp.sq)

    def pending_recvs(self) -> int:
        """Posted and not taken."""
        return len(self._qp.rq)


class Seat(SimHca):
    """A GPU of the world with the HCA that it uses, and a completion queue of its own."""

    emulated: EmulatedHca
    node: WorldNode

    def add(self, wc: WC, solicited: bool) -> bool:
        """A completion: the application hears of it at the end of the step."""
        world = cast(FabricWorld, self.world)
        world.completed.append((self, wc))
        return True

    def create_qp(self, *arguments: Any, **options: Any) -> SimQp:
        """As SimHca."""
        made = super().create_qp(*arguments, **options)
        self.emulated.rings[made.qp.qpn] = _Queues(made)
        return made


class FabricWorld(BaseWorld):
    """The fabric `topology` (as `load_topology` takes it, or made already), all its nodes, `gpus` GPUs of each in use.
    `hcas` are its GPUs with the HCAs they use, by rank of the block placement; `seed` is all that chance depends on.
    With `traced` the world keeps what happens (`trace_lines`).

    Raises what `load_topology` raises.
    """

    hcas: list[Seat]

    def __init__(
        self,
        topology: str | Topology,
        nodes: int | None = None,
        gpus: int | None = None,
        *,
        seed: int = 0,
        profile: str = DEFAULT_PROFILE,
        traced: bool = False,
    ) -> None:
        super().__init__()
        chosen = parse_profile(profile)
        if isinstance(topology, str):
            topology = load_topology(topology, nodes, gpus, chosen.port_rate)
        self.topology = topology
        self.rng = random.Random(seed)
        self.manager = SubnetManager(topology, seed)
        self._state = SubnetState(self.manager, "virtual", 1.0)
        self._paths: dict[tuple[int, int, int], PathAnswer] = {}
        self._turns = self._make_turns()
        self.clock = VirtualClock(0)
        """That all nodes go by."""
        self._lines: list[str] = []
        self.completed: deque[tuple[Seat, WC]] = deque()
        self.operations = 0
        """Completions so far."""
        used = topology.active_gpus
        quantum = choose_quantum(topology, topology.hosts, used, VIRTUAL_QUANTUM_DILATION)
        self._nodes: list[WorldNode] = []
        self._by_lid: dict[int, WorldNode] = {}
        self._due: list[int | None] = [None] * topology.hosts
        self._news: set[int] = set()
        emulated: dict[int, EmulatedHca] = {}
        for number in range(topology.hosts):
            node = self._make_node(number, quantum, self.manager.routes.engine == "adaptive")
            node.on_news = _adder(self._news, number)
            if traced:
                node.trace(EventTrace(self._lines.append))
            for info in self._state.hcas(number):
                hca = EmulatedHca(info, random.Random(f"{seed}/{info.lid}/keys"), chosen, seed)
                node.add_hca(hca)
                emulated[info.lid] = hca
                self._by_lid[info.lid] = node
            self._nodes.append(node)
        self.pds = {lid: ProtectionDomain(lid) for lid in emulated}
        self.hcas = []
        for place in block_places(topology, topology.hosts, used):
            lid = self.manager.lid(place.hca_name)
            hca = emulated[lid]
            seat = Seat(self, lid, hca.engine, cqn=hca.new_handle(), location=gpu_memory(place.gpu))
            seat.emulated, seat.node = hca, self._nodes[place.node]
            hca.cqs[seat.cqn] = seat
            self.hcas.append(seat)

    def _make_turns(self) -> Turns:
        return Turns()

    def _make_node(self, number: int, quantum: int, adaptive: bool) -> WorldNode:
        return WorldNode(self, number, self._turns, quantum, adaptive=adaptive)

    # ---- what nodes ask of the subnet manager --------------------------------------------------------------------

    def node_of(self, lid: int) -> WorldNode | None:
        """The node that has an HCA."""
        return self._by_lid.get(lid)

    def path(self, slid: int, dlid: int, label: int) -> PathAnswer | None:
        """The path of a flow."""
        known = self._paths.get((slid, dlid, label))
        if known is None:
            known = self._paths[slid, dlid, label] = self._state.paths.tell(slid, dlid, label)
        return known

    def told(self, node: int, message: Message) -> None:
        """What a node's data path says to the subnet manager. Rates are told at the end of the step."""
        if isinstance(message, FlowStart):
            if self._state.flow_start(node, message, self.now):
                flow = (message.slid, message.dlid, message.label)
                self._paths.pop(flow, None)
                path = self.path(*flow)
                assert path is not None
                self._turns.call_soon(self._nodes[node].update_paths, [path])
        elif isinstance(message, FlowStop):
            self._state.flow_stop(node, message.flow, self.now)
        elif isinstance(message, FlowLanding):
            self._state.flow_lands(node, message, self.now)

    # ---- what applications do ------------------------------------------------------------------------------------

    def feed(self, hca: SimHca, event: Event) -> None:
        """As BaseWorld. What was posted is looked at in a step of this instant."""
        seat = cast(Seat, hca)
        if isinstance(event, Doorbell):
            seat.node.doorbell(seat.emulated, event.qpn)
        else:
            self.perform(hca, hca.engine.handle(event, self.now))

    def perform(self, hca: SimHca, actions: list[Action]) -> None:
        """As BaseWorld."""
        seat = cast(Seat, hca)
        for qpn, queues in seat.emulated.rings.items():
            qp = seat.engine.qp(qpn)
            if qp is not None:
                queues.state = int(qp.state)
        seat.node.perform(seat.emulated, actions)
        seat.node.touched()

    # ---- time ----------------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 10**12) -> bool:
        """As BaseWorld."""
        while True:
            self._settle()
            if until is not None and until():
                return True
            due = self._next_ns()
            if due is None:
                return until is None
            if due > limit_ns:
                raise RuntimeError(f"the world still has work at {due} ns, past the limit {limit_ns} ns")
            self._step(max(due, self.now))

    def _next_ns(self) -> int | None:
        for number in self._news:
            self._due[number] = self._nodes[number].due_ns()
        self._news.clear()
        due = [at for at in self._due if at is not None]
        if self._queue:
            due.append(self._queue[0][0])
        return min(due, default=None)

    def _step(self, now: int) -> None:
        self.now = self.clock.now = now
        for number, due in enumerate(self._due):
            if due is not None and due <= now:
                self._news.add(number)
                self._nodes[number].step(now, _nothing)
        self._settle()
        while self._queue and self._queue[0][0] <= now:
            heapq.heappop(self._queue)[2]()

    def _settle(self) -> None:
        """End what was begun at this instant: rates are told, and applications what is done."""
        self._turns.run()
        for number, rates in self._state.grants().items():
            self._nodes[number].set_rates(rates)
            self._news.add(number)
        while self.completed:
            seat, wc = self.completed.popleft()
            self.operations += 1
            seat.completions.append(wc)
            if seat.on_completion is not None:
                seat.on_completion(wc)

    def trace_lines(self) -> list[str]:
        """What happened so far, as `fauxrdma run --trace` writes it."""
        return in_order(self._lines)


def _adder(numbers: set[int], number: int) -> Callable[[], None]:
    return lambda: numbers.add(number)


def _nothing() -> None:
    pass
