"""Ring algorithms: all-reduce, reduce-scatter, all-gather and the pipelined broadcast.

All of them send to the left neighbour (rank - 1) and receive from the right one (rank + 1), as gloo does, so one queue
pair each way serves them all.

A block travels around the ring in **hops**. At hop t a rank receives message t - 1, works on it and sends message t, of
the same block. The order of blocks is chosen so that in a reduction

    block b starts at rank b-1 and ends, complete, at rank b:   ((x[b-1] + x[b-2]) + ...) + x[b]   (ranks modulo n)

with every rank computing `local op arrived`. That is gloo's order too; with gloo's blocks (see partition.py) the
all-reduce equals gloo's bit for bit for operations that commute bitwise, which IEEE addition does.

**Lanes.** A block longer than a staging slot is cut into chunks. `lanes` chunks travel at once, interleaved; a lane
that finishes its chunk starts its next one in the same breath, so the ring never drains in between. A rank that is
about to send has consumed all but the last `lanes` messages, which bounds the slots needed: with `lanes` + the batch in
which credits return, the least advanced rank can always go on, hence no deadlock. Tests play random schedules at
exactly that number of slots (and see a deadlock below it).
"""

from __future__ import annotations

from collections.abc import Iterator

from fauxrdma.collectives.partition import Partition, equal_blocks, gloo_blocks
from fauxrdma.collectives.plan import Copy, Free, Outgoing, Plan, Program, ProgramBuilder, Put, Reduce, Slice, Traffic
from fauxrdma.errors import LocalProtocolError

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_broadcast", "ring_reduce_scatter"]

RING_ORDER = "block b: ((x[b-1] op x[b-2]) op ...) op x[b], ranks modulo n; each rank computes local op arrived"


