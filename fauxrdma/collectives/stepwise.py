"""Algorithms written step by step: who sends what to whom in step k, and the programs that follow from it.

Most algorithms are easiest to say as a list of steps that all ranks take together: in each, a rank sends some slices of
its buffers and receives others, which replace or are reduced into what it has. `compile_steps` turns one rank's list
into a program of messages: slices longer than a staging slot are cut into chunks, and `lanes` chunks are under way at
once.

**Rules** (the tests prove on symbols that the algorithms keep them): what rank p sends to q in step k is what q
receives from p in step k, in the same order and of the same lengths. What is sent in a step is what was there before
it: a slice that is sent does not overlap one that is received, unless both are the same and the only ones of their
peers.

**No deadlock.** Chunks of a step are numbered by peer; a rank at (step, number) waits for the chunks of that number and
sends those that are `lanes` ahead. What the least
advanced rank waits for was sent by a rank at least as far, and whom it sends to has consumed all but its last `lanes`
messages; so it can go on when there are more slots than `lanes` and the batch in which credits return (as in ring.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fauxrdma.collectives.plan import Copy, Free, Plan, Program, ProgramBuilder, Put, Reduce, Slice, Traffic
from fauxrdma.errors import LocalProtocolError

__all__ = ["Local", "Move", "Receive", "Send", "Step", "compile_steps", "step_plan"]


@dataclass(frozen=True, slots=True)
class Send:
    """Send `source` to `peer`."""

    peer: int
    source: Slice


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive into `target` what `peer` sends; with `reduce`, `target = target op arrived`, and `final` marks the last
    reduction of these elements (after which `avg` divides)."""

    peer: int
    target: Slice
    reduce: bool = False
    final: bool = False


@dataclass(frozen=True, slots=True)
class Local:
    """`target = source`, within the rank; the local moves of a step come before all others."""

    target: Slice
    source: Slice


Move = Send | Receive | Local
Step = list[Move]
_Piece = tuple[Slice, Receive | None]


def _streams(moves: Iterable[tuple[int, Slice, Receive | None]], chunk: int) -> dict[int, list[_Piece]]:
    """The chunks to or from each peer, in order."""
    streams: dict[int, list[_Piece]] = {}
    for peer, whole, receive in moves:
        for start in range(0, whole.count, chunk):
            piece = Slice(whole.buffer, whole.offset + start, min(chunk, whole.count - start))
            streams.setdefault(peer, []).append((piece, receive))
    return streams


def compile_steps(steps: Iterable[Step], chunk: int, lanes: int) -> Program:
    """The program of one rank that takes `steps` in order. Empty slices are neither sent nor waited for."""
    program = ProgramBuilder()
    for step in steps:
        for move in step:
            if isinstance(move, Local) and move.source.count:
                program.add(Copy(move.target, move.source))
        sends = _streams(((m.peer, m.source, None) for m in step if isinstance(m, Send)), chunk)
        receives = _streams(((m.peer, m.target, m) for m in step if isinstance(m, Receive)), chunk)
        for number in range(-lanes, max(map(len, [*sends.values(), *receives.values(), []]))):
            for peer, stream in sends.items():
                if number + lanes < len(stream):
                    piece, _ = stream[number + lanes]
                    out = program.next_out(peer, piece.count)
                    program.add(Copy(out, piece), Put(peer, out.index, out))
            for peer, stream in receives.items():
                if 0 <= number < len(stream):
                    piece, receive = stream[number]
                    arrived = program.wait(peer, piece.count)
                    if receive is not None and receive.reduce:
                        program.add(Reduce(piece, piece, arrived, receive.final))
                    else:
                        program.add(Copy(piece, arrived))
                    program.add(Free(peer, arrived.index))
    return program.finish()


def step_plan(
    name: str,
    algorithm: str,
    world_size: int,
    buffers: Mapping[str, int | Sequence[int]],
    *,
    rounds: int,
    chunk: int,
    lanes: int,
    order: str,
    steps: Callable[[int], Iterator[Step]],
    sends: Callable[[int], Iterator[int]],
) -> Plan:
    """A plan whose rank r takes `steps(r)`. `sends(r)` yields, by a formula of its own, the elements of each of its
    sends. Raises LocalProtocolError for sizes that make no sense."""
    smallest = min((min((size,) if isinstance(size, int) else size) for size in buffers.values()), default=0)
    if world_size < 1 or smallest < 0 or chunk < 1 or lanes < 1:
        raise LocalProtocolError(
            f"a plan needs world_size >= 1, counts >= 0, chunk >= 1 and lanes >= 1; got world_size={world_size}, "
            f"{dict(buffers)}, chunk={chunk}, lanes={lanes}"
        )

    def build(rank: int) -> Program:
        return compile_steps(steps(rank), chunk, lanes)

    def declare(rank: int) -> Traffic:
        messages = elements = 0
        for count in sends(rank):
            messages += -(-count // chunk)
            elements += count
        return Traffic(messages, elements)

    return Plan(name, algorithm, world_size, buffers, rounds, lanes, chunk, order, build, declare)
