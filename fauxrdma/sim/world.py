"""Several HCA engines in one process under a virtual clock: deterministic, as fast as Python runs.

Every event has a time in integer ns; ties go in the order they were scheduled. The link between two engines has a rate,
a latency and, by rule or by the seeded generator, faults: a frame may be lost, delivered twice, or held back. The same
seed and the same calls give the same trace, byte for byte; :attr:`World.trace` records it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from fauxrdma.hca.engine import HcaEngine
from fauxrdma.hca.events import (
    Action,
    Complete,
    Doorbell,
    Event,
    FrameReceived,
    LinkReady,
    SendFrame,
    TimerExpired,
    WantsLink,
)
from fauxrdma.hca.port import Port
from fauxrdma.ib.attributes import FIRST_MULTICAST_LID
from fauxrdma.ib.enums import BthOpcode, GidType, QpAttrMask, WcStatus
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.sim.base import BaseWorld, SimHca, SimQp, SimSrq
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


class World(BaseWorld):
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
        super().__init__()
        self.express = express
        self.rng = random.Random(seed)
        self.rate = rate or Rate.gbps(200)
        self.latency_ns = latency_ns
        self.burst = burst
        self.faults = faults or LinkFaults()
        self.fault_rule = fault_rule
        self.trace: list[str] = []
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

    def kill(self, hca: SimHca) -> None:
        """The HCA vanishes: it hears and says nothing more."""
        hca.alive = False

    # ---- the event loop ------------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool] | None = None, limit_ns: int = 10**12) -> bool:
        """As BaseWorld."""
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

    def feed(self, hca: SimHca, event: Event) -> None:
        """As BaseWorld."""
        if self.express and isinstance(event, Doorbell) and self.express_doorbell(hca, event.qpn):
            return
        self.perform(hca, hca.engine.handle(event, self.now))

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
