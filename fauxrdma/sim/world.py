"""Several HCA engines in one process under a virtual clock: deterministic, as fast as Python runs.

Every event has a time in integer ns; ties go in the order they were scheduled. The link between two engines has a rate,
a latency and, by rule or by the seeded generator, faults: a frame may be lost, delivered twice, or held back. The same
seed and the same calls give the same trace, byte for byte; :attr:`World.trace` records it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from fauxrdma.hca.engine import HcaEngine
from fauxrdma.hca.events import (
    Action,
    AsyncEvent,
    Complete,
    Doorbell,
    FrameReceived,
    LinkReady,
    SendFrame,
    TimerExpired,
    WantsLink,
)
from fauxrdma.hca.port import Port
from fauxrdma.hca.queue_pair import QueuePair
from fauxrdma.hca.srq import SharedReceiveQueue
from fauxrdma.hca.work_queue import RecvWqe, SendList, SendWqe, WorkList
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID, AHAttr, QPAttr, QPCap
from fauxrdma.ib.enums import BthOpcode, GidType, Mtu, QpAttrMask, QpState, QpType, WcStatus
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.ib.qp_states import TRANSITIONS
from fauxrdma.ib.work import WC
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain
from fauxrdma.units import Rate
from fauxrdma.wire.grh import gid_bytes
from fauxrdma.wire.headers import Frame, decode_header, decode_write_only, encode_header, header_bytes

__all__ = ["LinkFaults", "SimHca", "SimQp", "SimSrq", "World"]

M = QpAttrMask
_ALL_ACCESS = 1 | 2 | 4 | 8  # local write; remote write, read and atomic


@dataclass(slots=True)
class LinkFaults:
    """Chances per frame, each 0..1, and the longest extra delay of a delayed frame in ns."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.0
    max_delay_ns: int = 20_000


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
    """One HCA of the world: its engine, memory and completion queue (number 1)."""

    world: World
    lid: int
    engine: HcaEngine
    completions: list[WC] = field(default_factory=list)
    async_events: list[AsyncEvent] = field(default_factory=list)
    on_completion: Callable[[WC], None] | None = None
    alive: bool = True
    _next_base: int = 0x10000
    _srqns: int = 0

    def alloc(
        self, length: int, access: int = _ALL_ACCESS, pd: ProtectionDomain | None = None
    ) -> tuple[MemoryRegion, bytearray]:
        """Registered memory: the region and its bytes."""
        data = bytearray(length)
        region = self.engine.keys.register(
            len(self.engine.keys), pd or self.world.pds[self.lid], self._next_base, length, access, memoryview(data)
        )
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
            qp_type, pd or self.world.pds[self.lid], 1, 1, QPCap(1024, 1024), sq_sig_all, sq, rq, srq
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

    def run(self, event: Doorbell | FrameReceived | LinkReady | TimerExpired) -> None:
        """Feed one event to the engine and carry out its actions."""
        if self.world.express and isinstance(event, Doorbell) and self.world.express_doorbell(self, event.qpn):
            return
        self.world.perform(self, self.engine.handle(event, self.world.now))


