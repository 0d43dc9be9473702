"""Messages between two ranks, matched by source and tag, over staging slots; without input or output of its own.

Who sends does not know when the other side will ask for it, and tags may be asked for in any order. So a short message
(**eager**) goes at once and waits at the receiver; of a long one only a **request to send** goes, and its data follow
when the receiver has answered that it is **clear to send**. Nothing a rank does can then keep another from going on:
whatever arrives is taken out of its slot at once. Messages of one source and tag are received in the order they were
sent.

Each message of the channel begins with a header of 64 bytes: its kind, the dtype's name, the tag, the bytes of the
whole, the number its sender gave it, and for data the offset of this part.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fauxrdma.collectives.arithmetic import Array
from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import MOST_CREDITS, PutMessage, ReturnCredits, credits_due
from fauxrdma.errors import RemoteProtocolError

__all__ = ["EAGER_BYTES", "HEADER_BYTES", "PointToPoint", "Transfer"]

HEADER_BYTES = 64
EAGER_BYTES = 32 << 10
"""The longest message that is sent without asking, if a slot can hold it."""

_HEADER = struct.Struct("<B23sqQQQ")
_EAGER, _REQUEST, _CLEAR, _DATA, _REFUSE = range(1, 6)


@dataclass(eq=False, slots=True)
class Transfer:
    """One send or receive under way. `data` are the bytes, one-dimensional and contiguous; `dtype` names what they are
    and `count` how many. `peer` of a receive from any source is None until it is matched. `done` is called once, when
    `error` is a text or None."""

    peer: int | None
    tag: int
    data: Array
    dtype: str
    count: int
    done: Callable[[Transfer], None]
    error: str | None = None
    finished: bool = False
    sequence: int = -1
    """The number that the sender gave it."""
    moved: int = 0
    """Bytes that have left or arrived."""

    def __str__(self) -> str:
        return f"{self.count} elements of {self.dtype} under tag {self.tag}"


@dataclass(slots=True)
class _Unexpected:
    """What arrived before anybody asked for it; `data` None for a request to send."""

    peer: int
    kind: int
    dtype: str
    tag: int
    nbytes: int
    sequence: int
    data: Array | None


@dataclass(slots=True)
class _Outgoing:
    """What is to be put to a peer: short messages first, with the transfer whose data they carry if any; then the data
    of long transfers, in turn."""

    control: deque[tuple[bytes, Transfer | None]] = field(default_factory=deque)
    data: deque[Transfer] = field(default_factory=deque)


class PointToPoint:
    """The transfers of rank `rank`. `channels` may grow while peers connect; their slots hold at least `eager_bytes`
    and a header."""

    def __init__(self, rank: int, channels: Mapping[int, Channel], *, eager_bytes: int = EAGER_BYTES) -> None:
        self.rank = rank
        self._eager_bytes = eager_bytes
        self._channels = channels
        self._out: dict[int, _Outgoing] = {}
        self._sequence = 0
        self._asked: dict[tuple[int, int], Transfer] = {}  # sends that wait to be clear, by peer and sequence
        self._posted: list[Transfer] = []  # receives not matched yet, in order
        self._unexpected: list[_Unexpected] = []
        self._arriving: dict[tuple[int, int], Transfer] = {}  # receives whose data come, by peer and sequence

    # What the user asks for.

    def send(self, transfer: Transfer) -> None:
        """Begin a send to `transfer.peer`."""
        assert transfer.peer is not None
        transfer.sequence = self._sequence
        self._sequence += 1
        out = self._out.setdefault(transfer.peer, _Outgoing())
        nbytes = transfer.data.size
        if nbytes <= self._eager_bytes:
            out.control.append((_header(_EAGER, transfer.dtype, transfer.tag, nbytes, transfer.sequence), transfer))
        else:
            self._asked[transfer.peer, transfer.sequence] = transfer
            out.control.append((_header(_REQUEST, transfer.dtype, transfer.tag, nbytes, transfer.sequence), None))

    def receive(self, transfer: Transfer) -> None:
        """Begin a receive, from `transfer.peer` or from anybody."""
        for place, found in enumerate(self._unexpected):
            if found.tag == transfer.tag and transfer.peer in (None, found.peer):
                del self._unexpected[place]
                self._match(transfer, found)
                return
        self._posted.append(transfer)

    def waiting_for(self) -> set[int | None]:
        """The peers without whose doing nothing more happens; None stands for anybody."""
        peers: set[int | None] = {transfer.peer for transfer in self._posted}
        peers.update(peer for peer, _ in [*self._asked, *self._arriving])
        peers.update(peer for peer, out in self._out.items() if out.control or out.data)
        return peers

    @property
    def idle(self) -> bool:
        """Whether nothing is left that this rank wants to send."""
        return not self._asked and not any(out.control or out.data for out in self._out.values())

    def fail(self, peer: int, reason: str) -> None:
        """Everything with `peer` fails; what came from it before can still be received."""
        for (other, _), transfer in [*self._asked.items(), *self._arriving.items()]:
            if other == peer:
                self.give_up(transfer, reason)
        for transfer in [t for t in self._posted if t.peer == peer]:
            self.give_up(transfer, reason)
        out = self._out.pop(peer, _Outgoing())
        for transfer in [*(t for _, t in out.control if t is not None), *out.data]:
            self._finish(transfer, reason)
        self._unexpected = [u for u in self._unexpected if u.peer != peer or u.kind == _EAGER]

    def give_up(self, transfer: Transfer, reason: str) -> None:
        """Fail one transfer; what still arrives for it is dropped."""
        if transfer.finished:
            return
        if transfer in self._posted:
            self._posted.remove(transfer)
        for table in (self._asked, self._arriving):
            for key in [key for key, other in table.items() if other is transfer]:
                del table[key]
        for out in self._out.values():
            if transfer in out.data:
                out.data.remove(transfer)
            out.control = deque(entry for entry in out.control if entry[1] is not transfer)
        self._finish(transfer, reason)

    # The channels.

    def advance(self) -> Iterator[PutMessage | ReturnCredits]:
        """Take in what has arrived and put what there is room for."""
        for peer, channel in list(self._channels.items()):
            while channel.consumed < channel.arrived:
                number = channel.consumed
                start = number % channel.slots * channel.slot_bytes
                self._arrived(peer, channel.inbox[start : start + channel.length(number)])
                channel.release(number)
                channel.consumed = number + 1
            out = self._out.get(peer)
            while out is not None and (out.control or out.data) and channel.may_put(channel.sent):
                yield self._put(channel, out)
            if count := credits_due(channel):
                yield ReturnCredits(peer, count)

    def _put(self, channel: Channel, out: _Outgoing) -> PutMessage:
        slot = channel.slot_views(np.dtype(np.uint8))[1][channel.sent % channel.slots]
        if out.control:
            head, carried = out.control.popleft()
            body = np.frombuffer(head, np.uint8)[: channel.slot_bytes]
            slot[: body.size] = body
            nbytes = body.size
            if carried is not None:
                nbytes += carried.data.size
                slot[body.size : nbytes] = carried.data
                self._finish(carried)
        else:
            transfer = out.data[0]
            part = transfer.data[transfer.moved : transfer.moved + channel.slot_bytes - HEADER_BYTES]
            nbytes = HEADER_BYTES + part.size
            header = _header(_DATA, transfer.dtype, transfer.tag, transfer.data.size, transfer.sequence, transfer.moved)
            slot[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
            slot[HEADER_BYTES:nbytes] = part
            transfer.moved += part.size
            if transfer.moved == transfer.data.size:
                out.data.popleft()
                self._finish(transfer)
        number = channel.sent
        channel.sent += 1
        return PutMessage(channel.peer, number, nbytes, channel.take_credits(MOST_CREDITS), None, 0, True)

    def _arrived(self, peer: int, content: Array) -> None:
        if content.size < HEADER_BYTES:
            raise RemoteProtocolError(f"rank {peer} sent a message of {content.size} bytes, shorter than its header")
        kind, name, tag, nbytes, sequence, offset = _HEADER.unpack_from(content.data)
        dtype = name.rstrip(b"\0").decode()
        payload = content[HEADER_BYTES:]
        if kind in (_EAGER, _REQUEST):
            found = _Unexpected(peer, kind, dtype, tag, nbytes, sequence, payload if kind == _EAGER else None)
            for transfer in self._posted:
                if tag == transfer.tag and transfer.peer in (None, peer):
                    self._posted.remove(transfer)
                    self._match(transfer, found)
                    return
            if found.data is not None:
                found.data = found.data.copy()  # the slot goes back
            self._unexpected.append(found)
        elif kind == _DATA:
            arriving = self._arriving.get((peer, sequence))
            if arriving is not None:
                arriving.data[offset : offset + payload.size] = payload
                arriving.moved += payload.size
                if arriving.moved == nbytes:
                    del self._arriving[peer, sequence]
                    self._finish(arriving)
        else:
            asked = self._asked.pop((peer, sequence), None)
            if asked is None:
                return  # it was given up
            if kind == _CLEAR:
                self._out.setdefault(peer, _Outgoing()).data.append(asked)
            else:
                self._finish(asked, payload.tobytes().decode(errors="replace"))

    def _match(self, transfer: Transfer, found: _Unexpected) -> None:
        transfer.peer = found.peer
        transfer.sequence = found.sequence
        control = self._out.setdefault(found.peer, _Outgoing()).control
        if (found.nbytes, found.dtype) != (transfer.data.size, transfer.dtype):
            size = max(1, transfer.data.size // max(1, transfer.count)) if found.dtype == transfer.dtype else None
            sent = f"{found.nbytes // size} elements" if size else f"{found.nbytes} bytes"
            text = (
                f"rank {found.peer} sends {sent} of {found.dtype} under tag {found.tag}, but rank {self.rank} "
                f"receives {transfer}"
            )
            if found.kind == _REQUEST:
                control.append((_header(_REFUSE, "", found.tag, 0, found.sequence) + text.encode(), None))
            self._finish(transfer, text)
        elif found.data is not None:
            transfer.data[:] = found.data
            self._finish(transfer)
        else:
            self._arriving[found.peer, found.sequence] = transfer
            control.append((_header(_CLEAR, "", found.tag, 0, found.sequence), None))

    @staticmethod
    def _finish(transfer: Transfer, error: str | None = None) -> None:
        transfer.error = error
        transfer.finished = True
        transfer.done(transfer)


def _header(kind: int, dtype: str, tag: int, nbytes: int, sequence: int, offset: int = 0) -> bytes:
    packed = _HEADER.pack(kind, dtype.encode()[:23], tag, nbytes, sequence, offset)
    return packed + bytes(HEADER_BYTES - len(packed))
