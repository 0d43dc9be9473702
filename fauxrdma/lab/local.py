"""A whole fabric on this machine: one subnet manager and one HCA daemon per emulated node, as processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from fauxrdma.errors import ConfigError, FabricUnhealthy, SetupError
from fauxrdma.fabric.record import write_fabric_record
from fauxrdma.fabric.transport import transport_of
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.lab.daemon_child import await_ready, obituary, start_daemon
from fauxrdma.lab.directory import LabDirectory
from fauxrdma.lab.ports import free_port, parse_endpoint, require_free_port
from fauxrdma.lab.processes import Child, Supervisor
from fauxrdma.lab.rank_environment import rank_environment
from fauxrdma.lab.record import RunningLab, record_lab
from fauxrdma.lab.subnet_manager_link import SubnetManagerLink
from fauxrdma.runtime.event_trace import in_order
from fauxrdma.topology.computing import COMPUTE_VARIABLE, check_ranks, compute_cost
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.placement import Placement, choose_placement
from fauxrdma.wire.fabric_messages import FabricReport, PathAnswer, SweepReport
from fauxrdma.wire.fault_messages import FaultEvent, FaultList

__all__ = ["CLOCKS", "LocalLab"]

T = TypeVar("T")
CLOCKS = ("paced", "virtual", "none")
_READY_TIMEOUT_S = 60.0


class LocalLab:
    """A running fabric. A context manager::

        with LocalLab("fat-tree", nodes=2, gpus=2) as lab:
            subprocess.run(command, env={**os.environ, **lab.rank_env(node=0, local_rank=0)})
            print(lab.report())

    `fabric` is a preset or a YAML file; `gpus` GPUs of each of `nodes` nodes take part. `clock` is ``paced`` (shaped by
    the fabric model) or ``none`` (as fast as the host goes); `dilation` is ``auto`` or a number k: one nanosecond of
    fabric time lasts k of wall time. `profile` says what the HCAs can do, and how fast their ports are
    (ib/profiles.py; default: as the specification has it, at the rate of the cables). `routing` is an engine of
    fabric/routing, the fabric's unless given. `placement` says which rank sits where (topology/placement: ``block``,
    ``cyclic``, ``rail-aligned``, ``random``, a file), on the nodes `on_nodes` of the fabric, all unless given. `within`
    is the folder for the lab's private directory; `verbose` daemons log who comes and goes. With
    clock ``virtual``, `trace` is a file that gets what happened (runtime/event_trace.py) when the lab is left.
    `compute` is what computing costs ranks in virtual time (topology/computing.py), the fabric's unless given.
    `events` is a file of faults to come, besides those in the fabric's own (docs/faults.md).

    Entering starts the processes and returns when all nodes are in the fabric;
    leaving ends them all. Raises ConfigError for a fabric, count or option that cannot be used, SetupError when the
    machine lacks something, FabricUnhealthy when a daemon ends early.
    """

    def __init__(
        self,
        fabric: str,
        nodes: int,
        gpus: int,
        *,
        clock: str = "paced",
        dilation: str | float = "auto",
        seed: int = 0,
        log_dir: str | Path | None = None,
        listen: str = "127.0.0.1:0",
        master_port: int = 0,
        profile: str | None = None,
        routing: str | None = None,
        placement: str = "block",
        on_nodes: Sequence[int] | None = None,
        within: Path | None = None,
        verbose: bool = False,
        trace: str | Path | None = None,
        compute: str | None = None,
        events: str | Path | None = None,
    ) -> None:
        if nodes < 1 or gpus < 1:
            raise ConfigError(f"a fabric needs at least one node and one GPU, got {nodes} nodes and {gpus} GPUs")
        if clock not in CLOCKS:
            raise ConfigError(f"there is no clock {clock!r}: choose paced, virtual or none")
        _check_dilation(dilation)
        if trace is not None and clock != "virtual":
            raise ConfigError(f"a trace is of virtual time: take clock virtual, not {clock}, or leave the trace away")
        chosen = parse_profile(profile or DEFAULT_PROFILE)
        self.profile = chosen.spec
        self.fabric = fabric
        self.nodes = nodes
        self.gpus = gpus
        self.clock = clock
        self.seed = seed
        self.master_port = master_port
        self.topology: Topology = load_topology(fabric, nodes, gpus, chosen.port_rate).with_routing(routing)
        self.routing = routing
        self.placement: Placement = choose_placement(placement, self.topology, gpus, on_nodes=on_nodes, seed=seed)
        self.topology.active_gpus = self.placement.active_gpus
        self.compute = self.topology.compute if compute is None else compute
        check_ranks(self.compute, self.world_size)
        self._events = str(events) if events is not None else None
        if self._events is not None:
            from fauxrdma.topology.events_file import load_events  # its parser takes long to import

            load_events(self._events, self.topology)  # or say now what is wrong with it
        self.dilation = 1.0
        self.subnet_manager: tuple[str, int] = parse_endpoint(listen, "--listen")
        self.supervisor = Supervisor()
        self._dilation_option = str(dilation)
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._trace = Path(trace) if trace is not None else None
        self._within = within
        self._verbose = verbose
        self._directory: LabDirectory | None = None
        self._manager: Child | None = None
        self._hcas: list[Child] = []
        self._link: SubnetManagerLink | None = None

    def __enter__(self) -> LocalLab:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the lab consists of

    @property
    def world_size(self) -> int:
        """Ranks of the job: one for each seat of the placement."""
        return self.placement.world_size

    @property
    def daemons(self) -> list[int]:
        """Process ids of the HCA daemons, by node."""
        return [child.pid for child in self._hcas]

    @property
    def subnet_manager_pid(self) -> int:
        """Process id of the subnet manager."""
        return self._running_manager().pid

    @property
    def directory(self) -> Path:
        """The lab's private directory: sockets, logs, rank statistics. Gone when the lab is closed."""
        if self._directory is None:
            raise SetupError("the lab is not running: use it as `with LocalLab(...) as lab:`")
        return self._directory.path

    @property
    def stats_dir(self) -> Path:
        """Where each rank writes rank{R}.json."""
        return self.directory / "stats"

    @property
    def _fabric_record(self) -> Path:
        """The file that says to ranks what fabric they are on."""
        return self.directory / "fabric.json"

    @property
    def may_tie_children(self) -> bool:
        """Whether children may be tied to this thread, because it is the main one: the parent-death signal comes when
        the *thread* that started a process ends, not only when the process does."""
        return threading.current_thread() is threading.main_thread()

    def socket_path(self, node: int) -> Path:
        """The Unix socket of a node's HCA daemon."""
        return self.directory / f"n{node}.sock"

    def rank_env(self, node: int, local_rank: int) -> dict[str, str]:
        """What the rank that is the `local_rank`-th on `node` needs in its environment, the way torchrun sets it, and
        ours; merge it into os.environ. Raises ConfigError for one that is not there."""
        ranks = self.placement.ranks_on(node)
        if not 0 <= local_rank < len(ranks):
            there = f"has local ranks 0..{len(ranks) - 1}" if ranks else "has none"
            raise ConfigError(
                f"there is no local rank {local_rank} on node {node}, which {there}: the lab has nodes "
                f"0..{self.nodes - 1} and {self.world_size} ranks"
            )
        return self.env_of_rank(ranks[local_rank])

    def env_of_rank(self, rank: int) -> dict[str, str]:
        """The same for a rank by its number. Raises ConfigError for one that the job does not have."""
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"there is no rank {rank}: the lab has ranks 0..{self.world_size - 1}")
        env = rank_environment(
            self.placement,
            rank,
            master=("127.0.0.1", self.master_port),
            socket=self.socket_path(self.placement.places[rank].node),
            stats_dir=self.stats_dir,
            record=self._fabric_record,
        )
        if self.clock == "virtual" and self.compute is not None:
            env[COMPUTE_VARIABLE] = str(compute_cost(self.compute, rank))
        return env

    def report(self, reset: bool = False) -> FabricReport:
        """What the fabric carried since the start or the last reset."""
        return self._ask(lambda link: link.report(reset))

    def link_down(self, link: str) -> str:
        """Have a cable fail, both ways: ``leaf1->spine1:2`` (either direction), or ``n0.hca1`` for an HCA's own.

        Returns its full name once what crosses it is lost. The subnet manager hears of it by a trap and sweeps, all in
        fabric time; `swept` waits for that. Raises ConfigError for what is no cable.
        """
        return self._ask(lambda manager: manager.change_link(link, up=False))

    def link_up(self, link: str) -> str:
        """Plug a cable in again: it carries data once the subnet manager has swept. Raises as `link_down`."""
        return self._ask(lambda manager: manager.change_link(link, up=True))

    def inject(self, kind: str, target: str = "", **fields: Any) -> int:
        """Have a fault begin now, or at `at_ns` of the fabric's timeline; its number. `kind` and the other `fields` are
        those of `fauxrdma.wire.fault_messages.FaultEvent`, as ``inject("packet-loss", "n0.hca1", loss=0.01)``. Returns
        when every daemon goes by it. Raises ConfigError for what there is not."""
        return self._ask(lambda manager: manager.inject(FaultEvent(kind, target, **fields)))

    def clear_fault(self, number: int = 0) -> list[int]:
        """End a fault, or all; the numbers of those that were not over."""
        return self._ask(lambda manager: manager.clear_fault(number))

    def faults(self) -> FaultList:
        """All faults of the fabric, and what links did to packets."""
        return self._ask(lambda manager: manager.faults())

    def swept(self, timeout_s: float = 60.0) -> SweepReport:
        """Wait until the subnet manager has swept after the last change of a link and all daemons go by its tables."""
        return self._ask(lambda link: link.swept(timeout_s))

    def path(self, source: str, target: str, qp_num: int = 0) -> PathAnswer:
        """The path from one HCA (``n0.hca1``) to another as the subnet manager has it now; on Ethernet that of what
        queue pair `qp_num` of `source` sends. Raises ConfigError for what is no HCA."""
        lids = {hca.name: lid for lid, hca in enumerate(self.topology.hcas(), start=1)}
        for name in (source, target):
            if name not in lids:
                raise ConfigError(f"{self.topology.name} has no HCA {name!r}: they are called n0.hca1 and so on")
        label = qp_num if transport_of(self.topology).flow_entropy else 0
        return self._ask(lambda manager: manager.path(lids[source], lids[target], label))

    def await_ranks(self, pids: Sequence[int]) -> None:
        """Have virtual time wait for these processes, by rank, also before they have opened a device. Harmless with
        other clocks."""
        if self.clock == "virtual":
            nodes = [self.placement.places[rank].node for rank in range(len(pids))]
            names = [f"rank {rank} (node {node})" for rank, node in enumerate(nodes)]
            self._ask(lambda manager: manager.await_ranks(nodes, list(pids), names))

    def _ask(self, question: Callable[[SubnetManagerLink], T]) -> T:
        self.check()
        if self._link is None:
            raise SetupError("the lab is not running: use it as `with LocalLab(...) as lab:`")
        try:
            return question(self._link)
        except FabricUnhealthy:
            self.supervisor.pump(0.2)
            self.check()  # names the process that died, when one did
            raise

    def dead(self) -> list[Child]:
        """Daemons that ended although the lab runs, in the order in which they were seen to end."""
        return sorted(
            (child for child in self._all_daemons() if not child.running), key=lambda child: child.end_order or 0
        )

    def check(self) -> None:
        """Raise FabricUnhealthy, with its last words, when a daemon has died."""
        self.supervisor.pump(0)
        for child in self.dead():
            raise FabricUnhealthy(obituary(child))

    # Start and end

    def _start(self) -> None:
        if self._directory is not None:
            raise SetupError("the lab is already running")
        host, port = self.subnet_manager
        if port:
            require_free_port(host, port, "--listen")
        if self.master_port:
            require_free_port("127.0.0.1", self.master_port, "--master-port")
        else:
            self.master_port = free_port()
        self._directory = LabDirectory(self._within)
        self.stats_dir.mkdir()
        write_fabric_record(self._fabric_record, self.topology, self.seed)
        logs = self._log_dir or self.directory
        logs.mkdir(parents=True, exist_ok=True)

        deadline = time.monotonic() + _READY_TIMEOUT_S
        size = ["--nodes", str(self.nodes), "--gpus", str(self.placement.gpus_to_pace(self.topology))]
        size += ["--nodes-in-use", str(len(self.placement.nodes))]
        time_options = ["--clock", self.clock, "--dilation", self._dilation_option, "--seed", str(self.seed)]
        routing = ["--routing", self.routing] if self.routing else []
        options = [*time_options, *routing, *(["--events", self._events] if self._events is not None else [])]
        self._manager = self._start_daemon(
            "subnet manager",
            "daemons.subnet_manager",
            [self.fabric, *size, "--profile", self.profile, "--listen", f"{host}:{port}", *options],
            logs / "subnet-manager.log",
        )
        ready = self._await_ready(self._manager, deadline)
        self.subnet_manager = (str(ready["host"]), int(ready["port"]))
        address = f"{self.subnet_manager[0]}:{self.subnet_manager[1]}"
        for node in range(self.nodes):
            where = ["--socket", str(self.socket_path(node)), "--listen", "127.0.0.1:0"]
            if self._trace is not None:
                where += ["--trace", str(self._trace_of(node))]
            child = self._start_daemon(
                f"HCA daemon of node {node}",
                "daemons.hca",
                ["--node", str(node), "--subnet-manager", address, "--profile", self.profile, *where],
                logs / f"hca-n{node}.log",
            )
            self._hcas.append(child)
        for child in self._hcas:
            self._await_ready(child, deadline)
        self._link = SubnetManagerLink(*self.subnet_manager)
        self.dilation = self._link.welcome.dilation
        self._link.wait_ready(max(1.0, deadline - time.monotonic()))
        record_lab(RunningLab(self.fabric, *self.subnet_manager, str(self.directory)))

    def _start_daemon(self, name: str, module: str, arguments: list[str], log: Path) -> Child:
        tied = self.may_tie_children
        return start_daemon(self.supervisor, name, module, arguments, log, tied=tied, verbose=self._verbose)

    def _await_ready(self, child: Child, deadline: float) -> dict[str, Any]:
        return await_ready(self.supervisor, child, deadline, _READY_TIMEOUT_S)

    def _running_manager(self) -> Child:
        if self._manager is None:
            raise SetupError("the lab is not running: use it as `with LocalLab(...) as lab:`")
        return self._manager

    def _all_daemons(self) -> list[Child]:
        return [*([self._manager] if self._manager is not None else []), *self._hcas]

    def close(self) -> None:
        """End every process of the lab and remove its directory. Idempotent."""
        try:
            if self._link is not None:
                self._link.close()
                self._link = None
            daemons = self._all_daemons()
            self.supervisor.stop([child for child in self.supervisor.children if child not in daemons])
            self.supervisor.stop(self._hcas)
            self._write_trace()
        finally:
            self.supervisor.close()
            if self._directory is not None:
                self._directory.remove()
                self._directory = None

    def _trace_of(self, node: int) -> Path:
        return self.directory / f"trace-n{node}.jsonl"

    def _write_trace(self) -> None:
        """Put the traces of all nodes together, once their daemons have ended."""
        if self._trace is not None and self._directory is not None:
            parts = [self._trace_of(node) for node in range(self.nodes)]
            lines = [line for part in parts if part.exists() for line in part.read_text().splitlines(keepends=True)]
            self._trace.write_text("".join(in_order(lines)))


def _check_dilation(dilation: str | float) -> None:
    if dilation == "auto":
        return
    try:
        usable = float(dilation) >= 1
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"dilation must be auto or a number k >= 1, got {dilation!r}")
