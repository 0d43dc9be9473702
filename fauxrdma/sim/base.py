"""What applications of a simulated world see: HCAs, queue pairs and shared receive queues in plain memory."""

from __future__ import annotations

import heapq
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fauxrdma.hca.engine import HcaEngine
from fauxrdma.hca.events import Action, AsyncEvent, Doorbell, Event
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.srq import SharedReceiveQueue
from fauxrdma.hca.work_queue import RecvWqe, SendList, SendWqe, WorkList
from fauxrdma.ib.attributes import AHAttr, QPAttr, QPCap
from fauxrdma.ib.enums import Mtu, QpAttrMask, QpState, QpType
from fauxrdma.ib.qp_states import TRANSITIONS
from fauxrdma.ib.work import WC
from fauxrdma.memory.location import HOST_MEMORY
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain

__all__ = ["BaseWorld", "SimHca", "SimQp", "SimSrq"]

M = QpAttrMask
_ALL_ACCESS = 1 | 2 | 4 | 8  # local write; remote write, read and atomic


@dataclass(slots=True, eq=False)
class SimQp:
    """A queue pair of the world, with its queues in plain memory."""

    hca: SimHca
    qp: QueuePair
    sq: SendList
    rq: WorkList[RecvWqe]
    posted_sends: int = 0
    posted_receives: int = 0

    def post_send(self, wqe: SendWqe) -> None:
        """Post a request and ring the doorbell. `wqe.index` is filled in."""
        wqe.index = self.posted_sends
        self.posted_sends += 1
        self.sq.append(wqe)
        self.hca.run(Doorbell(self.qp.qpn))

    def post_recv(self, wr_id: int, sges: tuple[tuple[int, int, int], ...] = ()) -> None:
        """Post a receive."""
        self.rq.append(RecvWqe(self.posted_receives, wr_id, sges))
        self.posted_receives += 1
        if self.qp.state == QpState.IBV_QPS_ERR:
            self.hca.run(Doorbell(self.qp.qpn))

    @property
    def completions(self) -> list[WC]:
        """Completions of this queue pair so far, both queues, in order."""
        return [wc for wc in self.hca.completions if wc.qp_num == self.qp.qpn]


@dataclass(slots=True, eq=False)
class SimSrq:
    """A shared receive queue of the world."""

    hca: SimHca
    srq: SharedReceiveQueue
    rq: WorkList[RecvWqe]
    posted: int = 0

    def post_recv(self, wr_id: int, sges: tuple[tuple[int, int, int], ...] = ()) -> None:
        """Post a receive."""
        self.rq.append(RecvWqe(self.posted, wr_id, sges))
        self.posted += 1

    def arm(self, limit: int) -> None:
        """Ask for one limit event."""
        self.hca.world.perform(self.hca, self.hca.engine.srqs.arm(self.srq.srqn, limit))


@dataclass(eq=False)
class SimHca:
    """One HCA of the world, or a share of one: its engine, memory and completion queue (number `cqn`). `location` is
    the memory it registers (fauxrdma.memory.location)."""

    world: BaseWorld
    lid: int
    engine: HcaEngine
    completions: list[WC] = field(default_factory=list)
    async_events: list[AsyncEvent] = field(default_factory=list)
    on_completion: Callable[[WC], None] | None = None
    alive: bool = True
    cqn: int = 1
    location: int = HOST_MEMORY
    _next_base: int = 0x10000
    _srqns: int = 0

    def alloc(
        self, length: int, access: int = _ALL_ACCESS, pd: ProtectionDomain | None = None
    ) -> tuple[MemoryRegion, bytearray]:
        """Registered memory: the region and its bytes."""
        data = bytearray(length)
        region = self.engine.keys.register(
            len(self.engine.keys), pd or self.world.pds[self.lid], self._next_base, length, access, memoryview(data),
            self.location,
        )  # fmt: skip
        self._next_base += (length + 0xFFFF) & ~0xFFFF
        return region, data

    def create_qp(
        self,
        sq_sig_all: bool = True,
        pd: ProtectionDomain | None = None,
        srq: SharedReceiveQueue | None = None,
        qp_type: QpType = QpType.IBV_QPT_RC,
    ) -> SimQp:
        """A queue pair in RESET."""
        sq = SendList()
        rq: WorkList[RecvWqe] = WorkList()
        qp = self.engine.create_qp(
            qp_type, pd or self.world.pds[self.lid], self.cqn, self.cqn, QPCap(1024, 1024), sq_sig_all, sq, rq, srq
        )
        return SimQp(self, qp, sq, rq)

    def create_srq(self, pd: ProtectionDomain | None = None) -> SimSrq:
        """A shared receive queue."""
        rq: WorkList[RecvWqe] = WorkList()
        return SimSrq(self, self.engine.srqs.create(self._next_srqn(), pd or self.world.pds[self.lid], rq), rq)

    def _next_srqn(self) -> int:
        self._srqns += 1
        return self._srqns

    def create_ah(self, attr: AHAttr, pd: ProtectionDomain | None = None) -> int:
        """An address handle's number."""
        handle = 1 + max(self.engine.datagrams.handles, default=0)
        self.engine.datagrams.create_ah(handle, pd or self.world.pds[self.lid], attr)
        return handle

    def run(self, event: Event) -> None:
        """Feed one event to the engine and carry out its actions."""
        self.world.feed(self, event)


