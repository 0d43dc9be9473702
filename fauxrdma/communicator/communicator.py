"""Collectives on numpy arrays over emulated queue pairs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fauxrdma.collectives import (
    Arithmetic,
    NumpyArithmetic,
    Plan,
    PlanExecutor,
    chunk_elements,
    dissemination_barrier,
    ring_all_gather,
    ring_broadcast,
    ring_reduce_scatter,
)
from fauxrdma.collectives.algorithms import PIPELINE_CHUNKS, all_reduce_plan
from fauxrdma.collectives.direct import all_to_all, gather, scatter
from fauxrdma.collectives.partition import SMALLEST_PIPELINED_BYTES
from fauxrdma.collectives.trees import tree_reduce
from fauxrdma.communicator.mesh import PROBE_S, PeerMesh, Store
from fauxrdma.communicator.rendezvous import RendezvousStore
from fauxrdma.communicator.statistics import Operation, RankStatistics, process_statistics
from fauxrdma.errors import CollectiveError, ConfigError, LocalProtocolError, ProtocolError, VerbsError
from fauxrdma.units import format_bytes
from fauxrdma.verbs import Context

__all__ = ["Communicator"]

Array = NDArray[Any]
ArithmeticFactory = Callable[[str, np.dtype[Any], int], Arithmetic]


_kept_all_reduce = lru_cache(maxsize=256)(all_reduce_plan)
"""Sizes repeat in training, so plans are kept."""


@lru_cache(maxsize=256)
def _plan(name: str, count: int, itemsize: int, n: int, root: int, slot_bytes: int, lanes: int) -> Plan:
    """The plan for a collective; sizes repeat in training, so they are kept."""
    if name in ("broadcast", "reduce"):
        chunk = chunk_elements(count, itemsize, slot_bytes, PIPELINE_CHUNKS, smallest_bytes=SMALLEST_PIPELINED_BYTES)
        make = ring_broadcast if name == "broadcast" else tree_reduce
        return make(count, n, root, chunk=chunk)
    chunk = chunk_elements(count, itemsize, slot_bytes, lanes)
    if name == "reduce_scatter":
        return ring_reduce_scatter(count, n, chunk=chunk, lanes=lanes)
    return ring_all_gather(count, n, chunk=chunk, lanes=lanes)


class Communicator:
    """A group of `world_size` ranks that run collectives together; this process is rank `rank` of it.

    `store` is where the ranks leave their addresses for each other, under keys that begin with `prefix`; two
    communicators over one store need different prefixes. `context` is an open verbs Context (default: opens the HCA
    that FAUXRDMA_SOCKET and FAUXRDMA_HCA name, and closes it again). `timeout_s` bounds each collective, in wall time.
    `slots` x `slot_bytes` is the staging per peer and direction and `lanes` the number of chunks in flight in a ring
    (at most half the slots); these must be the same on all ranks.

    Arrays may be of any shape, dtype (bool, integers, floats, complex) and layout; results land in place. All ranks
    must call the same collectives in the same order with the same sizes. Not for use by two threads at a time. Queue
    pairs are made when a plan first needs them.

    Every method raises CollectiveError when a peer or the fabric fails or the timeout passes; after that the
    communicator is broken: each further call raises at once and only `close` is left.
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
        self._broken: str | None = None
        self._closed = False
        self._mesh = PeerMesh(
            rank, world_size, store, context=context, prefix=prefix, slots=slots, slot_bytes=slot_bytes
        )
        self._context = self._mesh.context
        self.statistics.hca = self._context.hca.name
        self.statistics.clock = self._context.clock
        self.statistics.dilation = float(self._context.dilation)

    @classmethod
    def from_env(cls, *, timeout_s: float = 1800.0, prefix: str = "", **options: Any) -> Communicator:
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

    # The collectives.

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        algorithm: str = "ring",
        arithmetic: ArithmeticFactory = NumpyArithmetic,
    ) -> None:
        """Replace `array` on every rank by the reduction over all ranks. `op`: sum, avg, product, min, max.

        `algorithm` is one of `collectives.algorithms.ALL_REDUCE`, the same on all ranks. The order of reduction is
        fixed (see docs/collectives.md); the ring's is gloo's. Raises CollectiveError, and LocalProtocolError for an
        operation the dtype does not have or an unknown algorithm.
        """
        reduction = arithmetic(op, array.dtype, self.world_size)
        flat = self._flat_output(array, copy=True)
        plan = _kept_all_reduce(algorithm, flat.size, self.world_size, flat.itemsize, self._slot_bytes, self._lanes)
        self._run(plan, {"data": flat}, reduction, flat.nbytes)
        self._put_back(array, flat)

    def reduce_scatter(
        self, output: Array, array: Array, op: str = "sum", *, arithmetic: ArithmeticFactory = NumpyArithmetic
    ) -> None:
        """Reduce `array` (world_size x output.size elements) over all ranks; this rank gets its block in `output`."""
        reduction = arithmetic(op, array.dtype, self.world_size)
        self._check_pair("reduce_scatter", array, output, array.size, output.size * self.world_size)
        flat = self._flat_output(output, copy=False)
        plan = self._make_plan("reduce_scatter", flat.size, flat.itemsize)
        source = np.ascontiguousarray(array).reshape(-1)
        self._run(plan, {"input": source, "output": flat}, reduction, source.nbytes)
        self._put_back(output, flat)

    def all_gather(self, output: Array, array: Array) -> None:
        """Put every rank's `array` into `output` (world_size x array.size elements), in rank order."""
        self._check_pair("all_gather", array, output, output.size, array.size * self.world_size)
        flat = self._flat_output(output, copy=False)
        plan = self._make_plan("all_gather", array.size, flat.itemsize)
        source = np.ascontiguousarray(array).reshape(-1)
        self._run(plan, {"input": source, "output": flat}, None, flat.nbytes)
        self._put_back(output, flat)

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace `array` on every rank by that of rank `root`."""
        flat = self._flat_output(array, copy=self.rank == root)
        plan = self._make_plan("broadcast", flat.size, flat.itemsize, root)
        self._run(plan, {"data": flat}, None, flat.nbytes)
        self._put_back(array, flat)

    def reduce(
        self, array: Array, root: int = 0, op: str = "sum", *, arithmetic: ArithmeticFactory = NumpyArithmetic
    ) -> None:
        """Replace `array` on rank `root` by the reduction over all ranks; the others' stay as they are."""
        reduction = arithmetic(op, array.dtype, self.world_size)
        flat = self._flat_output(array, copy=True) if self.rank == root else array.flatten()
        plan = self._make_plan("reduce", flat.size, flat.itemsize, root)
        self._run(plan, {"data": flat}, reduction, flat.nbytes)
        if self.rank == root:
            self._put_back(array, flat)

    def gather(self, output: Array | None, array: Array, root: int = 0) -> None:
        """Put every rank's `array` into `output` (world_size x array.size elements) of rank `root`, in rank order;
        `output` is None elsewhere."""
        source = np.ascontiguousarray(array).reshape(-1)
        flat = self._at_root("gather", output, array, root)
        chunk = self._chunk(source.size, source.itemsize)
        plan = gather([source.size] * self.world_size, root, chunk=chunk, lanes=self._lanes)
        self._run(plan, {"input": source, "output": flat}, None, source.nbytes * self.world_size)
        if output is not None and self.rank == root:
            self._put_back(output, flat)

    def scatter(self, output: Array, array: Array | None, root: int = 0) -> None:
        """Rank r gets block r of the root's `array` (world_size x output.size elements) in `output`; `array` is None
        elsewhere."""
        flat = self._flat_output(output, copy=False)
        source = np.ascontiguousarray(self._at_root("scatter", array, output, root, copy=True)).reshape(-1)
        chunk = self._chunk(flat.size, flat.itemsize)
        plan = scatter([flat.size] * self.world_size, root, chunk=chunk, lanes=self._lanes)
        self._run(plan, {"input": source, "output": flat}, None, flat.nbytes * self.world_size)
        self._put_back(output, flat)

    def all_to_all(self, output: Array, array: Array, counts: Sequence[Sequence[int]] | None = None) -> None:
        """Send block b of `array` to rank b, and get block a of `output` from rank a.

        `counts[a][b]`: elements from rank a to rank b, the same table on all ranks; default: equal blocks.
        """
        n = self.world_size
        if array.dtype != output.dtype:
            raise LocalProtocolError(f"all_to_all: the input is {array.dtype} and the output {output.dtype}")
        if counts is None:
            if array.size % n or array.size != output.size:
                raise LocalProtocolError(
                    f"all_to_all over {n} ranks: input and output must have one size, a multiple of {n}; they have "
                    f"{array.size} and {output.size} elements. For unequal blocks give counts"
                )
            counts = [[array.size // n] * n for _ in range(n)]
        source = np.ascontiguousarray(array).reshape(-1)
        flat = self._flat_output(output, copy=False)
        chunk = self._chunk(max(map(max, counts)), source.itemsize)
        plan = all_to_all(counts, chunk=chunk, lanes=self._lanes)
        self._run(plan, {"input": source, "output": flat}, None, source.nbytes)
        self._put_back(output, flat)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._run(dissemination_barrier(self.world_size), {}, None, 0)

    # Arrays.

    def _make_plan(self, name: str, count: int, itemsize: int, root: int = 0) -> Plan:
        return _plan(name, count, itemsize, self.world_size, root, self._slot_bytes, self._lanes)

    def _chunk(self, block: int, itemsize: int) -> int:
        """Elements per message for blocks of `block` elements: all ranks must come to the same number."""
        return chunk_elements(block, itemsize, self._slot_bytes, self._lanes)

    def _at_root(self, name: str, whole: Array | None, part: Array, root: int, copy: bool = False) -> Array:
        """The array that only the root has, flat; an empty one elsewhere."""
        if self.rank != root:
            return np.empty(0, part.dtype)
        if whole is None:
            raise LocalProtocolError(f"{name}: rank {root} is the root and must give the whole array, not None")
        self._check_pair(name, part, whole, whole.size, part.size * self.world_size)
        return whole if copy else self._flat_output(whole, copy=False)

    def _check_pair(self, name: str, array: Array, output: Array, have: int, need: int) -> None:
        if array.dtype != output.dtype:
            raise LocalProtocolError(f"{name}: the input is {array.dtype} and the output {output.dtype}; use one dtype")
        if have != need:
            raise LocalProtocolError(
                f"{name} over {self.world_size} ranks: the input has {array.size} elements and the output "
                f"{output.size}; one must be {self.world_size} times the other"
            )

    @staticmethod
    def _flat_output(array: Array, *, copy: bool) -> Array:
        """`array` as one contiguous dimension: itself where possible, else a temporary (filled when `copy`)."""
        if array.dtype.hasobject:
            raise LocalProtocolError(
                f"arrays of dtype {array.dtype} hold references, which mean nothing on another rank"
            )
        if not array.flags.writeable:
            raise LocalProtocolError("the result would be written into a read-only array: pass a copy of it")
        if array.flags.c_contiguous:
            return array.reshape(-1)
        return array.flatten() if copy else np.empty(array.size, array.dtype)

    @staticmethod
    def _put_back(array: Array, flat: Array) -> None:
        if not array.flags.c_contiguous:
            array[...] = flat.reshape(array.shape)

    # Running a plan.

    def _run(self, plan: Plan, buffers: dict[str, Array], arithmetic: Arithmetic | None, nbytes: int) -> None:
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

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
