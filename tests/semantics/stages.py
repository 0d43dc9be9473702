"""One play, two stages: what a test says about verbs is said over engines in one process and over two real daemons.

A stage has two ends. An end makes memory, protection domains and queue pairs; a queue pair posts `SendWR` and `RecvWR`
and hands out completions. Nothing here knows which stage it is on but the two classes at the bottom.
"""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from fauxrdma import verbs
from fauxrdma.errors import VerbsError
from fauxrdma.hca.events import AsyncEvent, FrameReceived
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import AccessFlags, Mtu, MwType, QpAttrMask, QpState, QpType, SendFlags, WrOpcode
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.lab.local import LocalLab
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.world import SimHca, SimQp, World
from fauxrdma.wire.headers import Frame, encode_header
from fauxrdma.wire.link_hello import ANSWER_BYTES, check_answer, encode_hello

M, S = QpAttrMask, QpState
ALL_ACCESS = int(
    AccessFlags.IBV_ACCESS_LOCAL_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_WRITE
    | AccessFlags.IBV_ACCESS_REMOTE_READ
    | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
)
_INIT = M.IBV_QP_STATE | M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT
_RTR = M.IBV_QP_STATE | M.IBV_QP_AV | M.IBV_QP_PATH_MTU | M.IBV_QP_DEST_QPN | M.IBV_QP_RQ_PSN
_RC_RTR = M.IBV_QP_MAX_DEST_RD_ATOMIC | M.IBV_QP_MIN_RNR_TIMER
_RTS = M.IBV_QP_STATE | M.IBV_QP_SQ_PSN
_RC_RTS = M.IBV_QP_TIMEOUT | M.IBV_QP_RETRY_CNT | M.IBV_QP_RNR_RETRY | M.IBV_QP_MAX_QP_RD_ATOMIC

STEPS: dict[QpType, tuple[tuple[QpState, QpAttrMask], ...]] = {
    QpType.IBV_QPT_RC: (
        (S.IBV_QPS_INIT, _INIT | M.IBV_QP_ACCESS_FLAGS),
        (S.IBV_QPS_RTR, _RTR | _RC_RTR),
        (S.IBV_QPS_RTS, _RTS | _RC_RTS),
    ),
    QpType.IBV_QPT_UC: (
        (S.IBV_QPS_INIT, _INIT | M.IBV_QP_ACCESS_FLAGS),
        (S.IBV_QPS_RTR, _RTR),
        (S.IBV_QPS_RTS, _RTS),
    ),
    QpType.IBV_QPT_UD: (
        (S.IBV_QPS_INIT, _INIT | M.IBV_QP_QKEY),
        (S.IBV_QPS_RTR, M.IBV_QP_STATE),
        (S.IBV_QPS_RTS, _RTS),
    ),
}
QKEY = 0x11111111


@dataclass
class Memory:
    """Registered bytes of one end."""

    addr: int
    length: int
    lkey: int
    rkey: int
    data: memoryview
    handle: Any

    def sge(self, length: int | None = None, offset: int = 0) -> SGE:
        return SGE(self.addr + offset, self.length - offset if length is None else length, self.lkey)


@dataclass
class Window:
    """A memory window of one end, not bound."""

    rkey: int
    mw_type: MwType
    handle: Any

    def bind(
        self, memory: Memory, access: int, offset: int = 0, length: int | None = None, wr_id: int = 1, **fields: Any
    ) -> SendWR:
        """The request that binds it to part of `memory`; its `rkey` is what the window gets."""
        info = BindInfo(memory.addr + offset, memory.length if length is None else length, access, memory.handle)
        wr = SendWR(wr_id, WrOpcode.IBV_WR_BIND_MW, (), send_flags=SendFlags.IBV_SEND_SIGNALED)
        wr.set_bind_wr(self, info)
        for name, value in fields.items():
            setattr(wr, name, value)
        return wr


@dataclass
class BindInfo:
    """As verbs.MWBindInfo; `mr` is the region of either stage."""

    addr: int
    length: int
    mw_access_flags: int
    mr: Any


