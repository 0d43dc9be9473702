"""Runs one rank's program of a plan over staging slots, without any input or output of its own (sans-IO).

Events go in (a message arrived, a put completed, credits came back), actions come out (put, return credits, done); the
arithmetic happens inside, on views of the user's arrays and of the slots. Steps run strictly in program order, so the
result does not depend on when events come.

    executor = PlanExecutor(plan, rank, {"data": array}, channels, arithmetic)
    for action in executor.start(): ...
    while not executor.done:
        ... wait for something to happen ...
        for action in executor.handle(event): ...

Actions come one by one, while the program runs: a message is on its way before the rank works on the next. So each
iterator must be used up, and carrying an action out must not come back to this executor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fauxrdma.collectives.arithmetic import Arithmetic, Array
from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.plan import Copy, Free, Incoming, Outgoing, Plan, Put, Reduce, Signal, Slice, Wait
from fauxrdma.errors import CallMismatch, LocalProtocolError

__all__ = [
    "Action",
    "Arrived",
    "CreditReturned",
    "Done",
    "Event",
    "PlanExecutor",
    "PutCompleted",
    "PutMessage",
    "ReturnCredits",
    "apply_event",
    "credits_due",
]

CREDIT_BATCHES = 2
"""Credits that cannot ride on data are returned when half of the slots is owed."""

_SENDS = (Put, Signal)  # a tuple: `Put | Signal` would build a union for every step of every message

MOST_CREDITS = 127
"""Most credits one message can carry (seven bits of the immediate)."""


@dataclass(slots=True)
class Arrived:
    """A message of `nbytes` landed from `peer`. `sequence` is its number modulo 2^8 or more; `credits` ride along;
    `call` is the signature of the call it belongs to, None where its way carries none."""

    peer: int
    sequence: int
    nbytes: int
    credits: int
    call: int | None = None


@dataclass(slots=True)
class PutCompleted:
    """The first `count` messages put to `peer` (since the connection began) have completed locally."""

    peer: int
    count: int


@dataclass(slots=True)
class CreditReturned:
    """`peer` gave `count` of our slots back."""

    peer: int
    count: int


@dataclass(slots=True)
class PutMessage:
    """Write message `number` into slot `number % slots` of the inbox that `peer` has for us, and notify.

    `source` None: from our outbox slot of the same number; else from the inbox slot of message `source_number` of
    channel `source`. `nbytes` may be 0. `credits` ride along. `completion`: its completion must be reported.
    `call`: the signature of the call it belongs to.
    """

    peer: int
    number: int
    nbytes: int
    credits: int
    source: int | None
    source_number: int
    completion: bool
    call: int = 0


@dataclass(slots=True)
class ReturnCredits:
    """Tell `peer` that `count` slots are free again, with a message that carries nothing else."""

    peer: int
    count: int


@dataclass(slots=True)
class Done:
    """The program has ended and the user's buffers hold the result. Nothing follows."""


Event = Arrived | PutCompleted | CreditReturned
Action = PutMessage | ReturnCredits | Done


def apply_event(channels: Mapping[int, Channel], event: Event) -> None:
    """Record an event, whether or not a plan is running: a peer may be a plan ahead of us."""
    channel = channels[event.peer]
    if isinstance(event, Arrived):
        channel.data(event.sequence, event.nbytes, event.call)
        if event.credits:
            channel.credit(event.credits)
    elif isinstance(event, PutCompleted):
        channel.put_completed(event.count)
    else:
        channel.credit(event.count)


def credits_due(channel: Channel) -> int:
    """Credits worth a message of their own now: half of the slots, or none."""
    if channel.credits_owed * CREDIT_BATCHES < channel.slots:
        return 0
    return channel.take_credits(MOST_CREDITS)


