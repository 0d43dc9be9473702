"""Sends and receives over queue pairs of their own, driven by a thread: they go on beside the collectives, and beside
each other, whatever the program does meanwhile.

A pair of ranks connects when both have something to say to, or to hear from, each other; a receive from any source
answers whoever begins. Addresses travel through the store, which is asked and never waited for: so no rank holds up
another by connecting in another order.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from functools import partial
from typing import Any

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import PutMessage, apply_event
from fauxrdma.collectives.point_to_point import PointToPoint, Transfer
from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.mesh import PROBE_S, RETRIES, Store, ack_timeout_exponent
from fauxrdma.errors import VerbsError
from fauxrdma.verbs import CQ, PD, WC, CompChannel, Context

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
        self, context: Context, store: Store, prefix: str, rank: int, world_size: int, gpu: int | None
    ) -> None:
        self.rank = rank
        self._gpu = gpu
        self._world_size = world_size
        self._context = context
        # A connection that no blocking call of another thread holds up.
        self._store: Any = store.clone() if hasattr(store, "clone") else store
        self._own_store = hasattr(store, "clone") and hasattr(store, "close")
        self._prefix = f"{prefix}fauxrdma/messages"
        self._channels: dict[int, Channel] = {}
        self._engine = PointToPoint(rank, self._channels)
        self._endpoints: dict[int, Endpoint] = {}
        self._by_qp: dict[int, Endpoint] = {}
        self._failed: dict[int, str] = {}
        self._connecting: dict[int, str] = {}  # peers by what of theirs is looked for in the store
        self._pause_s = SHORTEST_PAUSE_S
        self._deadlines: dict[Transfer, tuple[float, float]] = {}  # (when, seconds given)
        self._submitted: deque[tuple[Transfer, bool, float]] = deque()
        self._heard = time.monotonic()
        self._closing = False
        self._broken: str | None = None
        self._exponent = ack_timeout_exponent(float(context.dilation))
        self._pd = PD(context)
        self._events = CompChannel(context)
        self._cq = CQ(context, 4096, None, self._events, 0)
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
                    if self._quiet() or time.monotonic() > drained_by:
                        break
                self._sleep()
            reason = f"rank {self.rank} closed its communicator"
        except BaseException as error:
            reason = f"rank {self.rank}: point-to-point messages ended: {error}"
        for transfer in list(self._deadlines):
            self._engine.give_up(transfer, reason)
        self._broken = reason
        self._take_submitted()

    def _turn(self) -> None:
        self._take_submitted()
        self._look_for_peers()
        self._take_completions()
        for action in self._engine.advance():
            endpoint = self._endpoints[action.peer]
            while endpoint.send_queue_full and endpoint.failure is None:
                self._events.get_cq_event(timeout_s=0.01)
                self._take_completions()
            if endpoint.failure is None:
                if isinstance(action, PutMessage):
                    endpoint.put(action, None)
                else:
                    endpoint.return_credits(action.count)
        self._note_failures()
        for transfer in [t for t in self._deadlines if t.finished]:
            del self._deadlines[transfer]

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
                if peer is None:
                    self._pause_s = SHORTEST_PAUSE_S
                elif peer not in self._endpoints:
                    self._begin(peer)

    def _note_failures(self) -> None:
        for peer, endpoint in self._endpoints.items():
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
                state = " (which has not connected)" if transfer.peer in self._connecting else ""
                self._engine.give_up(
                    transfer, f"rank {self.rank}: {transfer} with {whom}{state} not done after {seconds:g} s"
                )

    def _quiet(self) -> bool:
        """Whether all that this rank wanted to send is out and acknowledged."""
        alive = [e for peer, e in self._endpoints.items() if peer not in self._failed and peer not in self._connecting]
        return not self._submitted and self._engine.idle and all(endpoint.drained for endpoint in alive)

    def _sleep(self) -> None:
        self._cq.req_notify()
        if self._take_completions() or self._submitted:
            return
        timeout_s = PROBE_S
        looking = bool(self._connecting) or any(t.peer is None for t in self._deadlines)
        if looking or self._closing:
            timeout_s = self._pause_s = min(self._pause_s * 1.5, LONGEST_PAUSE_S)
        if self._deadlines:
            earliest = min(deadline for deadline, _ in self._deadlines.values())
            timeout_s = min(timeout_s, max(0.0, earliest - time.monotonic()) + 0.001)
        ready, _, _ = select.select([self._events.fd, self._wake_fd], (), (), timeout_s)
        if self._wake_fd in ready:
            os.read(self._wake_fd, 4096)
        if self._events.fd in ready and self._events.get_cq_event(timeout_s=0) is not None:
            self._cq.ack_events(1)
        if not ready and time.monotonic() - self._heard > PROBE_S:
            self._heard = time.monotonic()
            for peer in self._engine.waiting_for():
                if peer is not None and peer in self._channels and peer not in self._failed:
                    self._endpoints[peer].probe()

    # Connecting.

    def _key(self, source: int, target: int, what: str) -> str:
        return f"{self._prefix}/{source}/{target}/{what}"

    def _begin(self, peer: int) -> None:
        endpoint = Endpoint(self._pd, self._cq, peer, slots=SLOTS, slot_bytes=SLOT_BYTES, gpu=self._gpu)
        self._endpoints[peer] = endpoint
        self._by_qp[endpoint.qp_num] = endpoint
        self._store.set(self._key(self.rank, peer, "endpoint"), endpoint.description())
        self._connecting[peer] = "endpoint"
        self._pause_s = SHORTEST_PAUSE_S

    def _look_for_peers(self) -> None:
        if any(t.peer is None for t in self._deadlines):
            for peer in range(self._world_size):
                if peer != self.rank and peer not in self._endpoints and self._is_there(peer, "endpoint"):
                    self._begin(peer)
        for peer, what in list(self._connecting.items()):
            if what == "endpoint" and self._is_there(peer, what):
                endpoint = self._endpoints[peer]
                description = bytes(self._store.get(self._key(peer, self.rank, what)))
                endpoint.connect(description, timeout=self._exponent, retry_cnt=RETRIES)
                if not self._context.path(endpoint.remote["lid"]).reachable:
                    endpoint.failure = f"rank {self.rank} cannot reach rank {peer}: the fabric has no path to its HCA"
                self._store.set(self._key(self.rank, peer, "ready"), b"1")
                self._connecting[peer] = what = "ready"
            # Only when the other side can receive may anything be sent: a queue pair before RTR is silent.
            if what == "ready" and self._is_there(peer, what):
                del self._connecting[peer]
        for peer, endpoint in self._endpoints.items():
            if peer not in self._connecting and peer not in self._channels and endpoint.channel is not None:
                self._channels[peer] = endpoint.channel

    def _is_there(self, peer: int, what: str) -> bool:
        return bool(self._store.check([self._key(peer, self.rank, what)]))

    # Events in.

    def _take_completions(self) -> bool:
        happened = False
        while True:
            _, completions = self._cq.poll(64)
            if not completions:
                return happened
            happened = True
            self._heard = time.monotonic()
            for wc in completions:
                self._take(wc)
            for endpoint in self._endpoints.values():
                if endpoint.failure is None:
                    endpoint.repost()

    def _take(self, wc: WC) -> None:
        endpoint = self._by_qp[wc.qp_num]
        assert endpoint.channel is not None
        channels = {endpoint.peer: endpoint.channel}  # it may hear before it may speak
        event = endpoint.take(wc, partial(self._lost, endpoint))
        if event is not None:
            apply_event(channels, event)

    def _lost(self, endpoint: Endpoint) -> str:
        return f"rank {self.rank} lost rank {endpoint.peer}: queue pair {endpoint.qp_num:#x} of their messages"

    # The end.

    def close(self) -> None:
        """Let what has been sent arrive (a few seconds at most), fail what has not, free everything. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._ring()
        self._thread.join(DRAIN_S + PROBE_S + 5.0)
        self._channels.clear()
        for endpoint in self._endpoints.values():
            endpoint.close()
        if self._own_store:
            self._store.close()
        for resource in (self._cq, self._events, self._pd):
            try:
                resource.close()
            except (VerbsError, OSError):
                pass
        os.close(self._wake_fd)
        os.close(self._ring_fd)
