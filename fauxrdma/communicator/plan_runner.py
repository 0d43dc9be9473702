"""The life of a communicator, from its rendezvous to its end, and the running of plans over its peers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from fauxrdma.collectives import Arithmetic, Plan, PlanExecutor
from fauxrdma.collectives.algorithms import ALGORITHMS
from fauxrdma.collectives.arithmetic import Array
from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.rank_paths import HCA, NVLINK
from fauxrdma.communicator.algorithm_choice import AlgorithmChoice
from fauxrdma.communicator.announcements import Announcer
from fauxrdma.communicator.call import Call
from fauxrdma.communicator.channel_set import ChannelSet, channel_slot_bytes
from fauxrdma.communicator.computing import Computing
from fauxrdma.communicator.layout import Layout
from fauxrdma.communicator.mesh import PeerMesh, Store
from fauxrdma.communicator.peer_set import COUNT_EVERY_S
from fauxrdma.communicator.plan_execution import execute
from fauxrdma.communicator.rendezvous import RendezvousStore
from fauxrdma.communicator.settings import CollectiveSettings
from fauxrdma.communicator.settings.agreement import shared_settings
from fauxrdma.communicator.settings.hca_filter import HcaFilter
from fauxrdma.communicator.statistics import Operation, RankStatistics, process_statistics
from fauxrdma.errors import CallMismatch, CollectiveError, ConfigError, ProtocolError, VerbsError
from fauxrdma.units import format_bytes
from fauxrdma.verbs import Context, get_device_list

__all__ = ["PlanRunner"]

CALL_WAIT_S = 1.0
"""How long a rank waits to hear what a peer called that disagrees with it, in wall time."""
CALL_NOTICE_S = 4.0
"""The same once it has left, which a peer that waits for it notices by the retries of its queue pair."""


def open_context(allowed: HcaFilter) -> Context:
    """This rank's HCA, FAUXRDMA_HCA, or the one that takes its place where NCCL_IB_HCA does not let it be used. Raises
    ConfigError when that leaves none, SetupError when there is no HCA daemon."""
    own = os.environ.get("FAUXRDMA_HCA") or "hca1"
    if allowed.allows(own):
        return Context(own)
    devices = get_device_list()
    compute = [device.name for device in devices if device.gpus]
    return Context(allowed.choose(own, compute or [device.name for device in devices]))


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
        channels: int | None = None,
        cross_nic: int | None = None,
        share_memory: bool | None = None,
        gpu: int | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank {rank} is not in a world of {world_size}: RANK must be 0..WORLD_SIZE-1")
        self.rank = rank
        self.world_size = world_size
        self.timeout_s = timeout_s
        self.statistics = RankStatistics(rank, world_size) if statistics is None else statistics
        settings = CollectiveSettings.from_env(ALGORITHMS).with_options(channels=channels, cross_nic=cross_nic)
        self._settings = settings
        self._own_store: RendezvousStore | None = None
        self._slot_bytes = slot_bytes
        self._lanes = lanes
        shared = settings.share_memory if share_memory is None else share_memory
        self._share_memory = shared
        intra_node = NVLINK if shared else HCA
        self._choice = AlgorithmChoice(slot_bytes=slot_bytes, lanes=lanes, intra_node=intra_node)
        self._calls = 0
        self._call: Call | None = None
        self._broken: str | None = None
        self._disagreed = False  # about settings: the others find out by the store, which therefore stays a while
        self._closed = False
        self._aborted: str | None = None
        self._under_way = threading.Lock()
        self._store = store
        self._prefix = prefix
        told = shared_settings(settings, share_memory=shared, slots=slots, slot_bytes=slot_bytes, lanes=lanes)
        self._announcer = Announcer() if rank == 0 and settings.verbose else None
        self._owns_context = context is None
        self._context = open_context(settings.hcas) if context is None else context

        def make_mesh(over: Context, prefix: str, slot_bytes: int, beside: PeerMesh | None) -> PeerMesh:
            return PeerMesh(
                rank, world_size, store, context=over, prefix=prefix, slots=slots, slot_bytes=slot_bytes,
                rail=settings.hcas.rail(over.hca.name), beside=beside, share_memory=shared, gpu=gpu,
                settings=told,
            )  # fmt: skip

        try:
            self._computing = Computing(self._context, rank)
            self._mesh = main = make_mesh(self._context, prefix, slot_bytes, None)
        except BaseException:
            if self._owns_context:
                self._context.close()
            raise
        self._channel_slot_bytes = smaller = channel_slot_bytes(slot_bytes, settings.channels)

        def make_channel(over: Context, channel: str) -> PeerMesh:
            return make_mesh(over, prefix + channel, smaller, main)

        self._channels = ChannelSet(main, settings.channels, settings.cross_nic, make_channel)
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

    def fabric_now_ns(self) -> int:
        """The time by which operations are recorded, in ns: fabric time, or wall time where nothing is shaped. It is
        the same for all ranks on one host."""
        return self._context.fabric_now_ns()

    @property
    def _meshes(self) -> tuple[PeerMesh, ...]:
        """The meshes in use: the main one and those of channels."""
        return (self._mesh, *self._channels.opened)

    # Running a plan.

    def _run(
        self, plan: Plan | ChannelledPlan, buffers: dict[str, Array], arithmetic: Arithmetic | None, nbytes: int
    ) -> None:
        """Run this rank's part of `plan` on `buffers` (one-dimensional, contiguous, all the plan's but `scratch`);
        `nbytes` is for the records."""
        if self._closed:
            raise CollectiveError(f"rank {self.rank}: this communicator is closed")
        with self._under_way:
            self._run_alone(plan, buffers, arithmetic, nbytes)

    def _run_alone(
        self, plan: Plan | ChannelledPlan, buffers: dict[str, Array], arithmetic: Arithmetic | None, nbytes: int
    ) -> None:
        if self._broken is not None:
            raise CollectiveError(
                f"rank {self.rank}: this communicator is broken since an earlier error: {self._broken}"
            )
        try:
            if self._announcer is not None:
                self._announcer.announce(plan, self.layout)
            self._computing.charge()
            wall = time.perf_counter_ns()
            start_ns = self._context.fabric_now_ns()
            deadline = time.monotonic() + self.timeout_s
            self._execute(plan, buffers, arithmetic, nbytes, deadline)
            end_ns = self._context.fabric_now_ns()
        except (CollectiveError, ConfigError) as error:
            self._disagreed = isinstance(error, ConfigError)
            self._break(str(error))
            raise
        except CallMismatch as error:
            self._tell_call()
            theirs = self._call_of(error.peer, CALL_WAIT_S)  # its queue pair stays: it may find out by itself
            self._break(str(error))
            theirs = theirs or self._call_of(error.peer, CALL_NOTICE_S) or "something that it has not said"
            text = f"rank {self.rank}: {error}: rank {self.rank} called {self._call}, rank {error.peer} called {theirs}"
            self._broken = text
            raise CollectiveError(text) from error
        except (ProtocolError, VerbsError) as error:
            text = f"rank {self.rank}: {plan.name} of {format_bytes(nbytes)} failed: {error}"
            self._break(text)
            raise CollectiveError(text) from error
        except BaseException as error:  # KeyboardInterrupt too: the plan is half done, so nothing can follow
            self._break(f"interrupted by {type(error).__name__}")
            raise
        finally:
            self._calls += 1
        for mesh in self._meshes:
            mesh.count_traffic(at_most_every_s=COUNT_EVERY_S)
        wall_ns = time.perf_counter_ns() - wall
        self.statistics.record(Operation(plan.name, nbytes, start_ns, end_ns, wall_ns, plan.algorithm))
        self._computing.resume()

    def _execute(
        self,
        plan: Plan | ChannelledPlan,
        buffers: dict[str, Array],
        arithmetic: Arithmetic | None,
        nbytes: int,
        deadline: float,
    ) -> None:
        if isinstance(plan, ChannelledPlan):
            parts: Sequence[Plan] = plan.parts
            meshes: Sequence[PeerMesh] = self._channels.meshes(len(parts))
        else:
            parts, meshes = (plan,), (self._mesh,)
            if "scratch" in plan.buffers:
                dtype = next(iter(buffers.values())).dtype
                buffers = {**buffers, "scratch": np.empty(plan.lengths(self.rank)["scratch"], dtype)}
        signature = 0 if self._call is None else self._call.signature
        runs = []
        for mesh, part in zip(meshes, parts, strict=True):
            mesh.connect(part.program(self.rank).peers)
            runs.append((mesh, PlanExecutor(part, self.rank, buffers, mesh.channels, arithmetic, signature)))
        what = f"{plan.name} of {format_bytes(nbytes)}"
        execute(runs, what, self._calls, self.timeout_s, deadline, lambda: self._aborted)

    def _call_key(self, rank: int) -> str:
        return f"{self._prefix}fauxrdma/{rank}/call"

    def _tell_call(self) -> None:
        """Leave word of what this rank called, for peers that disagree."""
        try:
            self._store.set(self._call_key(self.rank), str(self._call).encode())
        except Exception:  # the store may be gone with what broke, and raises its own kinds
            pass

    def _call_of(self, peer: int, within_s: float) -> str:
        """What `peer` called, once it says so; empty when it does not within `within_s` seconds."""
        deadline = time.monotonic() + within_s
        try:
            while not self._store.check([self._call_key(peer)]):
                if time.monotonic() > deadline:
                    return ""
                time.sleep(0.005)
            return bytes(self._store.get(self._call_key(peer))).decode()
        except Exception as error:  # a torch store raises its own kinds
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            return f"something that cannot be known ({first_line})"

    def _break(self, reason: str) -> None:
        """Nothing can follow; let the peers know, too."""
        self._broken = reason
        self._tell_call()
        for mesh in self._meshes:
            mesh.disconnect(reason)

    def abort(self, reason: str = "the communicator was aborted") -> None:
        """Give up, from any thread: a collective under way raises CollectiveError within half a second (one that still
        waits for a rank to connect, when the store's timeout passes), those of the peers when they notice, as they
        would notice this rank's death. Then, as after any error, only `close` is left; a new communicator can take its
        place, with a `prefix` of its own. Idempotent."""
        if self._aborted is None:
            self._aborted = reason
        if self._under_way.acquire(blocking=False):  # otherwise the call under way breaks it
            try:
                if self._broken is None and not self._closed:
                    self._break(reason)
            finally:
                self._under_way.release()

    def close(self) -> None:
        """Let the last puts finish (a few seconds at most), then free everything. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        for mesh in self._meshes:
            if self._broken is None:
                mesh.drain()
            try:
                mesh.count_traffic()
            except (VerbsError, OSError):
                pass  # the daemon is gone, and its counters with it
        self._channels.close()
        self._mesh.close()
        if self._owns_context:
            self._context.close()
        if self._own_store is not None:
            if self._broken is None or self._disagreed:
                self._own_store.close()
            else:
                self._own_store.close(leave_s=0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