def _hops(chunks: int, lanes: int, hops: int) -> Iterator[tuple[int, int]]:
    """The order in which one rank works: pairs (chunk, hop), hop 0 = only send, hop `hops` = only receive."""
    rounds = -(-chunks // lanes)
    for turn in range(rounds * hops + 1):
        generation, hop = divmod(turn, hops)
        for lane in range(min(lanes, chunks)):
            if hop == 0 and turn > 0:
                finished = lane + (generation - 1) * lanes
                if finished < chunks:
                    yield finished, hops
            chunk = lane + generation * lanes
            if chunk < chunks:
                yield chunk, hop


def _check(world_size: int, count: int, chunk: int, lanes: int) -> None:
    if world_size < 1 or count < 0 or chunk < 1 or lanes < 1:
        raise LocalProtocolError(
            f"a plan needs world_size >= 1, count >= 0, chunk >= 1 and lanes >= 1; got world_size={world_size}, "
            f"count={count}, chunk={chunk}, lanes={lanes}"
        )


def _sent(part: Partition, chunk: int, blocks: list[int]) -> Traffic:
    return Traffic(sum(part.chunks(b, chunk) for b in blocks), sum(part.length(b) for b in blocks))


def ring_all_reduce(count: int, world_size: int, *, itemsize: int, chunk: int, lanes: int) -> Plan:
    """All-reduce of `count` elements in place in buffer `data`. `itemsize` (bytes) only decides gloo's block length.

    Each rank sends 2 (n-1)/n of the data in 2 (n-1) rounds. Raises LocalProtocolError for impossible sizes.
    """
    _check(world_size, count, chunk, lanes)
    n = world_size
    part = gloo_blocks(count, n, itemsize)
    last = 2 * (n - 1)

    def build(rank: int) -> Program:
        program = ProgramBuilder()
        left, right = (rank - 1) % n, (rank + 1) % n
        for number, hop in _hops(-(-part.block // chunk), lanes, last) if n > 1 else ():
            block = (rank + 1 + hop) % n if hop < n - 1 else (rank + hop - (n - 1)) % n
            offset, length = part.piece(block, chunk, number)
            if length == 0:
                continue
            mine = Slice("data", offset, length)
            if hop == 0:
                out = program.next_out(left, length)
                program.add(Copy(out, mine), Put(left, out.index, out))
                continue
            arrived = program.wait(right, length)
            if hop < n - 1:
                out = program.next_out(left, length)
                program.add(Reduce(out, mine, arrived, final=False), Free(right, arrived.index))
                program.add(Put(left, out.index, out))
            elif hop == n - 1:
                # The block is complete: reduce it where it will be sent from, send it, then keep a copy.
                out = program.next_out(left, length)
                program.add(Reduce(out, mine, arrived, final=True), Free(right, arrived.index))
                program.add(Put(left, out.index, out), Copy(mine, out))
            else:
                if hop < last:
                    program.add(Put(left, program.next_out(left, length).index, arrived))
                program.add(Copy(mine, arrived), Free(right, arrived.index))
        return program.finish()

    def declare(rank: int) -> Traffic:
        sent = [b % n for hop in range(n - 1) for b in (rank + 1 + hop, rank + hop)]
        return _sent(part, chunk, sent)

    return Plan("all_reduce", "ring", n, {"data": count}, last, lanes, chunk, RING_ORDER, build, declare)


def ring_reduce_scatter(count: int, world_size: int, *, chunk: int, lanes: int) -> Plan:
    """Reduce-scatter: `input` holds world_size blocks of `count` elements, `output` receives this rank's block reduced.

    Each rank sends (n-1)/n of its input in n - 1 rounds. Raises LocalProtocolError for impossible sizes.
    """
    _check(world_size, count, chunk, lanes)
    n = world_size
    part = equal_blocks(count, n)
    last = n - 1

    def build(rank: int) -> Program:
        program = ProgramBuilder()
        left, right = (rank - 1) % n, (rank + 1) % n
        if n == 1 and count:
            program.add(Copy(Slice("output", 0, count), Slice("input", 0, count)))
        for number, hop in _hops(-(-count // chunk), lanes, last) if n > 1 else ():
            block = (rank + 1 + hop) % n
            offset, length = part.piece(block, chunk, number)
            mine = Slice("input", offset, length)
            if hop == 0:
                out = program.next_out(left, length)
                program.add(Copy(out, mine), Put(left, out.index, out))
                continue
            arrived = program.wait(right, length)
            dst: Slice | Outgoing
            if hop == last:
                dst = Slice("output", offset - part.offset(block), length)
                program.add(Reduce(dst, mine, arrived, final=True), Free(right, arrived.index))
            else:
                dst = out = program.next_out(left, length)
                program.add(Reduce(dst, mine, arrived, final=False), Free(right, arrived.index))
                program.add(Put(left, out.index, out))
        return program.finish()

    def declare(rank: int) -> Traffic:
        return _sent(part, chunk, [(rank + 1 + hop) % n for hop in range(n - 1)])

    buffers = {"input": part.count, "output": count}
    return Plan("reduce_scatter", "ring", n, buffers, last, lanes, chunk, RING_ORDER, build, declare)


def ring_all_gather(count: int, world_size: int, *, chunk: int, lanes: int) -> Plan:
    """All-gather: `input` holds `count` elements, `output` receives every rank's, in rank order.

    Each rank sends (n-1) `count` elements in n - 1 rounds. Raises LocalProtocolError for impossible sizes.
    """
    _check(world_size, count, chunk, lanes)
    n = world_size
    part = equal_blocks(count, n)
    last = n - 1

    def build(rank: int) -> Program:
        program = ProgramBuilder()
        left, right = (rank - 1) % n, (rank + 1) % n
        if n == 1 and count:
            program.add(Copy(Slice("output", 0, count), Slice("input", 0, count)))
        for number, hop in _hops(-(-count // chunk), lanes, last) if n > 1 else ():
            block = (rank + hop) % n
            offset, length = part.piece(block, chunk, number)
            theirs = Slice("output", offset, length)
            if hop == 0:
                out = program.next_out(left, length)
                program.add(Copy(out, Slice("input", offset - part.offset(block), length)))
                program.add(Put(left, out.index, out), Copy(theirs, out))
                continue
            arrived = program.wait(right, length)
            if hop < last:
                program.add(Put(left, program.next_out(left, length).index, arrived))
            program.add(Copy(theirs, arrived), Free(right, arrived.index))
        return program.finish()

    def declare(rank: int) -> Traffic:
        return _sent(part, chunk, [(rank + hop) % n for hop in range(n - 1)])

    buffers = {"input": count, "output": part.count}
    return Plan("all_gather", "ring", n, buffers, last, lanes, chunk, "nothing is reduced", build, declare)


def ring_broadcast(count: int, world_size: int, root: int, *, chunk: int) -> Plan:
    """Broadcast of `data` from `root` along the chain root, root-1, ..., root+1; chunks follow one another.

    Every rank but the last of the chain sends `count` elements once. Raises LocalProtocolError for impossible sizes.
    """
    _check(world_size, count, chunk, 1)
    n = world_size
    if not 0 <= root < n:
        raise LocalProtocolError(f"broadcast root {root} is not a rank of {n}")
    part = equal_blocks(count, 1)
    chunks = part.chunks(0, chunk)

    def build(rank: int) -> Program:
        program = ProgramBuilder()
        left, right = (rank - 1) % n, (rank + 1) % n
        for number in range(chunks) if n > 1 else ():
            offset, length = part.piece(0, chunk, number)
            mine = Slice("data", offset, length)
            if rank == root:
                out = program.next_out(left, length)
                program.add(Copy(out, mine), Put(left, out.index, out))
                continue
            arrived = program.wait(right, length)
            if left != root:
                program.add(Put(left, program.next_out(left, length).index, arrived))
            program.add(Copy(mine, arrived), Free(right, arrived.index))
        return program.finish()

    def declare(rank: int) -> Traffic:
        ends_here = n == 1 or (rank - 1) % n == root
        return Traffic(0, 0) if ends_here else Traffic(chunks, count)

    rounds = max(0, n - 2 + chunks) if n > 1 and chunks else 0
    return Plan("broadcast", "ring", n, {"data": count}, rounds, 1, chunk, "nothing is reduced", build, declare)