class Queue(Protocol):
    """A queue pair on a stage."""

    qpn: int
    psn: int
    qp_type: QpType
    end: End

    def modify(self, attr: QPAttr, mask: int) -> None: ...
    def post_send(self, *wrs: SendWR) -> None: ...
    def post_recv(self, *wrs: RecvWR) -> None: ...
    def wait(self, count: int = 1) -> list[WC]: ...
    def pending(self) -> list[WC]: ...
    @property
    def state(self) -> QpState: ...
    @property
    def last_error(self) -> str: ...


class End(Protocol):
    """One node of a stage."""

    lid: int

    def memory(self, length: int, access: int = ALL_ACCESS, pd: Any = None) -> Memory: ...
    def pd(self) -> Any: ...
    def queue(self, qp_type: QpType = QpType.IBV_QPT_RC, *, sig_all: bool = False, pd: Any = None) -> Queue: ...
    def events(self, count: int) -> list[int]: ...
    def ah(self, attr: AHAttr) -> Any: ...
    def window(self, mw_type: MwType = MwType.IBV_MW_TYPE_2, pd: Any = None) -> Window: ...
    def forge(self, frame: Frame) -> None: ...


def attributes(queue: Queue, peer: Queue | None, **changes: Any) -> QPAttr:
    """Attributes that connect `queue` to `peer`, with `changes`."""
    peer = peer or queue
    values: dict[str, Any] = {
        "qp_access_flags": ALL_ACCESS,
        "qkey": QKEY,
        "path_mtu": Mtu.IBV_MTU_4096,
        "dest_qp_num": peer.qpn,
        "ah_attr": AHAttr(peer.end.lid),
        "rq_psn": peer.psn,
        "sq_psn": queue.psn,
        "max_rd_atomic": 4,
        "max_dest_rd_atomic": 4,
        "min_rnr_timer": 1,
        "timeout": 14,
        "retry_cnt": 2,
        "rnr_retry": 7,
        **changes,
    }
    return QPAttr(**values)


def bring_up(queue: Queue, peer: Queue | None, to: QpState = S.IBV_QPS_RTS, **changes: Any) -> None:
    """RESET to `to`, step by step."""
    attr = attributes(queue, peer, **changes)
    for state, mask in STEPS[queue.qp_type]:
        if state > to:
            break
        attr.qp_state = state
        queue.modify(attr, mask)


def connect(a: Queue, b: Queue, **changes: Any) -> None:
    """Both ends to RTS. `changes` override attributes of both."""
    bring_up(a, b, **changes)
    bring_up(b, a, **changes)


# ---- engines in one process ------------------------------------------------------------------------------------------


class SimQueue:
    def __init__(self, end: SimEnd, sim: SimQp) -> None:
        self.end = end
        self.sim = sim
        self.qpn = sim.qp.qpn
        self.qp_type = sim.qp.qp_type
        self.psn = 0xFFFFF0 + end.lid
        self._taken = 0

    def modify(self, attr: QPAttr, mask: int) -> None:
        hca = self.end.hca
        hca.world.perform(hca, hca.engine.modify_qp(self.qpn, attr, QpAttrMask(mask), hca.world.now))

    def post_send(self, *wrs: SendWR) -> None:
        for wr in wrs:
            inline = None
            if wr.send_flags & SendFlags.IBV_SEND_INLINE:
                inline = b"".join(self.end.read(sge) for sge in wr.sg)
            sges = tuple((sge.addr, sge.length, sge.lkey) for sge in wr.sg)
            extra = {name: getattr(wr, name, 0) for name in ("compare_add", "swap")}
            remote_addr, rkey, imm = wr.remote_addr, wr.rkey, wr.imm_data
            if wr.opcode in (WrOpcode.IBV_WR_SEND_WITH_INV, WrOpcode.IBV_WR_LOCAL_INV):
                rkey, imm = imm, 0
            elif wr.opcode == WrOpcode.IBV_WR_BIND_MW:
                info, remote_addr, imm = wr.bind_info, wr.bind_info.addr, wr.bind_info.mr.lkey
                extra = {"handle": wr.mw.handle, "compare_add": info.length, "swap": info.mw_access_flags}
            if getattr(wr, "ah", None) is not None:
                extra = {"handle": wr.ah.handle, "compare_add": wr.remote_qpn, "swap": wr.remote_qkey}
            self.sim.post_send(
                SendWqe(
                    0, wr.wr_id, int(wr.opcode), int(wr.send_flags), () if inline is not None else sges,
                    remote_addr, rkey, imm, inline, **extra,
                )
            )  # fmt: skip

    def post_recv(self, *wrs: RecvWR) -> None:
        for wr in wrs:
            self.sim.post_recv(wr.wr_id, tuple((sge.addr, sge.length, sge.lkey) for sge in wr.sg))

    def wait(self, count: int = 1) -> list[WC]:
        there = lambda: len(self.sim.completions) - self._taken >= count  # noqa: E731
        assert self.end.hca.world.run(there), f"{len(self.sim.completions) - self._taken} of {count} completions"
        taken = self.sim.completions[self._taken : self._taken + count]
        self._taken += count
        return taken

    def pending(self) -> list[WC]:
        self.end.hca.world.run()
        return self.sim.completions[self._taken :]

    @property
    def state(self) -> QpState:
        return QpState(self.sim.qp.state)

    @property
    def last_error(self) -> str:
        return self.sim.qp.last_error


