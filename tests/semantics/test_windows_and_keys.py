"""REFERENCE A2's last row and MW_BIND_ERR of A3: binding windows, taking keys away, and what refuses to be bound."""

from __future__ import annotations

import pytest
from stages import ALL_ACCESS, Memory, Queue, Stage, Window, connect, refused

from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_QPS_ERR,
    IBV_QPS_RTS,
    IBV_QPS_SQE,
    IBV_SEND_SIGNALED,
    IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV,
    IBV_WC_MW_BIND_ERR,
    IBV_WC_RECV,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
    AccessFlags,
    MwType,
    QpType,
)
from fauxrdma.ib.work import RecvWR, SendWR

RC, UC, UD = QpType.IBV_QPT_RC, QpType.IBV_QPT_UC, QpType.IBV_QPT_UD
SIGNALED = int(IBV_SEND_SIGNALED)
BINDABLE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE | AccessFlags.IBV_ACCESS_MW_BIND)
WRITABLE = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE)
READABLE = int(AccessFlags.IBV_ACCESS_REMOTE_READ)
SIZE = 20_000


class Scene:
    """`b` has memory that grants nothing remotely, and a type 2 window; `a` works on it."""

    def __init__(self, stage: Stage, qp_type: QpType = RC, access: int = BINDABLE) -> None:
        self.stage = stage
        self.a, self.b = stage.pair(qp_type)
        self.mine, self.his = stage.a.memory(SIZE), stage.b.memory(SIZE, access)
        self.mine.data[:] = b"m" * SIZE
        self.his.data[:] = b"h" * SIZE
        self.window = stage.b.window()

    def bound(self, access: int = WRITABLE, offset: int = 1000, length: int = 100, queue: Queue | None = None) -> int:
        """Bind the window to part of the memory; its key."""
        queue = queue or self.b
        wr = self.window.bind(self.his, access, offset, length, wr_id=50)
        queue.post_send(wr)
        (wc,) = queue.wait()
        assert (wc.wr_id, wc.status, wc.opcode) == (50, IBV_WC_SUCCESS, IBV_WC_BIND_MW)
        return wr.rkey

    def reach(self, rkey: int, opcode: int = IBV_WR_RDMA_WRITE, offset: int = 1000, length: int = 100) -> int:
        """The status of a request of `a` to the memory through `rkey`."""
        sge = self.mine.sge(length)
        self.a.post_send(SendWR(60, opcode, [sge], 0, SIGNALED, self.his.addr + offset, rkey))
        (wc,) = self.a.wait()
        return wc.status

    def invalidate(self, rkey: int, length: int = 0, wr_id: int = 70) -> SendWR:
        sg = [self.mine.sge(length)] if length else []
        return SendWR(wr_id, IBV_WR_SEND_WITH_INV, sg, rkey, SIGNALED)


# ---- BIND_MW ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qp_type", [RC, UC], ids=lambda t: t.name)
def test_a_bound_window_grants_its_range(stage: Stage, qp_type: QpType) -> None:
    scene = Scene(stage, qp_type)
    key = scene.bound()
    assert scene.reach(key) == IBV_WC_SUCCESS
    if qp_type == UC:  # nothing tells when a WRITE is there, but what comes behind it does
        scene.b.post_recv(RecvWR(1))
        scene.a.post_send(SendWR(61, IBV_WR_SEND, [], 0, SIGNALED))
        scene.b.wait()
    assert bytes(scene.his.data) == b"h" * 1000 + b"m" * 100 + b"h" * (SIZE - 1100)


@pytest.mark.parametrize("case", ["end", "start", "other access", "old key", "region's own key"])
def test_a_bound_window_grants_nothing_else(stage: Stage, case: str) -> None:
    scene = Scene(stage)
    key = scene.bound()
    opcode = IBV_WR_RDMA_READ if case == "other access" else IBV_WR_RDMA_WRITE
    offset = {"end": 1001, "start": 999}.get(case, 1000)
    rkey = {"old key": scene.window.rkey, "region's own key": scene.his.rkey}.get(case, key)
    assert scene.reach(rkey, opcode, offset) == IBV_WC_REM_ACCESS_ERR
    assert bytes(scene.his.data) == b"h" * SIZE
    assert stage.b.events(1) == [IBV_EVENT_QP_ACCESS_ERR]


def test_a_type_2_window_belongs_to_its_queue_pair(stage: Stage) -> None:
    scene = Scene(stage)
    c, d = stage.a.queue(), stage.b.queue()
    connect(c, d)
    key = scene.bound(queue=d)
    assert scene.reach(key) == IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("qp_type", [RC, UC], ids=lambda t: t.name)
