"""One emulated HCA of a daemon: its engine, and the queues of the applications that opened it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from fauxrdma.fabric.transport import TRANSPORTS
from fauxrdma.hca.engine import HcaEngine
from fauxrdma.hca.events import AsyncEvent
from fauxrdma.hca.port import Port
from fauxrdma.ib.async_events import event_element
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.ib.rnic import as_adapter_of
from fauxrdma.ib.work import WC
from fauxrdma.runtime.emulated_port import EmulatedPort
from fauxrdma.wire.fabric_messages import HcaInfo
from fauxrdma.wire.grh import gid_bytes

__all__ = ["CompletionSink", "EmulatedHca", "QueuePairQueues"]


class QueuePairQueues(Protocol):
    """The application's side of a queue pair: its rings in shared memory, or what stands for them in one process."""

    state: int
    """As the application sees it."""

    def pending_sends(self) -> int:
        """Posted and not taken."""

    def pending_recvs(self) -> int:
        """Posted and not taken."""


class CompletionSink(Protocol):
    """Where the completions of one queue go."""

    cqn: int

    def add(self, wc: WC, solicited: bool, /) -> bool:
        """Add a completion; False when there is no room."""


class EmulatedHca:
    """Engine, completion queues by number, rings by queue-pair number, and who hears of asynchronous events."""

    def __init__(
        self, info: HcaInfo, rng: random.Random, profile: HcaProfile = PROFILES[DEFAULT_PROFILE], seed: int = 0
    ) -> None:
        self.info = info
        self.profile = profile = as_adapter_of(info.transport, profile)
        self.attributes = profile.device_attributes(info.guid)
        self.port = EmulatedPort(info, self.attributes)
        self.engine = HcaEngine(
            info.lid, rng, profile, Port(info.lid, mtu=info.mtu), random.Random(f"{seed}/{info.lid}")
        )
        self.tell_gids()
        self.failed = False  # by a fault: it answers no verb
        self.pds = 0  # of all applications
        self.registered_bytes = 0
        self.cqs: dict[int, CompletionSink] = {}
        self.rings: dict[int, QueuePairQueues] = {}
        self.owners: dict[tuple[str, int], Callable[[AsyncEvent], None]] = {}  # by ("qp", "cq" or "srq", number)
        self.device_memory_used = 0  # bytes
        self._next_handle = 1

    def tell_gids(self) -> None:
        """Have the engine know the port's GIDs, at the start and when they have changed."""
        self.engine.port.gids = [(gid_bytes(gid), kind) for gid, kind in self.port.gids]

    def flow_label(self, qpn: int) -> int:
        """What the fabric's switches tell this queue pair's packets apart by: 0 where they cannot."""
        return qpn if TRANSPORTS[self.info.transport].flow_entropy else 0

    def new_handle(self) -> int:
        """A number for a protection domain, region, queue or channel; unique on this HCA."""
        self._next_handle += 1
        return self._next_handle - 1

    def report(self, event: AsyncEvent) -> None:
        """Pass an asynchronous event to the application that owns the queue it is about."""
        owner = self.owners.get((event_element(event.kind), event.element))
        if owner is not None:
            owner(event)