class PlanExecutor:
    """One rank's execution of one plan.

    `buffers` holds one-dimensional contiguous arrays of one dtype under the plan's names; `channels` the staging by
    peer (at least the program's peers), `call` the signature that all ranks of the call must have. Raises
    LocalProtocolError when they do not fit the plan; `handle` raises CallMismatch when a peer's messages do not.
    """

    __slots__ = (
        "_all_channels",
        "_arithmetic",
        "_base_in",
        "_base_out",
        "_buffers",
        "_call",
        "_channels",
        "_inboxes",
        "_itemsize",
        "_outboxes",
        "_position",
        "_program",
        "_steps",
        "done",
        "plan",
        "rank",
    )

    def __init__(
        self,
        plan: Plan,
        rank: int,
        buffers: Mapping[str, Array],
        channels: Mapping[int, Channel],
        arithmetic: Arithmetic | None,
        call: int = 0,
    ) -> None:
        self.plan = plan
        self._call = call
        self.rank = rank
        self.done = False
        self._program = plan.program(rank)
        self._steps = self._program.steps
        self._position = 0
        self._arithmetic = arithmetic
        self._check_buffers(plan, plan.lengths(rank), buffers)
        self._buffers = dict(buffers)
        dtype = next(iter(buffers.values())).dtype if buffers else np.dtype(np.uint8)
        self._itemsize = dtype.itemsize
        self._all_channels = channels
        self._channels = {peer: channels[peer] for peer in self._program.peers}
        self._inboxes: dict[int, list[Array]] = {}
        self._outboxes: dict[int, list[Array]] = {}
        for peer, channel in self._channels.items():
            if plan.chunk * dtype.itemsize > channel.slot_bytes:
                raise LocalProtocolError(
                    f"chunks of {plan.chunk} elements of {dtype} do not fit slots of {channel.slot_bytes} bytes"
                )
            if plan.lanes + -(-channel.slots // CREDIT_BATCHES) > channel.slots:
                raise LocalProtocolError(
                    f"{plan.lanes} lanes need more than {channel.slots} staging slots to be safe from deadlock"
                )
            self._inboxes[peer], self._outboxes[peer] = channel.slot_views(dtype)
        self._base_in = {peer: channel.consumed for peer, channel in self._channels.items()}
        self._base_out = {peer: channel.sent for peer, channel in self._channels.items()}

    @staticmethod
    def _check_buffers(plan: Plan, lengths: Mapping[str, int], buffers: Mapping[str, Array]) -> None:
        if set(buffers) != set(lengths):
            raise LocalProtocolError(f"{plan.name} needs the buffers {sorted(lengths)}, got {sorted(buffers)}")
        for name, array in buffers.items():
            if array.ndim != 1 or not array.flags.c_contiguous or array.size != lengths[name]:
                raise LocalProtocolError(
                    f"{plan.name}: buffer {name!r} must be a contiguous array of {lengths[name]} elements, "
                    f"got shape {array.shape}, strides {array.strides}"
                )
        if len({array.dtype for array in buffers.values()}) > 1:
            raise LocalProtocolError(f"{plan.name}: all buffers must have one dtype")

    def start(self) -> Iterator[Action]:
        """Run up to the first step that has to wait."""
        return self._advance()

    def handle(self, event: Event) -> Iterator[Action]:
        """Take one event in and run as far as possible."""
        apply_event(self._all_channels, event)
        return self._advance()

    def resume(self) -> Iterator[Action]:
        """Run as far as possible after events that were applied to the channels directly."""
        return self._advance()

    def waiting_for(self) -> str:
        """In words, what the current step needs; for error messages."""
        if self.done or self._position >= len(self._steps):
            return "nothing"
        step = self._steps[self._position]
        if isinstance(step, Wait):
            return f"message {step.index} from rank {step.peer}"
        if isinstance(step, Put | Signal):
            return f"a free staging slot at rank {step.peer}"
        if isinstance(step, Reduce | Copy) and isinstance(step.dst, Outgoing):
            return f"a free staging slot at rank {step.dst.peer}"
        return "nothing"

    def waiting_peer(self) -> int | None:
        """The rank the current step waits for, if any."""
        if self.done or self._position >= len(self._steps):
            return None
        step = self._steps[self._position]
        if isinstance(step, Wait | Put | Signal):
            return step.peer
        if isinstance(step, Reduce | Copy) and isinstance(step.dst, Outgoing):
            return step.dst.peer
        return None

    def needs(self, peer: int) -> bool:
        """Whether this plan cannot end without `peer`: messages to it or from it are to come, or it has not confirmed
        all that were put."""
        channel = self._channels.get(peer)
        if channel is None:
            return False
        confirmed = max(channel.completed, channel.credits_received)
        if not self.done and confirmed < channel.sent:
            return True
        arrived = channel.arrived - self._base_in[peer]
        return any(
            step.index >= arrived if isinstance(step, Wait) else isinstance(step, _SENDS)
            for step in self._steps[self._position :]
            if isinstance(step, Put | Signal | Wait) and step.peer == peer
        )

    def _advance(self) -> Iterator[Action]:
        if self.done:
            return
        steps = self._steps
        position = self._position
        end = len(steps)
        while position < end:
            step = steps[position]
            if isinstance(step, Wait):
                ran = self._has_arrived(step)
            elif isinstance(step, Copy):
                ran = self._copy(step)
            elif isinstance(step, _SENDS):
                put = self._put(step)
                ran = put is not None
                if put is not None:
                    self._position = position + 1
                    yield put
            elif isinstance(step, Reduce):
                ran = self._reduce(step)
            else:
                ran = self._free(step)
            if not ran:
                break
            position += 1
        self._position = position
        for peer, channel in self._channels.items():
            if count := credits_due(channel):
                yield ReturnCredits(peer, count)
        if position == end:
            self.done = True
            for peer, count in self._program.incoming.items():
                self._channels[peer].consumed += count
            yield Done()

    def _has_arrived(self, step: Wait) -> bool:
        channel = self._channels[step.peer]
        number = self._base_in[step.peer] + step.index
        if channel.arrived <= number:
            return False
        expected = step.count * self._itemsize
        if channel.call(number) not in (None, self._call):
            raise CallMismatch(
                step.peer,
                f"{self.plan.name}: rank {step.peer} sent what belongs to another call than rank {self.rank}'s",
            )
        if channel.length(number) != expected:
            raise CallMismatch(
                step.peer,
                f"{self.plan.name}: rank {step.peer} sent {channel.length(number)} bytes where rank {self.rank} "
                f"expects {expected}: the ranks called different collectives, or with different sizes or dtypes",
            )
        return True

    def _may_write(self, place: Slice | Outgoing) -> bool:
        if isinstance(place, Slice):
            return True
        return self._channels[place.peer].may_put(self._base_out[place.peer] + place.index)

    def _view(self, place: Slice | Incoming | Outgoing) -> Array:
        if isinstance(place, Slice):
            return self._buffers[place.buffer][place.offset : place.offset + place.count]
        if isinstance(place, Incoming):
            slots, number = self._inboxes[place.peer], self._base_in[place.peer] + place.index
        else:
            slots, number = self._outboxes[place.peer], self._base_out[place.peer] + place.index
        return slots[number % len(slots)][: place.count]

    def _copy(self, step: Copy) -> bool:
        if not self._may_write(step.dst):
            return False
        np.copyto(self._view(step.dst), self._view(step.src))
        return True

    def _reduce(self, step: Reduce) -> bool:
        if not self._may_write(step.dst):
            return False
        if self._arithmetic is None:
            raise LocalProtocolError(f"{self.plan.name} reduces, but no operation was given")
        dst = self._view(step.dst)
        self._arithmetic.reduce(dst, self._view(step.local), self._view(step.arrived))
        if step.final:
            self._arithmetic.finish(dst)
        return True

    def _put(self, step: Put | Signal) -> PutMessage | None:
        """The message of a step; None when its slot is not free yet."""
        channel = self._channels[step.peer]
        number = self._base_out[step.peer] + step.index
        if not channel.may_put(number):
            return None
        nbytes, source, source_number = 0, None, 0
        if isinstance(step, Put):
            nbytes = step.src.count * self._itemsize
            if isinstance(step.src, Incoming):
                source, source_number = step.src.peer, self._base_in[step.src.peer] + step.src.index
                channel.forward(number, self._channels[source], source_number)
        channel.sent += 1
        credits = channel.take_credits(MOST_CREDITS)
        # Only a slot that is forwarded waits for a completion: each costs an acknowledgement and may wake this rank.
        completion = source is not None
        return PutMessage(step.peer, number, nbytes, credits, source, source_number, completion, self._call)

    def _free(self, step: Free) -> bool:
        self._channels[step.peer].release(self._base_in[step.peer] + step.index)
        return True