class BaseWorld(ABC):
    """HCAs under one virtual clock. `hcas` are what applications see, one for each rank of a plan; `pds` are protection
    domains by LID."""

    now = 0
    rng: random.Random
    pds: dict[int, ProtectionDomain]
    hcas: Sequence[SimHca]

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    @abstractmethod
    def feed(self, hca: SimHca, event: Event) -> None:
        """An event for an HCA's engine."""

    @abstractmethod
    def perform(self, hca: SimHca, actions: list[Action]) -> None:
        """Carry out an engine's actions."""

    @abstractmethod
    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 10**12) -> bool:
        """Run until `until()` holds or nothing is left. Returns whether `until` holds (True without one).

        Raises RuntimeError past `limit_ns` of fabric time: something keeps going that should have ended.
        """

    def at(self, when: int, call: Callable[[], None]) -> None:
        """Run `call` at fabric time `when`, or now when that is over."""
        heapq.heappush(self._queue, (max(when, self.now), self._sequence, call))
        self._sequence += 1

    def connect(self, a: SimQp, b: SimQp, **attributes: Any) -> None:
        """Bring both queue pairs to RTS, connected. `attributes` override QPAttr fields (timeout=..., sq_psn=...)."""
        psn_a, psn_b = self.rng.getrandbits(24), self.rng.getrandbits(24)
        for mine, other, sq_psn, rq_psn in ((a, b, psn_a, psn_b), (b, a, psn_b, psn_a)):
            attr = QPAttr(
                path_mtu=Mtu.IBV_MTU_4096,
                qp_access_flags=_ALL_ACCESS,
                dest_qp_num=other.qp.qpn,
                ah_attr=AHAttr(other.hca.lid),
                sq_psn=sq_psn,
                rq_psn=rq_psn,
                max_rd_atomic=4,
                max_dest_rd_atomic=4,
                timeout=10,
            )
            attr = replace(attr, **attributes)
            self.bring_up(mine, attr)

    def bring_up(self, qp: SimQp, attr: QPAttr) -> None:
        """RESET to RTS with the attributes that the queue pair's transport needs."""
        state = QpState.IBV_QPS_RESET
        for target in (QpState.IBV_QPS_INIT, QpState.IBV_QPS_RTR, QpState.IBV_QPS_RTS):
            attr.qp_state = target
            self.modify(qp, attr, TRANSITIONS[qp.qp.qp_type][state, target].required | M.IBV_QP_STATE)
            state = target

    def modify(self, qp: SimQp, attr: QPAttr, mask: QpAttrMask) -> None:
        """modify_qp at the present time."""
        self.perform(qp.hca, qp.hca.engine.modify_qp(qp.qp.qpn, attr, mask, self.now))

    def pair(self, qp_type: QpType = QpType.IBV_QPT_RC, **attributes: Any) -> tuple[SimQp, SimQp]:
        """Two connected queue pairs, on the first and the second HCA."""
        a, b = self.hcas[0].create_qp(qp_type=qp_type), self.hcas[1].create_qp(qp_type=qp_type)
        self.connect(a, b, **attributes)
        return a, b
