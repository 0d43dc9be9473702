"""A collective as data: what every rank does, written down before anything runs.

A plan gives each rank a program, a tuple of steps executed in order. Ranks talk only in **messages**: a put places up
to one staging slot of elements in a peer's inbox, and the peer is notified (the way RDMA WRITE_WITH_IMM does both).
Messages between two ranks arrive in the order they were put, so message `index` of a pair is a plain count from 0.

Places a step can name:

- `Slice`: elements of a user buffer by name (`"data"`, `"input"`, `"output"`);
- `Outgoing`: the staging slot on this side in which message `index` to `peer` is prepared;
- `Incoming`: the staging slot in which message `index` from `peer` has landed.

Counts are in elements and no step names a dtype: one plan serves every dtype of the same element count and slot size.
Nothing in a plan depends on timing, so its reduction order is fixed and two runs give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fauxrdma.errors import LocalProtocolError

__all__ = [
    "Copy",
    "Free",
    "Incoming",
    "Outgoing",
    "Plan",
    "Program",
    "Put",
    "Reduce",
    "Signal",
    "Slice",
    "Step",
    "Traffic",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Slice:
    """`count` elements of the user buffer `buffer`, from element `offset`."""

    buffer: str
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The staging slot of message `index` to `peer`, `count` elements long."""

    peer: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """The staging slot in which message `index` from `peer` lands, `count` elements long."""

    peer: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write `src` into the peer's inbox as message `index` and notify it. `src` is an Outgoing slot of this message, or
    an Incoming slot that is forwarded as it is, without a copy."""

    peer: int
    index: int
    src: Outgoing | Incoming


@dataclass(frozen=True, slots=True)
class Signal:
    """Message `index` to `peer` without any data: only the notification."""

    peer: int
    index: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do not go on before message `index` from `peer`, of `count` elements, has arrived."""

    peer: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """`dst = local op arrived`. `final` marks the last reduction of these elements, after which `avg` divides by the
    number of ranks."""

    dst: Slice | Outgoing
    local: Slice
    arrived: Incoming
    final: bool


@dataclass(frozen=True, slots=True)
class Copy:
    """`dst = src`."""

    dst: Slice | Outgoing
    src: Slice | Incoming | Outgoing


@dataclass(frozen=True, slots=True)
class Free:
    """This rank needs message `index` from `peer` no longer: its slot goes back to the sender as a credit (after the
    puts that forward it have completed)."""

    peer: int
    index: int


Step = Put | Signal | Wait | Reduce | Copy | Free


@dataclass(frozen=True, slots=True)
class Program:
    """The steps of one rank. `outgoing` and `incoming` count the messages by peer."""

    steps: tuple[Step, ...]
    outgoing: dict[int, int]
    incoming: dict[int, int]

    @property
    def peers(self) -> tuple[int, ...]:
        """Every rank this one exchanges messages with, in rank order."""
        return tuple(sorted(self.outgoing.keys() | self.incoming.keys()))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sends: how many messages and how many elements in them."""

    messages: int
    elements: int


@dataclass(frozen=True)
class Plan:
    """A collective over `world_size` ranks, with what it declares about itself.

    `buffers` maps buffer names to their length in elements, or to one length per rank. `rounds` is the number of
    message times on the critical path when all links are equal and every message is one chunk. `lanes` is the number of
    chunks in flight at once: an executor needs more staging slots per peer than that. `reduction_order` says in words
    in which order values combine.
    """

    name: str
    algorithm: str
    world_size: int
    buffers: Mapping[str, int | Sequence[int]]
    rounds: int
    lanes: int
    chunk: int
    reduction_order: str
    build: Callable[[int], Program] = field(repr=False, compare=False)
    declare: Callable[[int], Traffic] = field(repr=False, compare=False)
    _programs: dict[int, Program] = field(default_factory=dict, init=False, repr=False, compare=False)

    def lengths(self, rank: int) -> dict[str, int]:
        """How many elements each buffer of `rank` has."""
        return {name: size if isinstance(size, int) else size[rank] for name, size in self.buffers.items()}

    def program(self, rank: int) -> Program:
        """The program of `rank` (built once). Raises LocalProtocolError for a rank outside the plan."""
        self._check(rank)
        program = self._programs.get(rank)
        if program is None:
            program = self._programs[rank] = self.build(rank)
        return program

    def traffic(self, rank: int) -> Traffic:
        """What `rank` sends, by formula, without building its program."""
        self._check(rank)
        return self.declare(rank)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise LocalProtocolError(f"rank {rank} is not in this {self.name} of {self.world_size} ranks")


class ProgramBuilder:
    """Collects the steps of one rank and numbers its messages."""

    __slots__ = ("_incoming", "_outgoing", "_steps")

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._outgoing: dict[int, int] = {}
        self._incoming: dict[int, int] = {}

    def add(self, *steps: Step) -> None:
        """Append steps as they are."""
        self._steps.extend(steps)

    def next_out(self, peer: int, count: int) -> Outgoing:
        """Number the next message to `peer`."""
        index = self._outgoing.get(peer, 0)
        self._outgoing[peer] = index + 1
        return Outgoing(peer, index, count)

    def wait(self, peer: int, count: int) -> Incoming:
        """Wait for the next message from `peer`; returns where it landed."""
        index = self._incoming.get(peer, 0)
        self._incoming[peer] = index + 1
        self._steps.append(Wait(peer, index, count))
        return Incoming(peer, index, count)

    def finish(self) -> Program:
        """The program."""
        return Program(tuple(self._steps), dict(self._outgoing), dict(self._incoming))
