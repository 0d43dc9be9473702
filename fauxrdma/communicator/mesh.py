"""The peers of one rank: connections made when first needed, what comes turned into events, failures put in words.

A peer on the same node is a `NodePeer`, reached by shared memory; any other is an `Endpoint`, a queue pair of the HCA.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Protocol

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import Action, PutMessage, ReturnCredits, apply_event
from fauxrdma.communicator.bell import Bell
from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.layout import Layout, announce_seat, data_gpu, learn_layout, own_seat
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.sleeping import sleep_on
from fauxrdma.errors import CollectiveError, FauxrdmaError, RemoteProtocolError, VerbsError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.fabric.peer_way import PeerWay, peer_way
from fauxrdma.verbs import CQ, PD, WC, CompChannel, Context

__all__ = ["PROBE_S", "PeerMesh", "Store", "ack_timeout_exponent"]

ACK_TIMEOUT_S = 0.5
"""How long a queue pair waits for an acknowledgement before it retries, in wall time."""
RETRIES = 3
PROBE_S = 0.5
"""Wall time without any news after which the peer that is waited for is asked for a sign of life."""
DRAIN_S = 5.0
"""How long `close` waits for the last puts to be acknowledged, in wall time."""
PATIENT_POLLS = 200
"""How often a rank that waits for one beside it looks before it sleeps: some 100 us, what falling asleep and being
woken would cost. Others may run in between."""


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


class PeerMesh:
    """Endpoints to the peers of `rank`, over one context, protection domain, completion queue and channel.

    `store` carries the addresses, under keys beginning with `prefix`. `rail`: that of the HCA, if the user gave it one.
    `beside`: the rank's main mesh, where this one is of another channel. `share_memory` False: peers on the same node
    are reached over the HCAs, too; the same on all ranks. `gpu`: the one whose memory the data is in, if the user said.
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
    ) -> None:
        self.rank = rank
        self._world_size = world_size
        self._layout: Layout | None = None if beside is None else beside.layout
        self.endpoints: dict[int, Endpoint | NodePeer] = {}
        self._far: list[Endpoint] = []
        self._near: list[NodePeer] = []
        self._share_memory = share_memory
        self._bell: Bell | None = None
        self._port: PeerPort = PeerPort() if beside is None else beside._port
        self._counted: dict[int, int] = {}  # bytes told to the fabric's counters, by peer on this node
        self._count_at = 0.0
        self._news = False  # whether something happened that the plan has not been told of
        self.channels: dict[int, Channel] = {}
        self._by_qp: dict[int, Endpoint] = {}
        self._store = store
        self._prefix = prefix
        self._slots = slots
        self._slot_bytes = slot_bytes
        self.context = context
        opened: list[Any] = []
        try:
            self.gpu: int | None = data_gpu(self.context, gpu) if beside is None else beside.gpu
            self._pd = PD(self.context)
            opened.append(self._pd)
            self._completion_channel = CompChannel(self.context)
            opened.append(self._completion_channel)
            # Receives and sends of a handful of peers, with room: an overrun would take all queue pairs down.
            depth = max(1024, 32 * slots * min(world_size, 64))
            self._cq = CQ(self.context, depth, None, self._completion_channel, 0)
            if beside is None:
                announce_seat(store, prefix, rank, own_seat(self.context, rail=rail, gpu=gpu))
        except BaseException:
            for resource in reversed(opened):
                resource.close()
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
        """Make the queue pairs to those of `peers` that have none. Both ends come here for the same plan."""
        new = [peer for peer in peers if peer not in self.endpoints]
        if not new:
            return
        near = self._connect_near([peer for peer in new if self._share_memory and self.layout.may_share_memory(peer)])
        self._connect_far([peer for peer in new if peer not in near])

    def _connect_far(self, new: list[int]) -> None:
        exponent = ack_timeout_exponent(float(self.context.dilation))
        made: list[Endpoint] = []
        for peer in new:
            endpoint = Endpoint(self._pd, self._cq, peer, slots=self._slots, slot_bytes=self._slot_bytes, gpu=self.gpu)
            made.append(endpoint)
            self._far.append(endpoint)
            self.endpoints[peer] = endpoint
            self._by_qp[endpoint.qp_num] = endpoint
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
        if not candidates:
            return set()
        if self._bell is None:
            self._bell = Bell()
        offers = [
            NodePeer(self.rank, peer, self._bell, self._port, slots=self._slots, slot_bytes=self._slot_bytes)
            for peer in candidates
        ]
        self._near += offers  # so that they are closed with the rest, whatever happens
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
                peer.way = self._way_to(peer.peer)
                peer.timed = self.context.clock != "none"
                self.endpoints[peer.peer] = peer
                self.channels[peer.peer] = peer.channel
            else:
                self._near.remove(peer)
                peer.close()
        return {peer.peer for peer in self._near}

    def _way_to(self, peer: int) -> PeerWay | None:
        """The way to a peer on this node; None for one on the same GPU."""
        here, there = self.layout.places[self.rank].gpu, self.layout.places[peer].gpu
        if here == there:
            return None
        return peer_way(self.context.host_shape, self.context.node, here, there)

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

    # Events in.

    def wait(self, timeout_s: float, peer: int | None = None) -> bool:
        """Block until something happens, at most `timeout_s` seconds of wall time; False when nothing did.

        `peer`: whom the rank waits for, if anyone. Events go to the channels. Completions in error and peers that are
        gone mark their endpoint; whether that matters is for the plan to say.
        """
        if self.poll():
            return True
        if isinstance(self.endpoints.get(-1 if peer is None else peer), NodePeer):
            # It is about as far as this rank, and sleeping costs more than its message takes. For what comes over an
            # HCA the time is better spent by the daemon that moves it.
            for _ in range(PATIENT_POLLS):
                os.sched_yield()
                if self.poll():
                    return True
        return sleep_on([self], timeout_s)

    def poll(self) -> bool:
        """Take in what has happened, without waiting; whether anything did."""
        happened, self._news = self._news, False
        if self._near:
            now_ns = self.context.fabric_now_ns()
            for peer in self._near:
                if peer.poll(now_ns):
                    happened = True
        if self._far:
            _, completions = self._cq.poll(64)
            if completions:
                self._take(completions)
                happened = True
        return happened

    def due_in_s(self) -> float | None:
        """Wall time until the next message of a peer on this node has covered its modelled way."""
        due = [peer.next_due_ns for peer in self._near if peer.next_due_ns is not None]
        if not due:
            return None
        return (min(due) - self.context.fabric_now_ns()) * float(self.context.dilation) / 1e9

    def before_sleep(self) -> list[int]:
        """Have the HCA and the peers on this node announce what they do, on these file descriptors. Poll once more
        before you sleep."""
        fds = [peer.exit_fd for peer in self._near if peer.failure is None]
        if self._bell is not None:
            self._bell.about_to_sleep()
            fds.append(self._bell.fd)
        if self._far:
            self._cq.req_notify()
            fds.append(self._completion_channel.fd)
        return fds

    def after_sleep(self, ready: Collection[int]) -> bool:
        """Take in what happened; `ready` are the descriptors that were readable."""
        if self._bell is not None:
            self._bell.awake()
        if self._completion_channel.fd in ready and self._completion_channel.get_cq_event(timeout_s=0) is not None:
            self._cq.ack_events(1)
        happened = self.poll()
        for peer in self._near:
            if peer.exit_fd in ready and not peer.check_alive():
                happened = True
        return happened

    def _take(self, completions: list[WC]) -> None:
        """Completions of the HCA become events in the channels, or failures."""
        touched: set[Endpoint] = set()
        for wc in completions:
            endpoint = self._by_qp.get(wc.qp_num)
            if endpoint is None:
                continue
            event = endpoint.take(wc, partial(self._lost, endpoint))
            if event is not None:
                apply_event(self.channels, event)
                touched.add(endpoint)
        for endpoint in touched:
            if endpoint.failure is None:
                endpoint.repost()

    def probe(self, peer: int) -> None:
        """Ask a peer that is waited for in vain for a sign of life."""
        endpoint = self.endpoints[peer]
        if isinstance(endpoint, NodePeer):
            endpoint.check_alive()
        else:
            endpoint.probe()

    # Failures.

    def _links(self, endpoint: Endpoint) -> str:
        try:
            path = self.context.path(endpoint.remote["lid"])
        except (FauxrdmaError, OSError, KeyError):
            return "path unknown"
        return "path " + " ".join(path.links) if path.links else "path within the node"

    def _lost(self, endpoint: Endpoint) -> str:
        return f"rank {self.rank} lost rank {endpoint.peer}: {self.describe(endpoint.peer)}"

    def describe(self, peer: int) -> str:
        """Queue pair number and path of the connection to `peer`, for error messages."""
        endpoint = self.endpoints[peer]
        if isinstance(endpoint, NodePeer):
            return endpoint.describe()
        return f"queue pair {endpoint.qp_num:#x} ({self._links(endpoint)})"

    def disconnect(self, reason: str) -> None:
        """Destroy all queue pairs at once, so that peers that wait for this rank hear of it too; those on this node are
        told why."""
        for endpoint in self._far:
            endpoint.disconnect()
        for peer in self._near:
            peer.disconnect(reason)

    # Counters.

    def count_traffic(self, *, at_most_every_s: float = 0.0) -> None:
        """Tell the fabric's counters what went to peers on this node, unless that was done just now."""
        if not self._near or (at_most_every_s and time.monotonic() < self._count_at + at_most_every_s):
            return
        self._count_at = time.monotonic()
        places = self.layout.places
        for peer in self._near:
            nbytes = peer.sent_bytes - self._counted.get(peer.peer, 0)
            if not nbytes or peer.way is None:
                continue
            self._counted[peer.peer] = peer.sent_bytes
            busy_ns = round(nbytes / peer.way.bytes_per_ns) if peer.timed else 0
            self.context.count_peer_traffic(places[self.rank].gpu, places[peer.peer].gpu, nbytes, busy_ns)

    # The end.

    def drain(self) -> None:
        """Wait until every put is acknowledged, for a few seconds at most."""
        deadline = time.monotonic() + DRAIN_S
        try:
            while waiting := [e for e in self._far if e.failure is None and not e.drained]:
                if time.monotonic() > deadline:
                    return
                for endpoint in waiting:
                    endpoint.probe()  # its completion retires what was put before without asking for one
                self.wait(0.1)
        except (FauxrdmaError, OSError):
            return

    def close(self) -> None:
        """Free everything. Never raises: what a dead daemon held is gone already."""
        self.channels.clear()
        self._by_qp.clear()
        for endpoint in self._far:
            endpoint.close()
        for peer in self._near:
            peer.close()
        self.endpoints.clear()
        if self._bell is not None:
            self._bell.close()
        for resource in (self._cq, self._completion_channel, self._pd):
            try:
                resource.close()
            except (VerbsError, OSError):
                pass
