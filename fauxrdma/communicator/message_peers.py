"""The peers of a rank's sends and receives: connected without waiting.

A pair of ranks connects when both have something to say to, or to hear from, each other; a receive from any source
answers whoever begins. Addresses travel through the store, which is asked and never waited for: so no rank holds up
another by connecting in another order. What a peer is waited for next, and what follows:

    seat -> inbox -> shared -> (connected)      ranks of a node, if the system lets both map the other's memory
    seat -> endpoint -> ready -> (connected)    over the HCAs, and where sharing turned out to be impossible
"""

from __future__ import annotations

from typing import Any

from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.layout import fetch_seat, seat_is_known
from fauxrdma.communicator.mesh import RETRIES, ack_timeout_exponent
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.peer_set import PeerSet
from fauxrdma.errors import RemoteProtocolError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.verbs import Context

__all__ = ["MessagePeers"]


class MessagePeers(PeerSet):
    """The peers of rank `rank`. `store` carries the addresses under keys that begin with `prefix`, and has the seats of
    all ranks there; `share_memory` False: peers on the same node are reached over the HCAs, too."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Any,
        *,
        context: Context,
        prefix: str,
        slots: int,
        slot_bytes: int,
        gpu: int | None,
        port: PeerPort,
        share_memory: bool,
    ) -> None:
        super().__init__(rank, context, slots=slots, slot_bytes=slot_bytes, cqe=4096, gpu=gpu, port=port)
        self._store = store
        self._prefix = prefix
        self._others = [peer for peer in range(world_size) if peer != rank]
        self._share_memory = share_memory
        self.connecting: dict[int, str] = {}
        """What is looked for of those peers that are not connected yet."""
        self._exponent = ack_timeout_exponent(float(context.dilation))

    def begin(self, peer: int) -> bool:
        """Connect to `peer`, unless that has begun; whether it is new."""
        if peer in self.endpoints or peer in self.connecting:
            return False
        self.connecting[peer] = "seat"
        self._go_on(peer)
        return True

    def look(self, *, for_anybody: bool) -> None:
        """Go on with every peer that has done its part; with `for_anybody` also answer those that have begun."""
        for peer in list(self.connecting):
            self._go_on(peer)
        if for_anybody:
            for peer in self._others:
                if self._is_there(peer, "inbox") or self._is_there(peer, "endpoint"):
                    self.begin(peer)

    def _go_on(self, peer: int) -> None:
        if self.connecting[peer] == "seat" and seat_is_known(self._store, self._prefix, peer):
            here, there = (fetch_seat(self._store, self._prefix, rank) for rank in (self.rank, peer))
            if self._share_memory and here.beside(there):
                near = self._make_near(peer)
                near.place(self.context, here, there)
                self._offer(near, "inbox")
            else:
                self._offer(self._make_far(peer), "endpoint")
        while (what := self.connecting.get(peer, "seat")) != "seat" and self._is_there(peer, what):
            self._take_up(self.endpoints[peer], what, bytes(self._store.get(self._key(peer, self.rank, what))))

    def _offer(self, endpoint: Endpoint | NodePeer, what: str) -> None:
        self._store.set(self._key(self.rank, endpoint.peer, what), endpoint.description())
        self.connecting[endpoint.peer] = what

    def _take_up(self, endpoint: Endpoint | NodePeer, what: str, said: bytes) -> None:
        """`endpoint.peer` has `said` what was looked for."""
        peer = endpoint.peer
        if isinstance(endpoint, NodePeer):
            if what == "inbox":
                try:
                    endpoint.connect(said)
                    answer = b"1"
                except (OSError, RemoteProtocolError):
                    answer = b"0"  # a system that hides the memory of others: the HCAs will do
                self._answer(peer, "shared", answer)
                return
            if said != b"1" or endpoint.channel is None:
                self._drop_near(endpoint)
                self._offer(self._make_far(peer), "endpoint")
                return
        elif what == "endpoint":
            endpoint.connect(said, timeout=self._exponent, retry_cnt=RETRIES)
            if not self.context.path(endpoint.remote["lid"]).reachable:
                endpoint.failure = f"rank {self.rank} cannot reach rank {peer}: the fabric has no path to its HCA"
            # Only when the other side can receive may anything be sent: a queue pair before RTR is silent.
            self._answer(peer, "ready", b"1")
            return
        del self.connecting[peer]
        assert endpoint.channel is not None
        self.channels[peer] = endpoint.channel

    def _answer(self, peer: int, what: str, said: bytes) -> None:
        self._store.set(self._key(self.rank, peer, what), said)
        self.connecting[peer] = what

    def _key(self, source: int, target: int, what: str) -> str:
        return f"{self._prefix}fauxrdma/messages/{source}/{target}/{what}"

    def _is_there(self, peer: int, what: str) -> bool:
        return bool(self._store.check([self._key(peer, self.rank, what)]))

    def _lost(self, endpoint: Endpoint) -> str:
        return f"rank {self.rank} lost rank {endpoint.peer}: queue pair {endpoint.qp_num:#x} of their messages"
