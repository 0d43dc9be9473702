"""Collectives on numpy arrays over emulated queue pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fauxrdma.collectives import Arithmetic, Plan, numpy_arithmetic
from fauxrdma.collectives.algorithms import NEED_NODES, plan_for
from fauxrdma.collectives.arithmetic import Array
from fauxrdma.collectives.channelled import ChannelledPlan, over_channels
from fauxrdma.collectives.direct import check_counts
from fauxrdma.collectives.request import Counts, Request
from fauxrdma.communicator.algorithm_choice import AUTO
from fauxrdma.communicator.arrays import (
    apart,
    check_blocks,
    check_dtypes,
    check_movable,
    flat_input,
    flat_output,
    put_back,
)
from fauxrdma.communicator.call import Call
from fauxrdma.communicator.messenger import Messenger
from fauxrdma.errors import LocalProtocolError

__all__ = ["Communicator"]

ArithmeticFactory = Callable[[str, np.dtype[Any], int], Arithmetic]


class Communicator(Messenger):
    """A group of `world_size` ranks that run collectives together; this process is rank `rank` of it.

    `store` is where the ranks leave their addresses for each other, under keys that begin with `prefix`; two
    communicators over one store need different prefixes. `context` is an open verbs Context (default: opens the HCA
    that FAUXRDMA_SOCKET and FAUXRDMA_HCA name, and closes it again). `timeout_s` bounds each collective, in wall time.
    `slots` x `slot_bytes` is the staging per peer and direction and `lanes` the number of chunks in flight in a ring
    (at most half the slots); these must be the same on all ranks. `gpu` is the GPU whose memory this rank's data is in
    (default: FAUXRDMA_GPU, else LOCAL_RANK or the first GPU, of those that use the HCA). Ranks on one node talk through
    memory they share, over the modelled NVLink or PCIe of the node; `share_memory` False sends them over their HCAs
    instead (default: True unless NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are both 1).

    Arrays may be of any shape, dtype and layout; results land in place. `op` is one of sum, avg, product, min, max,
    band, bor, bxor (docs/collectives.md has the table of dtypes). `algorithm` is a name in
    `collectives.algorithms.ALGORITHMS`, the same on all ranks; default: the first there; ``auto``: the
    one predicted to be the fastest on this fabric; ``file:PATH``: that file's plan. Another array library reduces by
    giving its own `arithmetic`, and so does bfloat16 in uint16 arrays (`collectives.Bfloat16Arithmetic`).

    All ranks must call the same collectives in the same order with the same sizes. Not for use by two threads at a
    time. Queue pairs are made when a plan first needs them.

    Every method raises LocalProtocolError, before anything is sent, for arguments that make no sense, and
    CollectiveError when a peer or the fabric fails or the timeout passes; after that the communicator is broken: each
    further call raises at once and only `close` is left.
    """

    def all_reduce(
        self,
        array: Array,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        arithmetic: ArithmeticFactory = numpy_arithmetic,
    ) -> None:
        """Replace `array` on every rank by the reduction over all ranks. The ring's order of reduction is gloo's."""
        check_movable(array)
        reduction = arithmetic(op, array.dtype, self.world_size)
        flat = flat_output(array, copy=True)
        plan = self._plan("all_reduce", flat.size, flat.dtype, algorithm, op=op)
        self._run(plan, {"data": flat}, reduction, flat.nbytes)
        put_back(array, flat)

    def reduce(
        self,
        array: Array,
        root: int = 0,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        arithmetic: ArithmeticFactory = numpy_arithmetic,
    ) -> None:
        """Replace `array` on rank `root` by the reduction over all ranks; the others' stay as they are."""
        check_movable(array)
        reduction = arithmetic(op, array.dtype, self.world_size)
        flat = flat_output(array, copy=True) if self.rank == root else flat_input(array).copy()
        plan = self._plan("reduce", flat.size, flat.dtype, algorithm, root, op=op)
        self._run(plan, {"data": flat}, reduction, flat.nbytes)
        if self.rank == root:
            put_back(array, flat)

    def broadcast(self, array: Array, root: int = 0, *, algorithm: str | None = None) -> None:
        """Replace `array` on every rank by that of rank `root`."""
        flat = flat_input(array) if self.rank == root else flat_output(array, copy=False)
        plan = self._plan("broadcast", flat.size, flat.dtype, algorithm, root)
        self._run(plan, {"data": flat}, None, flat.nbytes)
        if self.rank != root:
            put_back(array, flat)

    def reduce_scatter(
        self,
        output: Array,
        array: Array,
        op: str = "sum",
        *,
        counts: Sequence[int] | None = None,
        algorithm: str | None = None,
        arithmetic: ArithmeticFactory = numpy_arithmetic,
    ) -> None:
        """Reduce `array` over all ranks; this rank gets its block of the result in `output`.

        `array` holds a block for every rank, in rank order: of `counts[r]` elements for rank r, by default all of the
        size of `output`.
        """
        check_movable(array)
        reduction = arithmetic(op, array.dtype, self.world_size)
        blocks = check_blocks("reduce_scatter", array, output, counts, self.rank, self.world_size)
        source, flat = flat_input(array), flat_output(output, copy=False)
        source = apart(source, flat, sum(blocks[: self.rank]))
        plan = self._plan("reduce_scatter", blocks, flat.dtype, algorithm, op=op)
        self._run(plan, {"input": source, "output": flat}, reduction, source.nbytes)
        put_back(output, flat)

    def all_gather(
        self, output: Array, array: Array, *, counts: Sequence[int] | None = None, algorithm: str | None = None
    ) -> None:
        """Put every rank's `array` into `output`, in rank order. Rank r's has `counts[r]` elements, by default all the
        same number."""
        blocks = check_blocks("all_gather", output, array, counts, self.rank, self.world_size)
        source, flat = flat_input(array), flat_output(output, copy=False)
        source = apart(source, flat, sum(blocks[: self.rank]))
        plan = self._plan("all_gather", blocks, flat.dtype, algorithm)
        self._run(plan, {"input": source, "output": flat}, None, flat.nbytes)
        put_back(output, flat)

    def gather(
        self,
        output: Array | None,
        array: Array,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        algorithm: str | None = None,
    ) -> None:
        """Put every rank's `array` into `output` of rank `root`, in rank order; `output` is None elsewhere. Rank r's
        has `counts[r]` elements (the same on all ranks), by default all the same number."""
        source = flat_input(array)
        whole = self._whole("gather", output, array, counts, root)
        flat = whole if whole.size == 0 else flat_output(whole, copy=False)
        blocks = self._blocks("gather", array, counts)
        source = apart(source, flat, sum(blocks[: self.rank]))
        plan = self._plan("gather", blocks, source.dtype, algorithm, root)
        self._run(plan, {"input": source, "output": flat}, None, sum(blocks) * source.itemsize)
        put_back(whole, flat)

    def scatter(
        self,
        output: Array,
        array: Array | None,
        root: int = 0,
        *,
        counts: Sequence[int] | None = None,
        algorithm: str | None = None,
    ) -> None:
        """Rank r gets block r of the root's `array` in `output`; `array` is None elsewhere. The block has `counts[r]`
        elements (the same on all ranks), by default all the same number."""
        flat = flat_output(output, copy=False)
        source = flat_input(self._whole("scatter", array, output, counts, root))
        blocks = self._blocks("scatter", output, counts)
        source = apart(source, flat, sum(blocks[: self.rank]))
        plan = self._plan("scatter", blocks, flat.dtype, algorithm, root)
        self._run(plan, {"input": source, "output": flat}, None, sum(blocks) * flat.itemsize)
        put_back(output, flat)

    def all_to_all(
        self,
        output: Array,
        array: Array,
        counts: Sequence[Sequence[int]] | None = None,
        *,
        algorithm: str | None = None,
    ) -> None:
        """Send block b of `array` to rank b, and get block a of `output` from rank a.

        `counts[a][b]`: elements from rank a to rank b, the same table on all ranks; default: equal blocks.
        """
        n, rank = self.world_size, self.rank
        check_dtypes("all_to_all", array, output)
        if counts is None:
            if array.size % n or array.size != output.size:
                raise LocalProtocolError(
                    f"all_to_all over {n} ranks: input and output must have one size, a multiple of {n}; they have "
                    f"{array.size} and {output.size} elements. For unequal blocks give counts"
                )
            counts = ((array.size // n,) * n,) * n
        table = tuple(tuple(map(int, row)) for row in counts)
        if check_counts(table) != n:
            raise LocalProtocolError(f"all_to_all over {n} ranks: counts must have {n} rows, got {len(table)}")
        out, into = sum(table[rank]), sum(row[rank] for row in table)
        if array.size != out or output.size != into:
            raise LocalProtocolError(
                f"all_to_all: by counts rank {rank} sends {out} elements and receives {into}, but its arrays have "
                f"{array.size} and {output.size}"
            )
        source, flat = flat_input(array), flat_output(output, copy=False)
        source = apart(source, flat)
        plan = self._plan("all_to_all", table, source.dtype, algorithm)
        self._run(plan, {"input": source, "output": flat}, None, source.nbytes)
        put_back(output, flat)

    def all_to_all_uneven(
        self,
        output: Array,
        array: Array,
        sends: Sequence[int],
        receives: Sequence[int],
        *,
        algorithm: str | None = None,
    ) -> None:
        """Send `sends[b]` elements of `array` to rank b, and get `receives[a]` elements of `output` from rank a.

        As all_to_all with counts of which a rank knows only its own part. An algorithm that hands on what others send
        needs them all; then they are gathered first.
        """
        n, rank = self.world_size, self.rank
        check_dtypes("all_to_all", array, output)
        for what, splits, have in (("sends", sends, array.size), ("receives", receives, output.size)):
            if len(splits) != n or min(splits) < 0 or sum(splits) != have:
                raise LocalProtocolError(
                    f"all_to_all over {n} ranks: {what} must be {n} numbers of elements that add up to the {have} of "
                    f"the array, got {list(splits)}"
                )
        if sends[rank] != receives[rank]:
            raise LocalProtocolError(
                f"all_to_all: rank {rank} sends itself {sends[rank]} elements and expects {receives[rank]} of them"
            )
        if algorithm in NEED_NODES:
            counts_of_all = np.empty((n, n), np.int64)
            self.all_gather(counts_of_all, np.asarray(sends, np.int64))
            self.all_to_all(output, array, counts_of_all.tolist(), algorithm=algorithm)
            return
        table = tuple(
            tuple(map(int, sends)) if a == rank else tuple(int(receives[a]) if b == rank else 0 for b in range(n))
            for a in range(n)
        )
        source, flat = flat_input(array), flat_output(output, copy=False)
        source = apart(source, flat)
        plan = self._plan("all_to_all", table, source.dtype, algorithm, partial=True)
        self._run(plan, {"input": source, "output": flat}, None, source.nbytes)
        put_back(output, flat)

    def barrier(self) -> None:
        """Return when every rank has called it."""
        self._run(self._plan("barrier", 0, np.dtype(np.uint8), None), {}, None, 0)

    # Plans and arrays.

    def _plan(
        self,
        operation: str,
        counts: Counts,
        dtype: np.dtype[Any],
        algorithm: str | None,
        root: int = 0,
        *,
        op: str = "",
        partial: bool = False,
    ) -> Plan | ChannelledPlan:
        """The plan for an operation: all ranks must come to the same, and say so with every message."""
        itemsize = dtype.itemsize
        plan = self._plan_of(operation, counts, itemsize, algorithm, root, partial)
        told = () if partial else counts
        self._call = Call(self._calls, operation, plan.algorithm, op, dtype.str, told, root)
        return plan

    def _plan_of(
        self, operation: str, counts: Counts, itemsize: int, algorithm: str | None, root: int, partial: bool
    ) -> Plan | ChannelledPlan:
        if itemsize > self._slot_bytes:
            raise LocalProtocolError(
                f"{operation}: one element has {itemsize} bytes, more than a staging slot of {self._slot_bytes}: view "
                "the array as bytes, or give every Communicator a larger slot_bytes"
            )
        request = Request(
            operation, self.world_size, counts, itemsize, self._slot_bytes, self._lanes, root, partial=partial
        )
        algorithm = algorithm or self._settings.algorithms.algorithm(operation) or self._default(operation, partial)
        if algorithm == AUTO:
            algorithm, pieces = self._choice.choose(request, lambda: self.layout, self._channels)
            request = replace(request, pieces=pieces)
        if algorithm in NEED_NODES:
            request = replace(request, nodes=tuple(map(tuple, self.layout.nodes)), rails=tuple(self.layout.rails))
        elif not self._channels.plain:
            smaller = replace(request, slot_bytes=max(itemsize, self._channel_slot_bytes))
            if (cut := over_channels(smaller, algorithm, self._channels.routes)) is not None:
                return cut
        return plan_for(request, algorithm)

    def _default(self, operation: str, partial: bool) -> str | None:
        """What is used when nobody says: as in NCCL an all-to-all hands over within nodes where that keeps it on its
        rail, unless NCCL_PXN_DISABLE is 1."""
        if operation != "all_to_all" or partial or not self._settings.pxn:
            return None
        layout = self.layout
        return "pxn" if layout.has_rails and len(layout.nodes) > 1 and max(map(len, layout.nodes)) > 1 else None

    def _blocks(self, name: str, block: Array, counts: Sequence[int] | None) -> tuple[int, ...]:
        if counts is None:
            return (block.size,) * self.world_size
        blocks = tuple(map(int, counts))
        if len(blocks) != self.world_size or min(blocks) < 0 or blocks[self.rank] != block.size:
            raise LocalProtocolError(
                f"{name}: counts must be {self.world_size} numbers of elements, of which that of rank {self.rank} is "
                f"its array's {block.size}; got {blocks}"
            )
        return blocks

    def _whole(self, name: str, whole: Array | None, block: Array, counts: Sequence[int] | None, root: int) -> Array:
        """The array that only the root has; an empty one elsewhere."""
        if self.rank != root:
            return np.empty(0, block.dtype)
        if whole is None:
            raise LocalProtocolError(f"{name}: rank {root} is the root and must give the whole array, not None")
        check_blocks(name, whole, block, counts, self.rank, self.world_size)
        return whole
