"""The peers of one rank: queue pairs made when first needed, completions turned into events, failures put in words."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from typing import Any, Protocol

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import Action, PutCompleted, PutMessage, ReturnCredits, apply_event
from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.layout import Layout, announce_seat, learn_layout, own_seat
from fauxrdma.communicator.sleeping import sleep_on
from fauxrdma.errors import CollectiveError, FauxrdmaError, VerbsError
from fauxrdma.ib.enums import IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, WcStatus
from fauxrdma.verbs import CQ, PD, WC, CompChannel, Context

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


class PeerMesh:
    """Endpoints to the peers of `rank`, over one context, protection domain, completion queue and channel.

    `store` carries the addresses, under keys beginning with `prefix`. Opens the default HCA when `context` is None, and
    then closes it, too. `rail`: that of the HCA, if the user gave it one. `beside`: the rank's main mesh, where this
    one is of another channel. Raises VerbsError or SetupError when the HCA cannot be opened.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store,
        *,
        context: Context | None,
        prefix: str,
        slots: int,
        slot_bytes: int,
        rail: int | None = None,
        beside: PeerMesh | None = None,
    ) -> None:
        self.rank = rank
        self._world_size = world_size
        self._layout: Layout | None = None if beside is None else beside.layout
        self.endpoints: dict[int, Endpoint] = {}
        self.channels: dict[int, Channel] = {}
        self._by_qp: dict[int, Endpoint] = {}
        self._store = store
        self._prefix = prefix
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._owns_context = context is None
        self.context = Context() if context is None else context
        opened: list[Any] = []
        try:
            self._pd = PD(self.context)
            opened.append(self._pd)
            self._completion_channel = CompChannel(self.context)
            opened.append(self._completion_channel)
            # Receives and sends of a handful of peers, with room: an overrun would take all queue pairs down.
            depth = max(1024, 32 * slots * min(world_size, 64))
            self._cq = CQ(self.context, depth, None, self._completion_channel, 0)
            if beside is None:
                announce_seat(store, prefix, rank, own_seat(self.context, rail=rail))
        except BaseException:
            for resource in reversed(opened):
                resource.close()
            if self._owns_context:
                self.context.close()
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
        exponent = ack_timeout_exponent(float(self.context.dilation))
        for peer in new:
            endpoint = Endpoint(self._pd, self._cq, peer, slots=self._slots, slot_bytes=self._slot_bytes)
            self.endpoints[peer] = endpoint
            self._by_qp[endpoint.qp_num] = endpoint
            assert endpoint.channel is not None
            self.channels[peer] = endpoint.channel
            self._store.set(self._key(self.rank, peer, "endpoint"), endpoint.description())
        for peer in new:
            description = self._fetch(peer, "endpoint")
            self.endpoints[peer].connect(description, timeout=exponent, retry_cnt=RETRIES)
            self._check_reachable(peer)
            self._store.set(self._key(self.rank, peer, "ready"), b"1")
        for peer in new:
            # Only when the other side can receive may anything be sent: a queue pair before RTR is silent.
            self._fetch(peer, "ready")

    def _check_reachable(self, peer: int) -> None:
        """Say at once what the retries would only tell after a while, and not why."""
        remote = self.endpoints[peer].remote
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
                endpoint = self._endpoint_with_room(action.peer, deadline)
                if endpoint.failure is not None:
                    raise CollectiveError(endpoint.failure)
                endpoint.put(action, None if action.source is None else self.endpoints[action.source])
            elif isinstance(action, ReturnCredits):
                endpoint = self._endpoint_with_room(action.peer, deadline)
                if endpoint.failure is None:
                    endpoint.return_credits(action.count)

    def _endpoint_with_room(self, peer: int, deadline: float) -> Endpoint:
        """The endpoint, once its send queue has room; events that come meanwhile are kept in the channels."""
        endpoint = self.endpoints[peer]
        while endpoint.send_queue_full and endpoint.failure is None:
            self.wait(PROBE_S)
            if time.monotonic() > deadline:
                raise CollectiveError(f"rank {self.rank}: the send queue to rank {peer} stayed full until the timeout")
        return endpoint

    def wait(self, timeout_s: float) -> bool:
        """Block until something happens, at most `timeout_s` seconds of wall time; False when nothing did.

        Events go to the channels. Completions in error mark the endpoint; whether that matters is for the plan to say.
        """
        return self.poll() or sleep_on([self], timeout_s)

    def poll(self) -> bool:
        """Take in what has happened, without waiting; whether anything did."""
        _, completions = self._cq.poll(64)
        self._take(completions)
        return bool(completions)

    def due_in_s(self) -> float | None:
        """Nothing comes unannounced."""
        return None

    def before_sleep(self) -> list[int]:
        """Have the HCA announce what it does, on these file descriptors. Poll once more before you sleep."""
        self._cq.req_notify()
        return [self._completion_channel.fd]

    def after_sleep(self, ready: Collection[int]) -> bool:
        """Take in what happened; `ready` are the descriptors that were readable."""
        if self._completion_channel.fd in ready and self._completion_channel.get_cq_event(timeout_s=0) is not None:
            self._cq.ack_events(1)
        return self.poll()

    def _take(self, completions: list[WC]) -> None:
        """Completions of the HCA become events in the channels, or failures."""
        touched: set[Endpoint] = set()
        for wc in completions:
            endpoint = self._by_qp.get(wc.qp_num)
            if endpoint is None:
                continue
            if wc.status != IBV_WC_SUCCESS:
                # The first real error says what happened; the flushes around it only that it did.
                if endpoint.failure is None or (endpoint.flushed_only and wc.status != IBV_WC_WR_FLUSH_ERR):
                    endpoint.failure = self._failure_text(endpoint, wc)
                    endpoint.flushed_only = wc.status == IBV_WC_WR_FLUSH_ERR
            elif wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM:
                apply_event(self.channels, endpoint.received(wc))
                touched.add(endpoint)
            else:
                apply_event(self.channels, PutCompleted(endpoint.peer, endpoint.send_completed(wc)))
        for endpoint in touched:
            if endpoint.failure is None:
                endpoint.repost()

    # Failures.

    def _links(self, endpoint: Endpoint) -> str:
        try:
            path = self.context.path(endpoint.remote["lid"])
        except (FauxrdmaError, OSError, KeyError):
            return "path unknown"
        return "path " + " ".join(path.links) if path.links else "path within the node"

    def _failure_text(self, endpoint: Endpoint, wc: WC) -> str:
        try:
            status = WcStatus(wc.status).name.removeprefix("IBV_WC_")
        except ValueError:
            status = str(wc.status)
        return f"rank {self.rank} lost rank {endpoint.peer}: {self.describe(endpoint.peer)} completed with {status}"

    def describe(self, peer: int) -> str:
        """Queue pair number and path of the connection to `peer`, for error messages."""
        endpoint = self.endpoints[peer]
        return f"queue pair {endpoint.qp_num:#x} ({self._links(endpoint)})"

    def disconnect(self) -> None:
        """Destroy all queue pairs at once, so that peers that wait for this rank hear of it too."""
        for endpoint in self.endpoints.values():
            endpoint.disconnect()

    # The end.

    def drain(self) -> None:
        """Wait until every put is acknowledged, for a few seconds at most."""
        deadline = time.monotonic() + DRAIN_S
        try:
            while any(e.failure is None and not e.drained for e in self.endpoints.values()):
                if time.monotonic() > deadline:
                    return
                self.wait(0.1)
        except (FauxrdmaError, OSError):
            return

    def close(self) -> None:
        """Free everything. Never raises: what a dead daemon held is gone already."""
        self.channels.clear()
        self._by_qp.clear()
        for endpoint in self.endpoints.values():
            endpoint.close()
        self.endpoints.clear()
        resources: list[Any] = [self._cq, self._completion_channel, self._pd]
        if self._owns_context:
            resources.append(self.context)
        for resource in resources:
            try:
                resource.close()
            except (VerbsError, OSError):
                pass
