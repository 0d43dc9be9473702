"""Sends and receives over connections of their own, driven by a thread: they go on beside the collectives, and beside
each other, whatever the program does meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any

from fauxrdma.collectives.executor import PutMessage
from fauxrdma.collectives.point_to_point import PointToPoint, Transfer
from fauxrdma.communicator.mesh import PROBE_S, Store
from fauxrdma.communicator.message_peers import MessagePeers
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.peer_set import COUNT_EVERY_S
from fauxrdma.communicator.sleeping import sleep_on
from fauxrdma.errors import CollectiveError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.verbs import Context

__all__ = ["MessageThread"]

SLOTS = 8
SLOT_BYTES = 256 << 10
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""Between two looks at the store while a peer has not connected, in wall time: the pause grows as it goes on."""
DRAIN_S = 5.0
"""How long closing waits for what has been sent, in wall time."""


class MessageThread:
    """The point-to-point side of rank `rank` on an open context. Transfers may be submitted by any thread; their `done`
    is called on this object's thread and must be quick."""

    def __init__(
        self,
        context: Context,
        store: Store,
        prefix: str,
        rank: int,
        world_size: int,
        *,
        gpu: int | None,
        port: PeerPort,
        share_memory: bool,
    ) -> None:
        self.rank = rank
        self._world_size = world_size
        # A connection that no blocking call of another thread holds up.
        self._store: Any = store.clone() if hasattr(store, "clone") else store
        self._own_store = hasattr(store, "clone") and hasattr(store, "close")
        self._peers = MessagePeers(
            rank, world_size, self._store, context=context, prefix=prefix, slots=SLOTS, slot_bytes=SLOT_BYTES,
            gpu=gpu, port=port, share_memory=share_memory,
        )  # fmt: skip
        self._engine = PointToPoint(rank, self._peers.channels)
        self._failed: dict[int, str] = {}
        self._pause_s = SHORTEST_PAUSE_S
        self._deadlines: dict[Transfer, tuple[float, float]] = {}  # (when, seconds given)
        self._submitted: deque[tuple[Transfer, bool, float]] = deque()
        self._heard = time.monotonic()
        self._closing = False
        self._broken: str | None = None
        self._aborted: str | None = None
        self._wake_fd, self._ring_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name=f"fauxrdma-messages{rank}", daemon=True)
        self._thread.start()

    def submit(self, transfer: Transfer, *, send: bool, timeout_s: float) -> None:
        """Begin a transfer; it fails when it is not done `timeout_s` seconds of wall time later."""
        self._submitted.append((transfer, send, timeout_s))
        if self._broken is None:
            self._ring()
        else:
            self._take_submitted()

    def _ring(self) -> None:
        try:
            os.write(self._ring_fd, b"!")
        except BlockingIOError:
            pass  # it has been rung often enough

    # The thread.

    def _run(self) -> None:
        try:
            drained_by = None
            while True:
                self._turn()
                if self._closing:
                    drained_by = drained_by or time.monotonic() + DRAIN_S
                    if self._quiet() or (time.monotonic() > drained_by and self._may_leave()):
                        break
                self._sleep()
            self._peers.count_traffic()
            reason = f"rank {self.rank} closed its communicator"
        except BaseException as error:
            reason = f"rank {self.rank}: point-to-point messages ended: {error}"
        for transfer in list(self._deadlines):
            self._engine.give_up(transfer, reason)
        self._broken = reason
        self._take_submitted()

    def _turn(self) -> None:
        if self._aborted is not None:
            raise CollectiveError(self._aborted)
        peers = self._peers
        self._take_submitted()
        peers.look(for_anybody=self._anybody)
        peers.poll()
        for action in self._engine.advance():
            endpoint = peers.endpoints[action.peer]
            if isinstance(endpoint, NodePeer):
                if isinstance(action, PutMessage):
                    endpoint.put(action, None, peers.context.fabric_now_ns())
                else:
                    endpoint.return_credits(action.count)
                continue
            while endpoint.send_queue_full and endpoint.failure is None:
                peers.wait(0.01)
            if endpoint.failure is None:
                if isinstance(action, PutMessage):
                    endpoint.put(action, None)
                else:
                    endpoint.return_credits(action.count)
        self._note_failures()
        for transfer in [t for t in self._deadlines if t.finished]:
            del self._deadlines[transfer]
        peers.count_traffic(at_most_every_s=COUNT_EVERY_S)

    @property
    def _anybody(self) -> bool:
        """Whether a receive takes what comes from any rank."""
        return any(transfer.peer is None for transfer in self._deadlines)

    def _take_submitted(self) -> None:
        while self._submitted:
            transfer, send, timeout_s = self._submitted.popleft()
            peer = transfer.peer
            refused = self._broken if peer is None else self._broken or self._failed.get(peer)
            if send and refused is None:
                self._engine.send(transfer)
            elif send or self._broken:
                transfer.error, transfer.finished = refused, True
                transfer.done(transfer)
                continue
            else:
                self._engine.receive(transfer)  # what a peer sent before it failed can still be had
                if not transfer.finished and refused is not None:
                    self._engine.give_up(transfer, refused)
            if not transfer.finished:
                self._deadlines[transfer] = (time.monotonic() + timeout_s, timeout_s)
                if peer is None or self._peers.begin(peer):
                    self._pause_s = SHORTEST_PAUSE_S

    def _note_failures(self) -> None:
        for peer, endpoint in self._peers.endpoints.items():
            channel = self._peers.channels.get(peer)
            if channel is not None and channel.consumed < channel.arrived:
                continue  # what came before it failed counts: that is taken in first
            if endpoint.failure is not None and peer not in self._failed:
                self._failed[peer] = endpoint.failure
                self._engine.fail(peer, endpoint.failure)
        everyone = range(self._world_size)
        if self._failed and all(peer in self._failed for peer in everyone if peer != self.rank):
            for transfer in [t for t in self._deadlines if t.peer is None]:
                self._engine.give_up(transfer, "; ".join(self._failed.values()))
        now = time.monotonic()
        for transfer, (deadline, seconds) in list(self._deadlines.items()):
            if now > deadline and not transfer.finished:
                whom = "any rank" if transfer.peer is None else f"rank {transfer.peer}"
                state = " (which has not connected)" if transfer.peer in self._peers.connecting else ""
                self._engine.give_up(
                    transfer, f"rank {self.rank}: {transfer} with {whom}{state} not done after {seconds:g} s"
                )

    def _quiet(self) -> bool:
        """Whether all that this rank wanted to send is out and acknowledged."""
        return not self._submitted and self._engine.idle and self._drained()

    def _drained(self) -> bool:
        """Whether what was sent is acknowledged, or its peer lost."""
        peers = self._peers
        alive = [e for peer, e in peers.endpoints.items() if peer not in self._failed and peer not in peers.connecting]
        return all(endpoint.drained for endpoint in alive)

    def _may_leave(self) -> bool:
        """Whether wall time may end the wait: virtual time may have stood still all the while, and what is on its way
        would be lost."""
        return self._peers.context.virtual is None or self._drained()

    def _sleep(self) -> None:
        timeout_s = PROBE_S
        if self._peers.connecting or self._anybody or self._closing:
            timeout_s = self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        if self._deadlines:
            earliest = min(deadline for deadline, _ in self._deadlines.values())
            timeout_s = min(timeout_s, max(0.0, earliest - time.monotonic()) + 0.001)
        if sleep_on([self], timeout_s):
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > PROBE_S:
            self._heard = time.monotonic()
            for peer in self._engine.waiting_for():
                if peer is not None and peer in self._peers.channels and peer not in self._failed:
                    self._peers.probe(peer)

    # What it sleeps on: its peers, and transfers that are submitted.

    def poll(self) -> bool:
        """As in Sleeper."""
        return self._peers.poll() or bool(self._submitted)

    def due_in_s(self) -> float | None:
        """As in Sleeper."""
        return self._peers.due_in_s()

    def before_sleep(self) -> list[int]:
        """As in Sleeper."""
        return [*self._peers.before_sleep(), self._wake_fd]

    def after_sleep(self, ready: Collection[int]) -> bool:
        """As in Sleeper."""
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        return self._peers.after_sleep(ready) or self._wake_fd in ready

    # The end.

    def abort(self, reason: str) -> None:
        """Fail everything at once."""
        self._aborted = reason
        self._ring()

    def close(self) -> None:
        """Let what has been sent arrive (a few seconds at most), fail what has not, free everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._ring()
        self._thread.join(DRAIN_S + PROBE_S + 5.0 if self._peers.context.virtual is None else None)
        self._peers.close()
        if self._own_store:
            self._store.close()
        os.close(self._wake_fd)
        os.close(self._ring_fd)