class World:
    """A set of HCAs, every pair joined by a link of `rate` and `latency_ns`."""

    def __init__(
        self,
        hcas: int = 2,
        *,
        seed: int = 0,
        rate: Rate | None = None,
        latency_ns: int = 1000,
        burst: int = 16384,
        faults: LinkFaults | None = None,
        fault_rule: Callable[[Frame], str] | None = None,
        express: bool = False,
        profile: HcaProfile = PROFILES[DEFAULT_PROFILE],
    ) -> None:
        self.express = express
        self.now = 0
        self.rng = random.Random(seed)
        self.rate = rate or Rate.gbps(200)
        self.latency_ns = latency_ns
        self.burst = burst
        self.faults = faults or LinkFaults()
        self.fault_rule = fault_rule
        self.trace: list[str] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._busy_until: dict[int, int] = {}
        self._timer_at: dict[int, int] = {}
        self.pds: dict[int, ProtectionDomain] = {}
        self.hcas: list[SimHca] = []
        for lid in range(1, hcas + 1):
            self.pds[lid] = ProtectionDomain(lid)
            port = Port(lid, [(gid_bytes(f"fe80::{lid:x}"), GidType.IBV_GID_TYPE_IB)])
            rng, choices = random.Random(self.rng.getrandbits(64)), random.Random(f"{seed}/{lid}")
            engine = HcaEngine(lid, rng, profile, port, choices)
            self.hcas.append(SimHca(self, lid, engine))

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

    def kill(self, hca: SimHca) -> None:
        """The HCA vanishes: it hears and says nothing more."""
        hca.alive = False

    # ---- the event loop ------------------------------------------------------------------------------------------

    def at(self, when: int, call: Callable[[], None]) -> None:
        """Run `call` at fabric time `when`, or now when that is over."""
        heapq.heappush(self._queue, (max(when, self.now), self._sequence, call))
        self._sequence += 1

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 10**12) -> bool:
        """Run until `until()` holds or nothing is left. Returns whether `until` holds (True without one).

        Raises RuntimeError past `limit_ns` of fabric time: something keeps going that should have ended.
        """
        while True:
            if until is not None and until():
                return True
            if not self._queue:
                return until is None
            when, _, call = heapq.heappop(self._queue)
            if when > limit_ns:
                raise RuntimeError(f"the world still has work at {when} ns, past the limit {limit_ns} ns")
            self.now = when
            call()

    def perform(self, hca: SimHca, actions: list[Action]) -> None:
        """Carry out an engine's actions."""
        for action in actions:
            if isinstance(action, SendFrame):
                self._send(hca, action.frame)
            elif isinstance(action, WantsLink):
                self.at(self.now, self._link_ready(hca, action.qpn))
            elif isinstance(action, Complete):
                wc = action.wc
                self.trace.append(
                    f"{self.now} lid{hca.lid} wc {WcStatus(wc.status).name} wr_id={wc.wr_id} {wc.byte_len}"
                )
                hca.completions.append(wc)
                if hca.on_completion is not None:
                    hca.on_completion(wc)
            else:
                self.trace.append(f"{self.now} lid{hca.lid} event {action.kind.name}")
                hca.async_events.append(action)
        deadline = hca.engine.next_deadline_ns()
        if deadline is not None and self._timer_at.get(hca.lid, 1 << 62) > deadline:
            self._timer_at[hca.lid] = deadline
            self.at(max(deadline, self.now), self._timer(hca))

    def express_doorbell(self, hca: SimHca, qpn: int) -> bool:
        """Send the small WRITE that waits on the engine's express lane, as a daemon does; whether there was one."""
        if self._busy_until.get(hca.lid, 0) > self.now:
            return False
        cut = hca.engine.express_send(qpn, self.now)
        if cut is None:
            return False
        data, memory = cut
        frame = decode_header(data)
        frame.payload = (memoryview(data)[header_bytes(frame.opcode) :],)
        frame.extents = ((memory, frame.nbytes),)
        self.perform(hca, [SendFrame(qpn, frame)])
        return True

    def _timer(self, hca: SimHca) -> Callable[[], None]:
        def fire() -> None:
            self._timer_at.pop(hca.lid, None)
            if hca.alive:
                hca.run(TimerExpired())

        return fire

    def _link_ready(self, hca: SimHca, qpn: int) -> Callable[[], None]:
        def pull() -> None:
            if not hca.alive:
                return
            actions = hca.engine.handle(LinkReady(qpn, self.burst), self.now)
            self.perform(hca, actions)
            if any(isinstance(action, SendFrame) and action.qpn == qpn for action in actions):
                # The next burst when this one has left.
                self.at(self._busy_until.get(hca.lid, self.now), self._link_ready(hca, qpn))

        return pull

    def _send(self, hca: SimHca, frame: Frame) -> None:
        if frame.dlid >= FIRST_MULTICAST_LID:
            # The fabric makes the copies, one for each HCA that is a member of the group's LID.
            members = [h.lid for h in self.hcas if frame.dlid in h.engine.datagrams.multicast.lids()]
            for dlid in members:
                self._send(hca, replace(frame, dlid=dlid))
            return
        # Acknowledgements do not wait behind data, as in the daemons; all else keeps its order, however short.
        ordered = frame.opcode != BthOpcode.RC_ACKNOWLEDGE
        start = max(self.now, self._busy_until.get(hca.lid, 0)) if ordered else self.now
        departed = start + self.rate.transfer_ns(frame.nbytes)
        if frame.nbytes:
            self._busy_until[hca.lid] = departed
        arrival = departed + self.latency_ns
        head, data = encode_header(frame), b"".join(frame.payload)
        verdict = self._fate(frame)
        self.trace.append(
            f"{self.now} lid{frame.slid}->lid{frame.dlid} {BthOpcode(frame.opcode).name} psn={frame.psn} "
            f"{frame.nbytes} B syndrome={frame.syndrome} {verdict}"
        )
        if verdict == "lost" or not hca.alive:
            return
        if verdict == "delayed":
            arrival += self.rng.randrange(1, self.faults.max_delay_ns)
        self.at(arrival, self._deliver(frame.dlid, head, data))
        if verdict == "duplicated":
            self.at(arrival + self.rng.randrange(1, self.faults.max_delay_ns), self._deliver(frame.dlid, head, data))

    def _fate(self, frame: Frame) -> str:
        if self.fault_rule is not None:
            return self.fault_rule(frame)
        draw = self.rng.random()
        for chance, name in (
            (self.faults.loss, "lost"),
            (self.faults.duplicate, "duplicated"),
            (self.faults.delay, "delayed"),
        ):
            if draw < chance:
                return name
            draw -= chance
        return "ok"

    def _deliver(self, dlid: int, head: bytes, data: bytes) -> Callable[[], None]:
        def arrive() -> None:
            hca = self.hcas[dlid - 1]
            if not hca.alive:
                return
            if self.express:
                whole = bytearray(head + data)
                write = decode_write_only(whole, 0, len(whole))
                out: list[Action] = []
                if write is not None and hca.engine.express_receive(write, memoryview(data), out) is not None:
                    self.perform(hca, out)
                    return
            frame = decode_header(head)
            views = hca.engine.place(frame)
            if views is not None:
                offset = 0
                for view in views:
                    view[:] = data[offset : offset + len(view)]
                    offset += len(view)
            hca.run(FrameReceived(frame))

        return arrive
