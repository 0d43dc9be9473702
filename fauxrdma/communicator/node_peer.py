"""One peer on the same node: messages by shared memory, notified by a bell when it sleeps.

It stands where an `Endpoint` stands for a peer that is reached over an HCA. What the plan prepares in the outbox lies
in the peer's inbox already, so a put only announces it; a forwarded message is copied from one inbox to the other.
"""

from __future__ import annotations

import os
import select

import msgpack

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import PutMessage
from fauxrdma.communicator.bell import Bell, BellRope
from fauxrdma.communicator.endpoint import check_staging
from fauxrdma.communicator.layout import Seat
from fauxrdma.communicator.shared_inbox import SharedInbox
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.fabric.peer_way import PeerWay, peer_way
from fauxrdma.verbs import Context

__all__ = ["NodePeer"]


class NodePeer:
    """The connection to `peer`. Made unconnected; `description()` goes to the peer, whose own goes into `connect()`.

    `port` is the own GPU's, shared by the peers of a rank. `way` is the way to the peer, if it has a GPU of its own;
    `timed` says whether messages take the time it takes.
    """

    def __init__(self, rank: int, peer: int, bell: Bell, port: PeerPort, *, slots: int, slot_bytes: int) -> None:
        self.rank = rank
        self.peer = peer
        self.failure: str | None = None
        """What went wrong with this connection, once something did."""
        self.next_due_ns: int | None = None
        """Fabric time at which the next message is here, when one is under way."""
        self.channel: Channel | None = None
        self.way: PeerWay | None = None
        self.timed = False
        self.virtual = False
        """Whether time is virtual: then the queue at the own port takes a message when its first bit is there, and not
        when this rank first looks, which may be any time."""
        self.sent_bytes = 0
        """Payload put since the beginning."""
        self._counted = 0  # of these, told to the fabric's counters
        self._gpus = (0, 0)
        self.pid = 0
        self.exit_fd = -1
        """Readable once the peer's process has ended."""
        self._bell = bell
        self._port = port
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._inbox = SharedInbox.create(slots, slot_bytes)
        self._outbox: SharedInbox | None = None
        self._rope: BellRope | None = None

    def description(self) -> bytes:
        """What the peer needs to connect."""
        content = {"inbox": self._inbox.fd, "slots": self._slots, "slot_bytes": self._slot_bytes}
        packed: bytes = msgpack.packb({**content, "bell": self._bell.description}, use_bin_type=True)
        return packed

    def connect(self, description: bytes) -> None:
        """Map what the peer described. Raises CollectiveError when the two sides stage differently, OSError or
        RemoteProtocolError when its memory cannot be had."""
        remote = msgpack.unpackb(description, raw=False)
        check_staging(self.peer, remote, self._slots, self._slot_bytes)
        self.pid = remote["bell"]["pid"]
        self.exit_fd = os.pidfd_open(self.pid)
        self._rope = BellRope(remote["bell"])
        self._outbox = SharedInbox.attach(self.pid, remote["inbox"], self._slots, self._slot_bytes)
        self.channel = Channel(self.peer, self._slots, self._slot_bytes, self._inbox.memory, self._outbox.memory)

    def place(self, context: Context, here: Seat, there: Seat) -> None:
        """Messages take the way between the GPUs of two seats of this node, and the time that it takes unless the
        context's clock is none; between ranks on one GPU there is none."""
        self._gpus = (here.place.gpu, there.place.gpu)
        if here.place.gpu != there.place.gpu:
            self.way = peer_way(context.host_shape, context.node, *self._gpus)
        self.timed = context.clock != "none"
        self.virtual = context.virtual is not None

    # Sending.

    def put(self, message: PutMessage, source: Channel | None, now_ns: int) -> None:
        """Announce a message; `source` is the channel whose inbox is forwarded, `now_ns` fabric time."""
        assert self.channel is not None
        assert self._outbox is not None
        assert self._rope is not None
        if source is not None and message.nbytes:
            start = message.number % self._slots * self._slot_bytes
            landed = source.landed(message.source_number, message.nbytes)
            self._outbox.memory[start : start + message.nbytes] = landed
        if message.credits:
            self._inbox.give_back(message.credits)
        way = self.way
        begun_ns = 0
        if self.timed and way is not None:
            begun_ns = self._port.send(now_ns, message.nbytes, way.bytes_per_ns)
        self.sent_bytes += message.nbytes
        self._outbox.announce(message.number, message.nbytes, begun_ns, message.call)
        self._rope.ring()
        self.channel.put_completed(message.number + 1)

    def return_credits(self, count: int) -> None:
        """Tell the peer that `count` of its slots are free."""
        assert self._rope is not None
        self._inbox.give_back(count)
        self._rope.ring()

    @property
    def drained(self) -> bool:
        """Whether every message put is with the peer: it is in its memory."""
        return True

    def count_traffic(self, context: Context) -> None:
        """Tell the fabric's counters what was put since the last time."""
        nbytes = self.sent_bytes - self._counted
        if nbytes and self.way is not None:
            # Rounded over all: how often it is told is a matter of wall time.
            before_ns, now_ns = (round(sent / self.way.bytes_per_ns) for sent in (self._counted, self.sent_bytes))
            self._counted += nbytes
            busy_ns = now_ns - before_ns if self.timed else 0
            context.count_peer_traffic(*self._gpus, nbytes, busy_ns)

    # Receiving.

    def arrives_ns(self) -> tuple[int, int]:
        """When the first bit of the next message is here, and whose it is; time without end for none."""
        channel, way = self.channel, self.way
        if channel is None or way is None or not self.timed or self._inbox.put <= channel.arrived:
            return 1 << 62, self.peer
        return self._inbox.message(channel.arrived)[1] + way.latency_ns, self.peer

    @property
    def under_way(self) -> bool:
        """In virtual time: whether something that the peer has sent is still to arrive."""
        return self.virtual and self.due_ns() is not None

    def due_ns(self) -> int | None:
        """In virtual time: when there is something to do with what is under way."""
        if self.next_due_ns is not None:
            return self.next_due_ns
        arrives_ns, _ = self.arrives_ns()
        return arrives_ns if arrives_ns < 1 << 62 else None

    def poll(self, now_ns: int) -> bool:
        """Take in what the peer has written by fabric time `now_ns`; whether there was anything."""
        channel, outbox, inbox = self.channel, self._outbox, self._inbox
        if channel is None or outbox is None:
            return False
        happened = False
        left = inbox.sender_left  # before the messages: what it had put until then still counts
        if (fresh := outbox.credits - channel.credits_received) > 0:
            channel.credit(fresh)
            happened = True
        while inbox.put > channel.arrived:
            nbytes, begun_ns, call = inbox.message(channel.arrived)
            if self.timed and (way := self.way) is not None:
                if self.virtual and now_ns < begun_ns + way.latency_ns:
                    return happened
                if self.next_due_ns is None:
                    self.next_due_ns = self._port.receive(begun_ns, nbytes, way.bytes_per_ns, way.latency_ns)
                if now_ns < self.next_due_ns:
                    return happened
                self.next_due_ns = None
            channel.data(channel.arrived, nbytes, call)
            happened = True
        if left and self.failure is None:
            reason = inbox.reason
            self.failure = f"{self._lost()}, whose communicator " + (f"broke ({reason})" if reason else "was closed")
            happened = True
        return happened

    def check_alive(self) -> bool:
        """Whether the peer's process still runs; if not, `failure` says so. In virtual time what it sent comes
        first."""
        if self.under_way:
            return True
        poller = select.poll()
        poller.register(self.exit_fd, select.POLLIN)
        if not poller.poll(0):
            return True
        if self.failure is None:
            self.failure = f"{self._lost()}, which has ended"
        return False

    def describe(self) -> str:
        """What joins the two ranks, for error messages."""
        path = "path unknown" if self.way is None else f"path {' '.join(self.way.links)}"
        return f"shared memory ({path}) with process {self.pid}"

    def _lost(self) -> str:
        return f"rank {self.rank} lost rank {self.peer}: {self.describe()}"

    # The end.

    def disconnect(self, reason: str = "") -> None:
        """Tell the peer that nothing more comes, and why, so that it need not wait."""
        if self._outbox is not None and self._rope is not None and self._outbox.fd >= 0:
            self._outbox.leave(reason)
            self._rope.ring()

    def close(self) -> None:
        """Leave and free everything. Idempotent."""
        self.disconnect()
        self.channel = None  # its arrays must be gone before the memory can be unmapped
        for part in (self._rope, self._outbox, self._inbox):
            if part is not None:
                part.close()
        if self.exit_fd >= 0:
            os.close(self.exit_fd)
            self.exit_fd = -1
