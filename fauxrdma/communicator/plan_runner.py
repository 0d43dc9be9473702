"""The life of a communicator, from its rendezvous to its end, and the running of plans over its peers."""

from __future__ import annotations

import os
import time
from typing import Any, Self

import numpy as np

from fauxrdma.collectives import Arithmetic, Plan, PlanExecutor
from fauxrdma.collectives.arithmetic import Array
from fauxrdma.collectives.rank_paths import HCA
from fauxrdma.communicator.algorithm_choice import AlgorithmChoice
from fauxrdma.communicator.layout import Layout
from fauxrdma.communicator.mesh import PROBE_S, PeerMesh, Store
from fauxrdma.communicator.rendezvous import RendezvousStore
from fauxrdma.communicator.statistics import Operation, RankStatistics, process_statistics
from fauxrdma.errors import CollectiveError, ConfigError, ProtocolError, VerbsError
from fauxrdma.units import format_bytes
from fauxrdma.verbs import Context

__all__ = ["PlanRunner"]


class PlanRunner:
    """The rank's side of a group: the peers, the plan under way, and whether anything can follow.

    The arguments are those of Communicator, which adds the operations. An error breaks the group: each further call
    raises CollectiveError at once, and only `close` is left.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        *,
        context: Context | None = None,
        prefix: str = "",
        timeout_s: float = 1800.0,
        slots: int = 8,
        slot_bytes: int = 2 << 20,
        lanes: int = 2,
        statistics: RankStatistics | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not in a world of {world_size}: RANK must be 0..WORLD_SIZE-1")
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.statistics = RankStatistics(rank, world_size) if statistics is None else statistics
        self._own_store: RendezvousStore | None = None
        self._slot_bytes = slot_bytes
        self._lanes = lanes
        self._choice = AlgorithmChoice(slot_bytes=slot_bytes, lanes=lanes, intra_node=HCA)
        self._broken: str | None = None
        self._closed = False
        self._store = store
        self._prefix = prefix
        self._mesh = PeerMesh(
            rank, world_size, store, context=context, prefix=prefix, slots=slots, slot_bytes=slot_bytes
        )
        self._context = self._mesh.context
        self.statistics.hca = self._context.hca.name
        self.statistics.clock = self._context.clock
        self.statistics.dilation = float(self._context.dilation)

    @classmethod
    def from_env(cls, *, timeout_s: float = 1800.0, prefix: str = "", **options: Any) -> Self:
        """The communicator of all ranks, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; no torch is needed.

        Rank 0 serves the rendezvous at MASTER_PORT. Raises ConfigError when a variable is missing.
        """
        if "WORLD_SIZE" not in os.environ:
            raise ConfigError(
                "WORLD_SIZE is not set: run under `fauxrdma run`, or set RANK, WORLD_SIZE, MASTER_ADDR/PORT"
            )
        store = RendezvousStore.from_env(timeout_s=min(timeout_s, 300.0))
        try:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            options.setdefault("statistics", process_statistics())
            made = cls(rank, world_size, store, prefix=prefix, timeout_s=timeout_s, **options)
        except BaseException:
            store.close(leave_s=0)
            raise
        made._own_store = store
        return made

    @property
    def layout(self) -> Layout:
        """Where all ranks sit. The first use waits until all ranks have made their communicator."""
        return self._mesh.layout

    # Running a plan.

    def _run(self, plan: Plan, buffers: dict[str, Array], arithmetic: Arithmetic | None, nbytes: int) -> None:
        """Run this rank's part of `plan` on `buffers` (one-dimensional, contiguous, all the plan's but `scratch`);
        `nbytes` is for the records."""
        if self._closed:
            raise CollectiveError(f"rank {self.rank}: this communicator is closed")
        if self._broken is not None:
            raise CollectiveError(
                f"rank {self.rank}: this communicator is broken since an earlier error: {self._broken}"
            )
        wall = time.perf_counter_ns()
        try:
            start_ns = self._context.fabric_now_ns()
            deadline = time.monotonic() + self.timeout_s
            self._mesh.connect(plan.program(self.rank).peers)
            self._execute(plan, buffers, arithmetic, nbytes, deadline)
            end_ns = self._context.fabric_now_ns()
        except CollectiveError as error:
            self._break(str(error))
            raise
        except (ProtocolError, VerbsError) as error:
            text = f"rank {self.rank}: {plan.name} of {format_bytes(nbytes)} failed: {error}"
            self._break(text)
            raise CollectiveError(text) from error
        except BaseException as error:  # KeyboardInterrupt too: the plan is half done, so nothing can follow
            self._break(f"interrupted by {type(error).__name__}")
            raise
        wall_ns = time.perf_counter_ns() - wall
        self.statistics.record(Operation(plan.name, nbytes, start_ns, end_ns, wall_ns, plan.algorithm))

    def _execute(
        self, plan: Plan, buffers: dict[str, Array], arithmetic: Arithmetic | None, nbytes: int, deadline: float
    ) -> None:
        mesh = self._mesh
        if "scratch" in plan.buffers:
            dtype = next(iter(buffers.values())).dtype
            buffers = {**buffers, "scratch": np.empty(plan.lengths(self.rank)["scratch"], dtype)}
        executor = PlanExecutor(plan, self.rank, buffers, mesh.channels, arithmetic)
        mesh.perform(executor.start(), deadline)
        heard = time.monotonic()
        while not executor.done:
            for endpoint in mesh.endpoints.values():
                if endpoint.failure is not None and executor.needs(endpoint.peer):
                    raise CollectiveError(f"{endpoint.failure} during {plan.name} of {format_bytes(nbytes)}")
            happened = mesh.wait(PROBE_S)
            now = time.monotonic()
            if happened:
                heard = now
                mesh.perform(executor.resume(), deadline)
                continue
            peer = executor.waiting_peer()
            if now > deadline:
                where = "" if peer is None else f" over {mesh.describe(peer)}"
                raise CollectiveError(
                    f"rank {self.rank}: {plan.name} of {format_bytes(nbytes)} not done after {self.timeout_s:g} s, "
                    f"waiting for {executor.waiting_for()}{where}"
                )
            if peer is not None and now - heard > PROBE_S / 2:
                mesh.endpoints[peer].probe()

    def _break(self, reason: str) -> None:
        """Nothing can follow; let the peers know, too."""
        self._broken = reason
        self._mesh.disconnect()

    def close(self) -> None:
        """Let the last puts finish (a few seconds at most), then free everything. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        if self._broken is None:
            self._mesh.drain()
        self._mesh.close()
        if self._own_store is not None:
            if self._broken is None:
                self._own_store.close()
            else:
                self._own_store.close(leave_s=0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