@dataclass
class SimEnd:
    hca: SimHca
    regions: list[MemoryRegion] = field(default_factory=list)
    seen: int = 0
    numbers: Any = field(default_factory=itertools.count)

    @property
    def lid(self) -> int:
        return self.hca.lid

    def memory(self, length: int, access: int = ALL_ACCESS, pd: Any = None) -> Memory:
        region, data = self.hca.alloc(length, access, pd)
        self.regions.append(region)
        return Memory(region.base, length, region.lkey, region.rkey, memoryview(data), region)

    def read(self, sge: SGE) -> bytes:
        for region in self.regions:
            if region.base <= sge.addr < region.base + region.length:
                return bytes(region.view[sge.addr - region.base :][: sge.length])
        raise AssertionError(f"no memory at 0x{sge.addr:x}")

    def pd(self) -> Any:
        return type(self.hca.world.pds[1])(1000 + next(self.numbers))

    def queue(self, qp_type: QpType = QpType.IBV_QPT_RC, *, sig_all: bool = False, pd: Any = None) -> SimQueue:
        extra = {} if qp_type == QpType.IBV_QPT_RC else {"qp_type": qp_type}
        return SimQueue(self, self.hca.create_qp(sig_all, pd, **extra))

    def ah(self, attr: AHAttr) -> Any:
        return SimpleNamespace(handle=self.hca.create_ah(attr))

    def window(self, mw_type: MwType = MwType.IBV_MW_TYPE_2, pd: Any = None) -> Window:
        pd = pd or self.hca.world.pds[self.hca.lid]
        made = self.hca.engine.keys.windows.allocate(1000 + next(self.numbers), pd, mw_type)
        return Window(made.rkey, mw_type, made.handle)

    def forge(self, frame: Frame) -> None:
        """A frame without payload that no engine sent arrives."""
        self.hca.engine.place(frame)
        self.hca.run(FrameReceived(frame))

    def events(self, count: int) -> list[int]:
        there: Callable[[], bool] = lambda: len(self.hca.async_events) - self.seen >= count  # noqa: E731
        assert self.hca.world.run(there), self.hca.async_events
        events: list[AsyncEvent] = self.hca.async_events[self.seen : self.seen + count]
        self.seen += count
        return [int(event.kind) for event in events]


def listening_port(pid: int) -> int:
    """The TCP port that a process listens at."""
    mine = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in mine:
            return int(local.split(":")[1], 16)
    raise AssertionError(f"process {pid} listens at no TCP port")


# ---- two daemons -----------------------------------------------------------------------------------------------------


