"""Connections to the peers of one rank, however they are made: what happens on them turned into events, failures put in
words, traffic counted.

A peer on the same node is a `NodePeer`, reached by shared memory; any other is an `Endpoint`, a queue pair of the HCA.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from functools import partial
from typing import Any

from fauxrdma.collectives.channel import Channel
from fauxrdma.collectives.executor import apply_event
from fauxrdma.communicator.bell import Bell
from fauxrdma.communicator.endpoint import Endpoint
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.sleeping import sleep_on
from fauxrdma.errors import FauxrdmaError, VerbsError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.verbs import CQ, PD, WC, CompChannel, Context

__all__ = ["COUNT_EVERY_S", "PeerSet"]

PATIENT_POLLS = 200
"""How often a rank that waits for one beside it looks before it sleeps: some 100 us, what falling asleep and being
woken would cost. Others may run in between."""
COUNT_EVERY_S = 0.5
"""How often ranks of a node tell the fabric's counters what they sent each other, in wall time."""


class PeerSet:
    """The peers of `rank` over one context, protection domain, completion queue (of `cqe` entries) and channel; each is
    staged by `slots` slots of `slot_bytes`. It can be waited for as a `Sleeper`.

    `gpu`: the one whose memory the data is in. `port`: that GPU's, which all that the rank sends shares. Raises
    VerbsError when the HCA does not give what is needed.
    """

    def __init__(
        self, rank: int, context: Context, *, slots: int, slot_bytes: int, cqe: int, gpu: int | None, port: PeerPort
    ) -> None:
        self.rank = rank
        self.context = context
        self.gpu = gpu
        self.port = port
        self.endpoints: dict[int, Endpoint | NodePeer] = {}
        self.channels: dict[int, Channel] = {}
        """Of those peers that may be sent to."""
        self._far: list[Endpoint] = []
        self._near: list[NodePeer] = []
        self._bell: Bell | None = None
        self._by_qp: dict[int, Endpoint] = {}
        self._slots = slots
        self._slot_bytes = slot_bytes
        self._count_at = 0.0
        opened: list[Any] = []
        try:
            self._pd = PD(context)
            opened.append(self._pd)
            self._completion_channel = CompChannel(context)
            opened.append(self._completion_channel)
            self._cq = CQ(context, cqe, None, self._completion_channel, 0)
        except BaseException:
            for resource in reversed(opened):
                resource.close()
            raise

    # Peers, not yet connected.

    def _make_far(self, peer: int) -> Endpoint:
        endpoint = Endpoint(self._pd, self._cq, peer, slots=self._slots, slot_bytes=self._slot_bytes, gpu=self.gpu)
        self._far.append(endpoint)
        self.endpoints[peer] = endpoint
        self._by_qp[endpoint.qp_num] = endpoint
        return endpoint

    def _make_near(self, peer: int) -> NodePeer:
        if self._bell is None:
            self._bell = Bell()
        made = NodePeer(self.rank, peer, self._bell, self.port, slots=self._slots, slot_bytes=self._slot_bytes)
        self._near.append(made)  # so that it is closed with the rest, whatever happens
        self.endpoints[peer] = made
        return made

    def _drop_near(self, peer: NodePeer) -> None:
        """It cannot share memory with us."""
        self._near.remove(peer)
        del self.endpoints[peer.peer]
        peer.close()

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
        happened = False
        if self._near:
            now_ns = self.context.fabric_now_ns()
            virtual = self.context.virtual is not None
            for peer in sorted(self._near, key=NodePeer.arrives_ns) if virtual else self._near:
                if peer.poll(now_ns):
                    happened = True
        if self._far:
            _, completions = self._cq.look(64)
            if completions:
                self._take(completions)
                happened = True
        return happened

    def due_in_s(self) -> float | None:
        """Wall time until the next message of a peer on this node has covered its modelled way."""
        if self.context.virtual is not None:
            return None  # the daemon announces it
        due = [peer.next_due_ns for peer in self._near if peer.next_due_ns is not None]
        if not due:
            return None
        return (min(due) - self.context.fabric_now_ns()) * float(self.context.dilation) / 1e9

    def before_sleep(self) -> list[int]:
        """Have the HCA and the peers on this node announce what they do, on these file descriptors. Poll once more
        before you sleep."""
        fds = [peer.exit_fd for peer in self._near if peer.failure is None and peer.exit_fd >= 0 and not peer.under_way]
        if self._bell is not None:
            self._bell.about_to_sleep()
            fds.append(self._bell.fd)
        if self.context.virtual is not None:
            timer = self.context.virtual.timer
            for peer in self._near:  # behind the bell: what is announced from here on rings it
                timer.wake_by(peer.due_ns())
            fds.append(timer.fd)
        if self._far:
            self._cq.req_notify()
            fds.append(self._completion_channel.fd)
        return fds

    def after_sleep(self, ready: Collection[int]) -> bool:
        """Take in what happened; `ready` are the descriptors that were readable."""
        if self._bell is not None:
            self._bell.awake()
        if self.context.virtual is not None:
            self.context.virtual.timer.silence()
        if self._completion_channel.fd in ready and self._completion_channel.get_cq_event(timeout_s=0) is not None:
            self._cq.ack_events(1)
        happened = self.poll()
        for peer in self._near:
            if peer.exit_fd in ready and not peer.check_alive():
                happened = True
        if happened and self.context.virtual is not None:
            self.context.virtual.timer.forget()
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
                assert endpoint.channel is not None
                apply_event({endpoint.peer: endpoint.channel}, event)
                touched.add(endpoint)
        for endpoint in touched:
            if endpoint.failure is None:
                endpoint.repost()

    def probe(self, peer: int) -> None:
        """Ask a peer that is waited for in vain for a sign of life. In virtual time, which wall time must not change,
        peers that are gone are found out by a deadlock."""
        endpoint = self.endpoints[peer]
        if isinstance(endpoint, NodePeer):
            endpoint.check_alive()
        elif self.context.virtual is None:
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
        for peer in self._near:
            peer.count_traffic(self.context)

    # The end.

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