@pytest.mark.parametrize("case", ["no MW_BIND", "no local write", "end", "foreign key", "domain", "bound", "no bytes"])
def test_a_bind_that_is_refused(stage: Stage, qp_type: QpType, case: str) -> None:
    """MW_BIND_ERR, the rest is flushed, nothing is granted; a reliable queue pair is in ERR, another in SQE."""
    scene = Scene(stage, qp_type, {"no MW_BIND": 15, "no local write": 16}.get(case, BINDABLE))
    b, his, window = scene.b, scene.his, scene.window
    if case == "domain":
        his = stage.b.memory(SIZE, BINDABLE, stage.b.pd())
    if case == "bound":
        window = Window(scene.bound(), MwType.IBV_MW_TYPE_2, window.handle)
    wr = window.bind(his, WRITABLE, 0, SIZE, 1)
    if case == "end":
        wr = window.bind(his, WRITABLE, 1, SIZE, 1)
    elif case == "no bytes":
        wr = window.bind(his, WRITABLE, 0, 0, 1)
    elif case == "foreign key":
        wr.rkey ^= 0x100
    b.post_send(wr, SendWR(2, IBV_WR_RDMA_WRITE, [scene.his.sge(8)], 0, SIGNALED, scene.mine.addr, scene.mine.rkey))
    assert [(wc.wr_id, wc.status) for wc in b.wait(2)] == [(1, IBV_WC_MW_BIND_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert b.state == (IBV_QPS_ERR if qp_type == RC else IBV_QPS_SQE)
    assert b.last_error
    assert bytes(scene.mine.data) == b"m" * SIZE


# ---- LOCAL_INV, SEND_WITH_INV ----------------------------------------------------------------------------------------


def test_its_owner_takes_a_window_away(stage: Stage) -> None:
    scene = Scene(stage)
    key = scene.bound()
    assert scene.reach(key) == IBV_WC_SUCCESS
    scene.b.post_send(SendWR(5, IBV_WR_LOCAL_INV, [], key, SIGNALED))
    (wc,) = scene.b.wait()
    assert (wc.wr_id, wc.status, wc.opcode) == (5, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV)
    assert scene.reach(key) == IBV_WC_REM_ACCESS_ERR
    # Invalid again, it may be bound again.
    c, d = stage.a.queue(), stage.b.queue()
    connect(c, d)
    scene.a = c
    scene.window = Window(key, MwType.IBV_MW_TYPE_2, scene.window.handle)
    assert scene.reach(scene.bound(READABLE, queue=d), IBV_WR_RDMA_READ) == IBV_WC_SUCCESS


@pytest.mark.parametrize("case", ["region's key", "not bound", "unknown"])
def test_what_may_not_be_taken_away(stage: Stage, case: str) -> None:
    scene = Scene(stage)
    key = {"region's key": scene.his.rkey, "not bound": scene.window.rkey, "unknown": 0x99}[case]
    scene.b.post_send(SendWR(5, IBV_WR_LOCAL_INV, [], key, SIGNALED), SendWR(6, IBV_WR_LOCAL_INV, [], key, SIGNALED))
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait(2)] == [(5, IBV_WC_MW_BIND_ERR), (6, IBV_WC_WR_FLUSH_ERR)]
    assert scene.b.state == IBV_QPS_ERR


@pytest.mark.parametrize("length", [0, 64, 9000])
def test_a_send_takes_a_window_away(stage: Stage, length: int) -> None:
    """The receive tells which; the data is where it belongs; the key is dead."""
    scene = Scene(stage)
    key = scene.bound()
    landing: Memory = stage.b.memory(SIZE, ALL_ACCESS)
    scene.b.post_recv(RecvWR(81, [landing.sge()]))
    scene.a.post_send(scene.invalidate(key, length))
    (wc,) = scene.a.wait()
    assert (wc.wr_id, wc.status, wc.opcode) == (70, IBV_WC_SUCCESS, IBV_WC_SEND)
    (wc,) = scene.b.wait()
    assert (wc.wr_id, wc.status, wc.opcode, wc.byte_len) == (81, IBV_WC_SUCCESS, IBV_WC_RECV, length)
    assert (wc.wc_flags, wc.imm_data) == (IBV_WC_WITH_INV, key)
    assert bytes(landing.data) == b"m" * length + bytes(SIZE - length)
    assert scene.reach(key) == IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("case", ["region's key", "not bound", "another queue pair's"])
def test_a_send_that_may_not_take_away_what_it_names(stage: Stage, case: str) -> None:
    """REM_ACCESS_ERR; the receive is not used but flushed, and the window is as it was."""
    scene = Scene(stage)
    key = scene.his.rkey if case == "region's key" else scene.window.rkey
    if case == "another queue pair's":
        c, d = stage.a.queue(), stage.b.queue()
        connect(c, d)
        key = scene.bound(queue=d)
    scene.b.post_recv(RecvWR(81))
    scene.a.post_send(scene.invalidate(key))
    assert scene.a.wait()[0].status == IBV_WC_REM_ACCESS_ERR
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait()] == [(81, IBV_WC_WR_FLUSH_ERR)]
    assert stage.b.events(1) == [IBV_EVENT_QP_ACCESS_ERR]
    if case == "another queue pair's":
        scene.a = c
        assert scene.reach(key) == IBV_WC_SUCCESS


# ---- where there is none of it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("qp_type", "opcode"),
    [
        (UC, IBV_WR_SEND_WITH_INV), (UC, IBV_WR_LOCAL_INV),
        (UD, IBV_WR_SEND_WITH_INV), (UD, IBV_WR_LOCAL_INV), (UD, IBV_WR_BIND_MW),
    ],
    ids=lambda value: value.name,
)  # fmt: skip
def test_transports_that_do_not_have_it(stage: Stage, qp_type: QpType, opcode: int) -> None:
    """Over daemons post_send refuses it; an engine given it all the same fails it, and the queue pair is in SQE."""
    queue, peer = stage.pair(qp_type)
    memory, window = stage.a.memory(64, BINDABLE), stage.a.window()
    wr = window.bind(memory, WRITABLE) if opcode == IBV_WR_BIND_MW else SendWR(1, opcode, [], 7, SIGNALED)
    if stage.name == "daemons":
        error = refused(22, lambda: queue.post_send(wr))
        assert "is not an operation of" in str(error)
        assert queue.state == IBV_QPS_RTS
    else:
        wr.ah = stage.a.ah(attr_of(peer)) if qp_type == UD else None
        queue.post_send(wr)
        assert queue.wait()[0].status not in (IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR)
        assert queue.state == IBV_QPS_SQE


def attr_of(peer: Queue) -> AHAttr:
    return AHAttr(peer.end.lid)
