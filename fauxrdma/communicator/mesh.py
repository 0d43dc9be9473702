"""The peers that a rank runs plans with: connected when a plan first needs them, each waiting for the other."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from fauxrdma.collectives.executor import Action, PutMessage, ReturnCredits
from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.layout import Layout, announce_seat, data_gpu, learn_layout, own_seat
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.peer_set import PeerSet
from fauxrdma.errors import CollectiveError, FauxrdmaError, RemoteProtocolError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.verbs import Context

__all__ = ["PROBE_S", "PeerMesh", "Store", "ack_timeout_exponent"]

ACK_TIMEOUT_S = 0.5
"""How long a queue pair waits for an acknowledgement before it retries, in wall time."""
RETRIES = 3
PROBE_S = 0.5
"""Wall time without any news after which the peer that is waited for is asked for a sign of life."""
DRAIN_S = 5.0
"""How long `close` waits for the last puts to be acknowledged, in wall time."""


class Store(Protocol):
    """What rendezvous needs. A torch Store fits; so does RendezvousStore."""

    def set(self, key: str, value: Any) -> Any:
        """Store bytes under `key`."""

    def get(self, key: str) -> Any:
        """The bytes under `key`; blocks until there are some."""

    def check(self, keys: list[str]) -> bool:
        """Whether there are bytes under all of `keys`."""


def ack_timeout_exponent(dilation: float) -> int:
    """The IB timeout exponent t for which 4.096 us x 2^t of fabric time is about 0.5 s of wall time (1..31).

    Fabric time runs `dilation` times slower than wall time.
    """
    exponent = math.log2(ACK_TIMEOUT_S / (4.096e-6 * max(dilation, 1e-9)))
    return min(31, max(1, round(exponent)))


class PeerMesh(PeerSet):
    """Endpoints to the peers of `rank`, over one context, protection domain, completion queue and channel.

    `store` carries the addresses, under keys beginning with `prefix`. `rail`: that of the HCA, if the user gave it one.
    `beside`: the rank's main mesh, where this one is of another channel. `share_memory` False: peers on the same node
    are reached over the HCAs, too; the same on all ranks. `gpu`: the one whose memory the data is in, if the user said.
    `settings`: what must be the same on all ranks, which is checked when they first connect.
    Raises VerbsError when the HCA does not give what is needed.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        *,
        context: Context,
        prefix: str,
        slots: int,
        slot_bytes: int,
        rail: int | None = None,
        beside: PeerMesh | None = None,
        share_memory: bool = True,
        gpu: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._world_size = world_size
        self._layout: Layout | None = None if beside is None else beside.layout
        self._share_memory = share_memory
        self._news = False  # whether something happened that the plan has not been told of
        self._store = store
        self._prefix = prefix
        # Receives and sends of a handful of peers, with room: an overrun would take all queue pairs down.
        depth = max(1024, 32 * slots * min(world_size, 64))
        seat = own_seat(context, rail=rail, gpu=gpu) if beside is None else None
        super().__init__(
            rank, context, slots=slots, slot_bytes=slot_bytes, cqe=depth,
            gpu=data_gpu(context, gpu) if beside is None else beside.gpu,
            port=PeerPort() if beside is None else beside.port,
        )  # fmt: skip
        if seat is not None:
            try:
                announce_seat(store, prefix, rank, replace(seat, settings=settings or {}))
            except BaseException:
                self.close()
                raise

    @property
    def layout(self) -> Layout:
        """Where all ranks sit. The first use waits until all ranks have made their mesh."""
        # Not a cached_property: in Python 3.11 those of all instances share a lock, and ranks may be threads.
        if self._layout is None:
            self._layout = learn_layout(self._store, self._prefix, self.rank, self._world_size)
        return self._layout

    # Connections.

    def connect(self, peers: Iterable[int]) -> None:
        """Make the queue pairs to those of `peers` that have none. Both ends come here for the same plan. Raises
        ConfigError when the ranks' settings differ: before the first message, which would be of another plan."""
        new = [peer for peer in peers if peer not in self.endpoints]
        if not new:
            return
        layout = self.layout
        near = self._connect_near([peer for peer in new if self._share_memory and layout.may_share_memory(peer)])
        self._connect_far([peer for peer in new if peer not in near])

    def _connect_far(self, new: list[int]) -> None:
        exponent = ack_timeout_exponent(float(self.context.dilation))
        made: list[Endpoint] = []
        for peer in new:
            endpoint = self._make_far(peer)
            made.append(endpoint)
            assert endpoint.channel is not None
            self.channels[peer] = endpoint.channel
            self._store.set(self._key(self.rank, peer, "endpoint"), endpoint.description())
        for endpoint in made:
            description = self._fetch(endpoint.peer, "endpoint")
            endpoint.connect(description, timeout=exponent, retry_cnt=RETRIES)
            self._check_reachable(endpoint)
            self._store.set(self._key(self.rank, endpoint.peer, "ready"), b"1")
        for peer in new:
            # Only when the other side can receive may anything be sent: a queue pair before RTR is silent.
            self._fetch(peer, "ready")

    def _connect_near(self, candidates: list[int]) -> set[int]:
        """Share memory with those of `candidates` with whom that works both ways; returns them."""
        offers = [self._make_near(peer) for peer in candidates]
        for peer in offers:
            self._store.set(self._key(self.rank, peer.peer, "inbox"), peer.description())
        for peer in offers:
            try:
                peer.connect(self._fetch(peer.peer, "inbox"))
                answer = b"1"
            except (OSError, RemoteProtocolError):
                answer = b"0"  # a system that hides the memory of others: the HCAs will do
            self._store.set(self._key(self.rank, peer.peer, "shared"), answer)
        for peer in offers:
            if self._fetch(peer.peer, "shared") == b"1" and peer.channel is not None:
                peer.place(self.context, self.layout.seats[self.rank], self.layout.seats[peer.peer])
                self.channels[peer.peer] = peer.channel
            else:
                self._drop_near(peer)
        return {peer.peer for peer in self._near}

    def _check_reachable(self, endpoint: Endpoint) -> None:
        """Say at once what the retries would only tell after a while, and not why."""
        peer, remote = endpoint.peer, endpoint.remote
        if not self.context.path(remote["lid"]).reachable:
            hca = self.context.hca
            raise CollectiveError(
                f"rank {self.rank} on {hca.name} of node {self.context.node} cannot reach rank {peer} on node "
                f"{remote['node']}: the fabric has no path from LID {hca.lid} to LID {remote['lid']}. On a fabric of "
                "islands (planes, rails without spines) use ranks whose HCAs are on the same one"
            )

    def _key(self, source: int, target: int, what: str) -> str:
        return f"{self._prefix}fauxrdma/{source}/{target}/{what}"

    def _fetch(self, peer: int, what: str) -> bytes:
        try:
            return bytes(self._store.get(self._key(peer, self.rank, what)))
        except FauxrdmaError:
            raise
        except Exception as error:  # a torch store raises its own kinds
            raise CollectiveError(
                f"rank {self.rank} waited for rank {peer} to connect ({what}) and gave up: {error}; "
                "did that rank end, or call another collective?"
            ) from error

    # Actions out, events in.

    def perform(self, actions: Iterable[Action], deadline: float) -> None:
        """Post what the executor asks for. Raises CollectiveError when a send queue stays full past `deadline`."""
        for action in actions:
            if isinstance(action, PutMessage):
                endpoint = self.endpoints[action.peer]
                if isinstance(endpoint, NodePeer):
                    source = None if action.source is None else self.channels[action.source]
                    endpoint.put(action, source, self.context.fabric_now_ns())
                    continue
                self._make_room(endpoint, deadline)
                if endpoint.failure is not None:
                    raise CollectiveError(endpoint.failure)
                origin = None if action.source is None else self.endpoints[action.source]
                endpoint.put(action, origin.channel if isinstance(origin, NodePeer) else origin)
            elif isinstance(action, ReturnCredits):
                endpoint = self.endpoints[action.peer]
                if isinstance(endpoint, Endpoint):
                    self._make_room(endpoint, deadline)
                if endpoint.failure is None:
                    endpoint.return_credits(action.count)

    def _make_room(self, endpoint: Endpoint, deadline: float) -> None:
        """Wait until the send queue has room; events that come meanwhile are kept in the channels."""
        while endpoint.send_queue_full and endpoint.failure is None:
            if self.wait(PROBE_S):
                self._news = True
            if time.monotonic() > deadline:
                raise CollectiveError(
                    f"rank {self.rank}: the send queue to rank {endpoint.peer} stayed full until the timeout"
                )

    def poll(self) -> bool:
        """Take in what has happened, without waiting; whether anything did that the plan has not been told of."""
        news, self._news = self._news, False
        return super().poll() or news

    # The end.

    def drain(self) -> None:
        """Part from every peer, for a few seconds at most: wait until what was put is there, or not wanted. In virtual
        time, which wall time must not change, until the retries of a peer that is gone are used up."""
        deadline = time.monotonic() + DRAIN_S if self.context.virtual is None else math.inf
        try:
            while waiting := [e for e in self._far if e.failure is None and not e.parted]:
                if time.monotonic() > deadline:
                    return
                for endpoint in waiting:
                    endpoint.say_farewell()
                self.wait(0.1)
        except (FauxrdmaError, OSError):
            return
