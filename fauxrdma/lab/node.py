"""One node of a fabric whose other nodes are elsewhere: its HCA daemon and its ranks, on this machine or container.

Engines (compose, Swarm, Kubernetes, Slurm, a shell on each host) place nodes and restart them; this is what they place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from fauxrdma.errors import FabricUnhealthy, SetupError
from fauxrdma.fabric.record import write_fabric_record
from fauxrdma.lab.daemon_child import await_ready, obituary, start_daemon
from fauxrdma.lab.directory import LabDirectory
from fauxrdma.lab.file import LabFile
from fauxrdma.lab.processes import Child, Supervisor
from fauxrdma.lab.rank_environment import rank_environment
from fauxrdma.lab.subnet_manager_link import SubnetManagerLink
from fauxrdma.topology.placement import Placement

__all__ = ["LabNode"]

_ASK_AGAIN_S = 0.25
_PUMP_S = 60.0


class LabNode:
    """Node `node` of the lab of a file, joined to the subnet manager at `manager`. A context manager: entering returns
    when every node is in the fabric, `patience_s` at most; leaving ends the daemon.

    `listen` is where the HCA daemon listens for others; `socket` its Unix socket for ranks (default: in a private
    folder). `master` is the host and port of rank 0's rendezvous. It has what `run_job` needs of a lab. Raises
    SetupError for a manager that does not come, FabricUnhealthy for nodes that do not.
    """

    def __init__(
        self,
        lab_file: LabFile,
        node: int,
        manager: tuple[str, int],
        master: tuple[str, int],
        *,
        listen: str = "0.0.0.0:0",
        socket: str | None = None,
        patience_s: float = 120.0,
    ) -> None:
        self.node = node
        self.supervisor = Supervisor()
        self._lab_file = lab_file
        self._manager = manager
        self._master = master
        self._listen = listen
        self._socket = socket
        self._patience_s = patience_s
        self._directory: LabDirectory | None = None
        self._daemon: Child | None = None

    def __enter__(self) -> LabNode:
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

    @property
    def placement(self) -> Placement:
        """Of all ranks of the job."""
        return self._lab_file.placement

    @property
    def world_size(self) -> int:
        """Ranks of the job, on all nodes."""
        return self.placement.world_size

    @property
    def may_tie_children(self) -> bool:
        """See LocalLab."""
        return threading.current_thread() is threading.main_thread()

    @property
    def directory(self) -> Path:
        """The private folder of this node. Raises SetupError when it is not running."""
        if self._directory is None:
            raise SetupError("the node is not running: use it as `with LabNode(...) as node:`")
        return self._directory.path

    @property
    def stats_dir(self) -> Path:
        """Where the ranks of this node write rank{R}.json."""
        return self.directory / "stats"

    @property
    def _fabric_record(self) -> Path:
        return self.directory / "fabric.json"

    @property
    def socket_path(self) -> str:
        """The Unix socket of the HCA daemon."""
        return self._socket or str(self.directory / f"n{self.node}.sock")

    def env_of_rank(self, rank: int) -> dict[str, str]:
        """What a rank needs in its environment, as LocalLab has it."""
        return rank_environment(
            self.placement,
            rank,
            master=self._master,
            socket=self.socket_path,
            stats_dir=self.stats_dir,
            record=self._fabric_record,
        )

    def await_ranks(self, pids: Sequence[int]) -> None:
        """Nothing: lab files refuse virtual time for nodes that are not processes of one machine."""

    def dead(self) -> list[Child]:
        """The daemon, if it has ended."""
        return [self._daemon] if self._daemon is not None and not self._daemon.running else []

    def check(self) -> None:
        """Raise FabricUnhealthy when the daemon has died."""
        self.supervisor.pump(0)
        for child in self.dead():
            raise FabricUnhealthy(obituary(child))

    def keep(self) -> None:
        """Serve until a signal raises. Raises FabricUnhealthy when the daemon dies."""
        while True:
            self.supervisor.pump(_PUMP_S)
            self.check()

    def linger(self, wall_s: float) -> None:
        """Serve so long: ranks of other nodes may still read what this node's memory holds."""
        deadline = time.monotonic() + wall_s
        while (left := deadline - time.monotonic()) > 0:
            self.supervisor.pump(left)
            self.check()

    def _start(self) -> None:
        deadline = time.monotonic() + self._patience_s
        with self._find_manager(deadline) as link:
            self._directory = LabDirectory()
            self.stats_dir.mkdir()
            form = self._lab_file.form
            write_fabric_record(self._fabric_record, self._lab_file.topology, form.seed)
            where = ["--socket", self.socket_path, "--listen", self._listen, "--profile", form.profile]
            manager = f"{self._manager[0]}:{self._manager[1]}"
            self._daemon = start_daemon(
                self.supervisor,
                f"HCA daemon of node {self.node}",
                "daemons.hca",
                ["--node", str(self.node), "--subnet-manager", manager, *where],
                self.directory / "hca.log",
                tied=self.may_tie_children,
                verbose=True,
            )
            await_ready(self.supervisor, self._daemon, deadline, self._patience_s)
            link.wait_ready(max(1.0, deadline - time.monotonic()))

    def _find_manager(self, deadline: float) -> SubnetManagerLink:
        """Engines start everything at once, so the manager, or its name, may come later than this node."""
        while True:
            try:
                return SubnetManagerLink(*self._manager)
            except SetupError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_ASK_AGAIN_S)

    def close(self) -> None:
        """End the daemon and the ranks, remove the folder. Idempotent."""
        try:
            self.supervisor.close()
        finally:
            if self._directory is not None:
                self._directory.remove()
                self._directory = None
