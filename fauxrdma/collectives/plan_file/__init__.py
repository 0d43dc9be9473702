"""Plans of one's own from a YAML file (the format is described in docs/plans.md).

A file is read and checked for form (`form`), written out for the ranks there are (`expansion`), proved to do what its
operation promises without deadlock (`proof`), and then a plan like any other. Mistakes are shown where they are:
`file:line:column: message`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fauxrdma.collectives.partition import Partition, chunk_elements
from fauxrdma.collectives.plan import Plan, Slice
from fauxrdma.collectives.plan_file.expansion import Expanded, FileCopy, FileMove, FileSlice, expand
from fauxrdma.collectives.plan_file.form import read_plan_file
from fauxrdma.collectives.plan_file.proof import mark_final_reductions, prove
from fauxrdma.collectives.plan_rounds import plan_messages
from fauxrdma.collectives.request import FILE_PREFIX, Request
from fauxrdma.collectives.stepwise import Local, Receive, Send, Step, step_plan
from fauxrdma.errors import ConfigError

__all__ = ["operation_of_file", "plan_of_file"]


def operation_of_file(path: str) -> str:
    """The operation that a plan file is for. Raises ConfigError for what is wrong with the file's form."""
    return read_plan_file(path).operation


def plan_of_file(path: str, request: Request) -> Plan:
    """The plan of the file at `path` for `request`, proved for its number of ranks (once per process).

    Raises ConfigError: the file has a mistake, is for another operation or number of ranks, does not do what the
    operation promises, or deadlocks; or the request has blocks of unequal sizes.
    """
    proved = _proved(path, request.operation, request.world_size, request.root, request.lanes)
    return proved.plan(_block(path, request), request.itemsize, request.slot_bytes)


def _block(path: str, request: Request) -> int:
    """Elements of a buffer that is cut into the file's chunks."""
    if isinstance(request.counts, int):
        return request.counts
    sizes = {size for row in request.table for size in row} or set(request.blocks)
    if len(sizes) > 1:
        raise ConfigError(f"{path}: the plans of files are for blocks of one size, not for {sorted(sizes)[:8]}")
    return sizes.pop()


@dataclass(frozen=True)
class _Proved:
    path: str
    expanded: Expanded
    lanes: int
    rounds: int

    def plan(self, block: int, itemsize: int, slot_bytes: int, chunk: int | None = None) -> Plan:
        """For blocks of `block` elements; `chunk` elements per message, by default as many as suit."""
        expanded = self.expanded
        part = Partition(block, expanded.chunks, -(-block // expanded.chunks))
        widest = max((_width(move) for steps in expanded.steps for step in steps for move in step), default=1)
        if chunk is None:
            chunk = chunk_elements(min(block, widest * part.block), itemsize, slot_bytes, self.lanes)

        def start(buffer: str, index: int) -> int:
            if buffer == "scratch":
                return index * part.block
            whole, inside = divmod(index, expanded.chunks)
            return whole * block + part.offset(inside)

        def cut(piece: FileSlice) -> Slice:
            first = start(piece.buffer, piece.first)
            return Slice(piece.buffer, first, start(piece.buffer, piece.end) - first)

        def steps(rank: int) -> Iterator[Step]:
            for step in expanded.steps[rank]:
                made: Step = []
                for move in step:
                    if isinstance(move, FileCopy):
                        made.append(Local(cut(move.target), cut(move.source)))
                    elif move.sends:
                        made.append(Send(move.peer, cut(move.slice)))
                    else:
                        made.append(Receive(move.peer, cut(move.slice), move.reduce, move.final))
                yield made

        def sends(rank: int) -> Iterator[int]:
            for step in expanded.steps[rank]:
                yield from (cut(m.slice).count for m in step if isinstance(m, FileMove) and m.sends)

        file = expanded.file
        names = {"data", "input", "output"} & {piece.buffer for piece in _slices(expanded)} | _needed(file.operation)
        buffers = {name: start(name, expanded.lengths[name]) for name in sorted(names)}
        if expanded.lengths["scratch"]:
            buffers["scratch"] = start("scratch", expanded.lengths["scratch"])
        return step_plan(
            file.operation, FILE_PREFIX + self.path, expanded.world_size, buffers, rounds=self.rounds,
            chunk=chunk, lanes=self.lanes, order=file.order, steps=steps, sends=sends,
        )  # fmt: skip


def _needed(operation: str) -> set[str]:
    return {"data"} if operation in ("all_reduce", "reduce", "broadcast") else {"input", "output"}


def _slices(expanded: Expanded) -> Iterator[FileSlice]:
    for steps in expanded.steps:
        for step in steps:
            for move in step:
                yield move.target if isinstance(move, FileCopy) else move.slice


def _width(move: FileMove | FileCopy) -> int:
    piece = move.target if isinstance(move, FileCopy) else move.slice
    return piece.end - piece.first


@lru_cache(maxsize=64)
def _proved(path: str, operation: str, world_size: int, root: int, lanes: int) -> _Proved:
    file = read_plan_file(path)
    if file.operation != operation:
        raise file.problem(("operation",), f"this plan is for {file.operation}, not for {operation}")
    expanded = expand(file, world_size, root)
    mark_final_reductions(expanded)
    slots = 2 * lanes
    per_chunk = slots + 1  # more messages than slots in every step
    draft = _Proved(path, expanded, lanes, 0)
    prove(expanded, draft.plan(expanded.chunks * per_chunk, 1, 1, chunk=1), per_chunk, root, slots)
    messages = plan_messages(draft.plan(expanded.chunks, 1, 1, chunk=expanded.chunks))
    return _Proved(path, expanded, lanes, max((message.round for message in messages), default=0))
