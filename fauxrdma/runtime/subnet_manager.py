"""The subnet manager as a network service: the conversations of `fauxrdma.wire.fabric_messages` over TCP.

One connection per HCA daemon and per lab. Everything that arrives in one turn of the event loop is taken in first; then
rates are recomputed once and each daemon is told the ones that changed, in one message. A daemon whose connection
closes is a lost node: its flows end at once and the others get a directory without it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from dataclasses import dataclass, field

from fauxrdma.errors import ConfigError, RemoteProtocolError, SetupError
from fauxrdma.fabric.dilation import MAX_BURST, choose_dilation, choose_quantum
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.runtime.fabric_faults import FabricFaults
from fauxrdma.runtime.host_identity import boot_id
from fauxrdma.runtime.host_probe import host_bytes_per_s
from fauxrdma.runtime.link_changes import LinkChanges
from fauxrdma.runtime.manager_connection import ManagerConnection
from fauxrdma.runtime.multicast_manager import MulticastManager
from fauxrdma.runtime.subnet_state import SubnetState, check_version
from fauxrdma.runtime.time_service import TimeService
from fauxrdma.topology.graph import Topology
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    ClockGo,
    ClockLook,
    ClockRanks,
    ClockRanksKnown,
    ClockWord,
    Counters,
    Directory,
    FabricReady,
    FlowLanding,
    FlowsForgotten,
    FlowStart,
    FlowStop,
    FlushDone,
    FlushRequest,
    GidQuery,
    GidsChanged,
    LabHello,
    LabWelcome,
    LinkChange,
    MulticastApplied,
    MulticastJoin,
    MulticastLeave,
    NodeHello,
    NodeWelcome,
    PathAnswer,
    PathQuery,
    PathsApplied,
    PeerTraffic,
    RateGrant,
    ReadyQuery,
    ReportQuery,
    SweepQuery,
)
from fauxrdma.wire.fault_messages import FaultClear, FaultEvent, FaultQuery

__all__ = ["CLOCKS", "SubnetManagerService"]

VIRTUAL_QUANTUM_DILATION = 1000.0
CLOCKS = ("paced", "virtual", "none")
FLUSH_TIMEOUT_S = 5.0
"""A report waits this long for daemons to flush (a stopped one never does), then goes out with what is there."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Flush:
    """A report in the making: `waiting` are the nodes that have yet to flush."""

    lab: ManagerConnection
    reset: bool
    waiting: set[int] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class SubnetManagerService:
    """One fabric's subnet manager. `await start(host, port)`, later `await close()`.

    `clock` is "paced" or "none"; `dilation` None means: chosen from the topology and this host's measured throughput.
    `seed` goes to every daemon. `nodes_in_use`: how many nodes have ranks (default: all), for what is chosen by load.
    Fabric time starts at construction. Raises ConfigError for values that make no sense.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        clock: str = "paced",
        dilation: float | None = None,
        seed: int = 0,
        nodes_in_use: int | None = None,
    ) -> None:
        if clock not in CLOCKS:
            raise ConfigError(f"unknown clock {clock!r}: it is one of {', '.join(CLOCKS)}")
        if dilation is not None and not 1 <= dilation <= 1e9:
            raise ConfigError(
                f"dilation {dilation:g} is out of range: 1 is the speed of the real fabric, 1000 is 1000 times slower;"
                " at most 1e9"
            )
        nodes, gpus = topology.hosts if nodes_in_use is None else nodes_in_use, topology.active_gpus
        if clock == "none":
            dilation, quantum = 1.0, MAX_BURST // topology.mtu * topology.mtu
        elif clock == "virtual":
            # The quantum of a fixed dilation, so that nothing depends on this host's speed.
            dilation, quantum = 1.0, choose_quantum(topology, nodes, gpus, VIRTUAL_QUANTUM_DILATION)
        else:
            if dilation is None:
                dilation = choose_dilation(topology, nodes, gpus, host_bytes_per_s())
            quantum = choose_quantum(topology, nodes, gpus, dilation)
        self.topology = topology
        self.clock = clock
        self.dilation = dilation
        self.quantum = quantum
        self.seed = seed
        self.epoch_ns = time.monotonic_ns()
        self.state = SubnetState(SubnetManager(topology, seed), clock, dilation)
        for message in (*self.state.manager.routes.messages, *self.state.manager.routes.warnings):
            _log.warning("%s", message)
        self._server: asyncio.Server | None = None
        self._connections: set[ManagerConnection] = set()
        self._nodes: dict[int, ManagerConnection] = {}
        self._links = LinkChanges(self.state, self.now_ns, lambda: self._nodes, self._tell, self._schedule_regrant)
        self._faults = FabricFaults(
            self.state, self._links, topology.events, self.now_ns, lambda: self._nodes, self._tell,
            self._schedule_regrant,
        )  # fmt: skip
        self._multicast = MulticastManager(self.state, lambda: self._nodes, self._tell, self._trees_changed)
        self._ready_queries: list[ManagerConnection] = []
        self._flushes: dict[int, _Flush] = {}
        self._next_token = 1
        self._assembled = False
        self._regrant_due = False
        self.deadlock = asyncio.Event()
        """Set when, in virtual time, all are blocked for ever; `verdict` says who waits for what."""
        self.verdict = ""
        self._time: TimeService | None = None
        if clock == "virtual":
            self._time = TimeService(
                topology.hosts, self._tell, self._next_ns, self._carry_out, lambda: self._regrant_due,
                self._deadlocked,
            )  # fmt: skip

    def _next_ns(self) -> int | None:
        """When `_carry_out` has something to do."""
        return min((at for at in (self._faults.next_ns(), self._links.next_ns()) if at is not None), default=None)

    def _carry_out(self) -> None:
        self._faults.poll()
        self._links.poll()

    def _deadlocked(self, verdict: str) -> None:
        self.verdict = verdict
        self.deadlock.set()

    def now_ns(self) -> int:
        """Fabric time."""
        if self._time is not None:
            return self._time.now_ns()
        return int((time.monotonic_ns() - self.epoch_ns) / self.dilation)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listen; returns the address really used. Raises SetupError if that is not possible."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: ManagerConnection(self), host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise SetupError(
                    f"port {port} on {host} is in use: end what listens there, or give another port "
                    "(port 0 takes any free one)"
                ) from None
            raise SetupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        address = self._server.sockets[0].getsockname()
        return str(address[0]), int(address[1])

    async def close(self) -> None:
        """Stop listening and close every connection. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for connection in list(self._connections):
            connection.close(now=True)
        for flush in self._flushes.values():
            if flush.timer is not None:
                flush.timer.cancel()
        self._flushes.clear()
        self._multicast.close()
        self._links.close()
        self._faults.close()
        if self._time is not None:
            self._time.close()
        if server is not None:
            await server.wait_closed()

    # -- called by connections

    def connected(self, connection: ManagerConnection) -> None:
        """A peer connected; it has yet to introduce itself."""
        self._connections.add(connection)

    def disconnected(self, connection: ManagerConnection) -> None:
        """A connection is gone. If it was a node's, the node is lost."""
        self._connections.discard(connection)
        node = connection.node
        if node is None:
            return
        _log.info("node %d left the fabric", node)
        del self._nodes[node]
        self.state.leave(node, self.now_ns())
        self._schedule_regrant()
        self._links.node_left(node)
        if self._time is not None:
            self._time.left(node)
        self._multicast.node_left(node, [hca.lid for hca in self.state.hcas(node)])
        for token in list(self._flushes):
            self._flushed(token, node)
        if self._assembled:
            self._send_directory()

    def greet(self, connection: ManagerConnection, message: Message) -> None:
        """Handle the first message of a connection. Raises RemoteProtocolError to refuse it."""
        if isinstance(message, NodeHello):
            hcas = self.state.join(message)
            connection.node = message.node
            self._nodes[message.node] = connection
            if self._time is not None:
                self._time.keeper.join(message.node)
            connection.send(
                NodeWelcome(
                    version=CONTROL_VERSION,
                    fabric=self.topology.name,
                    clock=self.clock,
                    epoch_ns=self.epoch_ns,
                    dilation=self.dilation,
                    quantum=self.quantum,
                    seed=self.seed,
                    hcas=hcas,
                    routing=self.state.manager.routes.engine,
                    host_shape=self.topology.shape.to_dict(),
                    boot_id=boot_id(),
                    monotonic_ns=time.monotonic_ns(),
                )
            )
            self._links.node_joined(message.node)
            self._faults.node_joined(message.node)
            self._multicast.node_joined(message.node)
            if self.state.complete:
                self._assembled = True
            if self._assembled:
                self._send_directory()
            if self.state.complete:
                waiting, self._ready_queries = self._ready_queries, []
                for lab in waiting:
                    lab.send(FabricReady(self.state.directory()))
        elif isinstance(message, LabHello):
            check_version(message.version, "lab")
            connection.is_lab = True
            connection.send(
                LabWelcome(CONTROL_VERSION, self.topology.name, self.clock, self.dilation, self.topology.hosts)
            )
        else:
            raise RemoteProtocolError(
                f"a conversation starts with NodeHello or LabHello, not with {type(message).__name__}"
            )

    def from_node(self, connection: ManagerConnection, node: int, message: Message) -> None:
        """Handle a later message of an HCA daemon. Raises RemoteProtocolError to refuse it."""
        if isinstance(message, ClockWord) and self._time is not None:
            self._time.said(node, message)
        elif isinstance(message, FlowStart):
            if self.state.flow_start(node, message, self.now_ns()):
                self._links.spread(lambda: None)
            self._schedule_regrant()
        elif isinstance(message, FlowStop):
            self.state.flow_stop(node, message.flow, self.now_ns())
            self._schedule_regrant()
        elif isinstance(message, FlowLanding):
            self.state.flow_lands(node, message, self.now_ns())
            self._schedule_regrant()
        elif isinstance(message, Counters):
            self.state.count(node, message)
        elif isinstance(message, FlowsForgotten):
            self.state.flows_forgotten(node, message)
        elif isinstance(message, PeerTraffic):
            self.state.count_peers(node, message)
        elif isinstance(message, PathQuery):
            self._faults.start()
            self._faults.ask(lambda: connection.send(self._path_answer(node, message)))
        elif isinstance(message, GidQuery):
            connection.send(self.state.find_gid(message))
        elif isinstance(message, GidsChanged):
            connection.send(self.state.gids_changed(node, message))
        elif isinstance(message, PathsApplied):
            self._links.applied(node, message.token)
        elif isinstance(message, MulticastJoin):
            self._faults.ask(lambda: self._multicast.join(node, message))
        elif isinstance(message, MulticastLeave):
            self._multicast.leave(node, message)
        elif isinstance(message, MulticastApplied):
            self._multicast.applied(node, message.token)
        elif isinstance(message, FlushDone):
            self._flushed(message.token, node)
        else:
            raise RemoteProtocolError(f"an HCA daemon may not send {type(message).__name__} to the subnet manager")

    def from_lab(self, connection: ManagerConnection, message: Message) -> None:
        """Handle a later message of a lab. Raises RemoteProtocolError to refuse it."""
        if isinstance(message, ReadyQuery):
            if self.state.complete:
                connection.send(FabricReady(self.state.directory()))
            else:
                self._ready_queries.append(connection)
        elif isinstance(message, ReportQuery):
            if self._time is not None:
                self._time.when_at_rest(lambda: self._start_report(connection, message.reset))
            else:
                self._start_report(connection, message.reset)
        elif isinstance(message, PathQuery):
            connection.send(self.state.paths.describe(message.slid, message.dlid, message.label))
        elif isinstance(message, LinkChange):
            self._links.change(message, connection.send)
        elif isinstance(message, SweepQuery):
            self._links.query(connection.send)
        elif isinstance(message, ClockRanks):
            for node in set(message.nodes):
                own = [at for at, where in enumerate(message.nodes) if where == node]
                pids, names = [message.pids[at] for at in own], [message.names[at] for at in own]
                self._tell(node, ClockRanks([node] * len(own), pids, names))
            connection.send(ClockRanksKnown())
        elif isinstance(message, FaultEvent):
            self._faults.inject(message, connection.send)
            self._schedule_regrant()  # in virtual time the next deadline may be another
        elif isinstance(message, FaultClear):
            self._faults.clear(message, connection.send)
        elif isinstance(message, FaultQuery):
            connection.send(self._faults.list())
        else:
            raise RemoteProtocolError(f"a lab may not send {type(message).__name__} to the subnet manager")

    def told(self, node: int, message: Message) -> None:
        """A daemon was sent a message."""
        if self._time is not None and not isinstance(message, ClockGo | ClockLook):
            self._time.keeper.told(node)

    def _path_answer(self, node: int, query: PathQuery) -> PathAnswer:
        own = self.state.owns(node, query.slid)
        answer = self.state.paths.tell if own else self.state.paths.describe
        return answer(query.slid, query.dlid, query.label)

    # -- rates

    def _schedule_regrant(self) -> None:
        """Recompute after everything that this turn of the loop brought in has been handled."""
        if not self._regrant_due:
            self._regrant_due = True
            asyncio.get_running_loop().call_soon(self._regrant)

    def _regrant(self) -> None:
        self._regrant_due = False
        for node, rates in self.state.grants().items():
            connection = self._nodes.get(node)
            if connection is not None:
                connection.send(RateGrant(rates))
        if self._time is not None:
            self._time.turn()

    def _trees_changed(self) -> None:
        self.state.reroute(self.now_ns())
        self._schedule_regrant()
        self._links.spread(lambda: None)

    def _tell(self, node: int, message: Message) -> None:
        connection = self._nodes.get(node)
        if connection is not None:
            connection.send(message)

    def _send_directory(self) -> None:
        directory = Directory(self.state.directory())
        for connection in list(self._nodes.values()):
            connection.send(directory)

    # -- reports

    def _start_report(self, lab: ManagerConnection, reset: bool) -> None:
        token, self._next_token = self._next_token, self._next_token + 1
        flush = self._flushes[token] = _Flush(lab, reset, set(self._nodes))
        flush.timer = asyncio.get_running_loop().call_later(FLUSH_TIMEOUT_S, self._finish_report, token)
        for connection in list(self._nodes.values()):
            connection.send(FlushRequest(token))
        if not flush.waiting:
            self._finish_report(token)

    def _flushed(self, token: int, node: int) -> None:
        flush = self._flushes.get(token)
        if flush is not None:
            flush.waiting.discard(node)
            if not flush.waiting:
                self._finish_report(token)

    def _finish_report(self, token: int) -> None:
        flush = self._flushes.pop(token, None)
        if flush is None:
            return
        if flush.timer is not None:
            flush.timer.cancel()
        if flush.waiting:
            _log.warning("nodes %s did not flush their counters within %g s", sorted(flush.waiting), FLUSH_TIMEOUT_S)
        now = self.now_ns()
        report, faults = self.state.report(now), self._faults.list()
        report.faults, report.link_errors = faults.faults, faults.errors
        flush.lab.send(report)
        if flush.reset:
            self.state.reset(now)