class DaemonQueue:
    def __init__(self, end: DaemonEnd, qp_type: QpType, sig_all: bool, pd: Any) -> None:
        self.end = end
        cap = verbs.QPCap(max_send_wr=64, max_recv_wr=64, max_send_sge=4, max_recv_sge=4, max_inline_data=128)
        # A completion queue of its own: what comes out of it is this queue pair's.
        self.channel = verbs.CompChannel(end.ctx)
        self.cq = verbs.CQ(end.ctx, 4096, None, self.channel, 0)
        self.qp = verbs.QP(
            pd or end.default_pd, verbs.QPInitAttr(qp_type, self.cq, self.cq, cap=cap, sq_sig_all=int(sig_all))
        )
        self.qpn = self.qp.qp_num
        self.qp_type = qp_type
        self.psn = 0xFFFFF0 + end.ctx.node

    def modify(self, attr: QPAttr, mask: int) -> None:
        self.qp.modify(attr, mask)

    def post_send(self, *wrs: SendWR) -> None:
        self.qp.post_send(*wrs)

    def post_recv(self, *wrs: RecvWR) -> None:
        self.qp.post_recv(*wrs)

    def wait(self, count: int = 1) -> list[WC]:
        got: list[WC] = []
        while len(got) < count:
            wcs = self.cq.wait(count - len(got), 10.0)
            assert wcs, f"{len(got)} of {count} completions in 10 s"
            got += wcs
        return got

    def pending(self) -> list[WC]:
        self.qp.query()  # a round trip through the daemon
        return self.cq.poll(4096)[1]

    @property
    def state(self) -> QpState:
        return QpState(self.qp.query()[0].qp_state)

    @property
    def last_error(self) -> str:
        return self.qp.last_error()


class DaemonEnd:
    def __init__(self, lab: LocalLab, node: int) -> None:
        self.daemon = lab.daemons[node]
        self.windows: list[verbs.MW] = []
        self.ctx = verbs.Context("hca1", str(lab.socket_path(node)))
        self.default_pd = verbs.PD(self.ctx)
        self.lid = self.ctx.hca.lid

    def memory(self, length: int, access: int = ALL_ACCESS, pd: Any = None) -> Memory:
        mr = verbs.MR(pd or self.default_pd, length, access)
        return Memory(mr.buf, length, mr.lkey, mr.rkey, mr.view, mr)

    def pd(self) -> Any:
        return verbs.PD(self.ctx)

    def queue(self, qp_type: QpType = QpType.IBV_QPT_RC, *, sig_all: bool = False, pd: Any = None) -> DaemonQueue:
        return DaemonQueue(self, qp_type, sig_all, pd)

    def ah(self, attr: AHAttr) -> Any:
        return verbs.AH(self.default_pd, attr=attr)

    def window(self, mw_type: MwType = MwType.IBV_MW_TYPE_2, pd: Any = None) -> Window:
        made = verbs.MW(pd or self.default_pd, mw_type)
        self.windows.append(made)
        return Window(made.rkey, mw_type, made.handle)

    def forge(self, frame: Frame) -> None:
        """A frame without payload that no daemon sent arrives, over a connection as another daemon makes it."""
        with socket.create_connection(("127.0.0.1", listening_port(self.daemon))) as link:
            link.sendall(encode_hello(99, self.ctx._clock.epoch_ns))
            assert check_answer(link.recv(ANSWER_BYTES, socket.MSG_WAITALL))
            link.sendall(encode_header(frame))
            link.shutdown(socket.SHUT_WR)
            assert link.recv(1) == b""

    def events(self, count: int) -> list[int]:
        kinds = []
        for _ in range(count):
            event = self.ctx.get_async_event(10.0)
            assert event is not None, f"{kinds} and no more in 10 s"
            kinds.append(int(event.event_type))
        return kinds


@dataclass
class Stage:
    """Two ends, `a` and `b`, and how to clear away."""

    name: str
    a: End
    b: End

    def pair(
        self, qp_type: QpType = QpType.IBV_QPT_RC, *, sig_all: bool = False, **changes: Any
    ) -> tuple[Queue, Queue]:
        """Two connected queue pairs."""
        one, two = self.a.queue(qp_type, sig_all=sig_all), self.b.queue(qp_type, sig_all=sig_all)
        connect(one, two, **changes)
        return one, two


def sim_stage(*, express: bool) -> Stage:
    world = World(2, seed=7, express=express)
    return Stage("sim", SimEnd(world.hcas[0]), SimEnd(world.hcas[1]))


def refused(errno_: int, call: Callable[[], object]) -> VerbsError:
    """The VerbsError that `call` raises, with this errno."""
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == errno_, caught.value
    return caught.value
