"""REFERENCE A3, row by row: what causes each completion status, what the other side sees, where the queue pairs end.

Each row also checks that no byte moved that should not have, and that all that follows the failure is flushed in order.
"""

from __future__ import annotations

import pytest
from stages import Memory, Queue, Stage, bring_up, connect

from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_REQ_ERR,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RTS,
    IBV_SEND_SIGNALED,
    IBV_WC_BAD_RESP_ERR,
    IBV_WC_GENERAL_ERR,
    IBV_WC_LOC_ACCESS_ERR,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    AccessFlags,
    AethSyndrome,
    BthOpcode,
    Mtu,
    QpState,
    WcOpcode,
)
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.wire.headers import Frame

SIGNALED = int(IBV_SEND_SIGNALED)
LOCAL_WRITE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE)
SIZE = 20_000


class Scene:
    """Two connected queue pairs, each with painted memory."""

    def __init__(self, stage: Stage, his_access: int = 15, his_pd: bool = False, **changes: int) -> None:
        self.stage = stage
        self.a, self.b = stage.pair(**changes)
        self.mine = stage.a.memory(SIZE)
        self.his = stage.b.memory(SIZE, his_access, stage.b.pd() if his_pd else None)
        self.mine.data[:] = b"m" * SIZE
        self.his.data[:] = b"h" * SIZE

    def untouched(self) -> bool:
        return bytes(self.his.data) == b"h" * SIZE and bytes(self.mine.data) == b"m" * SIZE

    def wr(self, opcode: int, length: int = 64, wr_id: int = 1, **fields: object) -> SendWR:
        values = {"remote_addr": self.his.addr, "rkey": self.his.rkey, "send_flags": SIGNALED, **fields}
        sg = values.pop("sg", [self.mine.sge(length)])
        return SendWR(wr_id, opcode, sg, **values)  # type: ignore[arg-type]


def fails(scene: Scene, wr: SendWR, status: int, *, peer_ends: bool = True) -> None:
    """`wr` completes with `status`; what follows it, in both queues, is flushed in order; both ends are in ERR
    (`peer_ends`), or the peer never noticed."""
    a, b = scene.a, scene.b
    a.post_recv(RecvWR(71), RecvWR(72))
    a.post_send(wr, *(scene.wr(IBV_WR_RDMA_WRITE, wr_id=i) for i in (2, 3, 4)))
    got = a.wait(6)
    assert [(wc.wr_id, wc.status) for wc in got if wc.wr_id < 70] == [
        (1, status), (2, IBV_WC_WR_FLUSH_ERR), (3, IBV_WC_WR_FLUSH_ERR), (4, IBV_WC_WR_FLUSH_ERR),
    ]  # fmt: skip
    assert [(wc.wr_id, wc.status) for wc in got if wc.wr_id >= 70] == [
        (71, IBV_WC_WR_FLUSH_ERR), (72, IBV_WC_WR_FLUSH_ERR),
    ]  # fmt: skip
    assert all(wc.qp_num == a.qpn for wc in got)
    assert a.state == IBV_QPS_ERR
    assert b.state == (IBV_QPS_ERR if peer_ends else IBV_QPS_RTS)
    assert scene.untouched()
    # ERR flushes what is posted now, too.
    a.post_send(scene.wr(IBV_WR_RDMA_WRITE, wr_id=9))
    a.post_recv(RecvWR(79))
    assert sorted((wc.wr_id, wc.status) for wc in a.wait(2)) == [(9, IBV_WC_WR_FLUSH_ERR), (79, IBV_WC_WR_FLUSH_ERR)]


# ---- REM_ACCESS_ERR --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ], ids=lambda o: o.name)
@pytest.mark.parametrize("case", ["key", "lkey as rkey", "end", "start", "wrap", "access", "domain", "qp access"])
def test_remote_access_error(stage: Stage, opcode: int, case: str) -> None:
    scene = Scene(
        stage,
        his_access=LOCAL_WRITE if case == "access" else 15,
        his_pd=case == "domain",
        **({"qp_access_flags": LOCAL_WRITE} if case == "qp access" else {}),
    )
    fields = {
        "key": {"rkey": scene.his.rkey ^ 0x10000},
        "lkey as rkey": {"rkey": scene.his.lkey},
        "end": {"remote_addr": scene.his.addr + SIZE - 63},
        "start": {"remote_addr": scene.his.addr - 1},
        "wrap": {"remote_addr": 2**64 - 32},
    }.get(case, {})
    fails(scene, scene.wr(opcode, **fields), IBV_WC_REM_ACCESS_ERR)
    assert stage.b.events(1) == [IBV_EVENT_QP_ACCESS_ERR]
    assert scene.b.last_error


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ], ids=lambda o: o.name)
def test_first_and_last_byte_are_inside(stage: Stage, opcode: int) -> None:
    scene = Scene(stage)
    for offset in (0, SIZE - 1):
        scene.a.post_send(scene.wr(opcode, 1, remote_addr=scene.his.addr + offset))
        assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    # Nothing at the very end, and nothing with a key that is none: zero bytes need no key.
    scene.a.post_send(
        scene.wr(opcode, 0, remote_addr=scene.his.addr + SIZE), scene.wr(opcode, 0, sg=[], remote_addr=0, rkey=0)
    )
    assert [wc.status for wc in scene.a.wait(2)] == [IBV_WC_SUCCESS] * 2


# ---- LOC_PROT_ERR ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["key", "rkey as lkey", "end", "start", "domain"])
@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ], ids=lambda o: o.name)
def test_local_protection_error_of_a_send(stage: Stage, opcode: int, case: str) -> None:
    scene = Scene(stage)
    mine: Memory = scene.mine
    if case == "domain":
        mine = stage.a.memory(SIZE, 15, stage.a.pd())
    sge = {
        "key": SGE(mine.addr, 64, mine.lkey ^ 0x10000),
        "rkey as lkey": SGE(mine.addr, 64, mine.rkey),
        "end": SGE(mine.addr + SIZE - 63, 64, mine.lkey),
        "start": SGE(mine.addr - 1, 64, mine.lkey),
        "domain": SGE(mine.addr, 64, mine.lkey),
    }[case]
    fails(scene, scene.wr(opcode, sg=[sge]), IBV_WC_LOC_PROT_ERR, peer_ends=False)


def test_read_into_memory_that_may_not_be_written(stage: Stage) -> None:
    scene = Scene(stage)
    fixed = stage.a.memory(64, 0)
    fails(scene, scene.wr(IBV_WR_RDMA_READ, sg=[fixed.sge()]), IBV_WC_LOC_PROT_ERR, peer_ends=False)


def test_a_posted_receive_with_a_bad_key(stage: Stage) -> None:
    """The responder sees LOC_PROT_ERR, the requester REM_OP_ERR."""
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(81, [SGE(scene.his.addr, 64, scene.his.lkey ^ 0x10000)]), RecvWR(82))
    fails(scene, scene.wr(IBV_WR_SEND), IBV_WC_REM_OP_ERR)
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait(2)] == [(81, IBV_WC_LOC_PROT_ERR), (82, IBV_WC_WR_FLUSH_ERR)]


# ---- lengths ---------------------------------------------------------------------------------------------------------


def test_a_receive_that_is_too_small(stage: Stage) -> None:
    """The responder sees LOC_LEN_ERR, the requester REM_INV_REQ_ERR."""
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(81, [scene.his.sge(63)]), RecvWR(82))
    fails(scene, scene.wr(IBV_WR_SEND), IBV_WC_REM_INV_REQ_ERR)
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait(2)] == [(81, IBV_WC_LOC_LEN_ERR), (82, IBV_WC_WR_FLUSH_ERR)]


def test_a_receive_that_just_fits(stage: Stage) -> None:
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(81, [scene.his.sge(63), scene.his.sge(1, 100)]))
    scene.a.post_send(scene.wr(IBV_WR_SEND))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    (wc,) = scene.b.wait()
    assert (wc.status, wc.byte_len, wc.src_qp) == (IBV_WC_SUCCESS, 64, scene.a.qpn)
    assert bytes(scene.his.data[:64]) == b"m" * 63 + b"h"
    assert bytes(scene.his.data[100:102]) == b"mh"


# ---- RNR and retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM], ids=lambda o: o.name)
@pytest.mark.parametrize("retries", [0, 1, 6])
def test_receiver_not_ready(stage: Stage, opcode: int, retries: int) -> None:
    scene = Scene(stage, rnr_retry=retries)
    fails(scene, scene.wr(opcode), IBV_WC_RNR_RETRY_EXC_ERR, peer_ends=False)


def test_receiver_not_ready_for_ever(stage: Stage) -> None:
    """rnr_retry 7 tries until a receive is there; a WRITE without immediate never needs one."""
    scene = Scene(stage, rnr_retry=7, min_rnr_timer=1)
    scene.a.post_send(scene.wr(IBV_WR_RDMA_WRITE, wr_id=5))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    scene.a.post_send(scene.wr(IBV_WR_SEND, wr_id=6))
    if stage.name == "sim":
        world = scene.a.end.hca.world  # type: ignore[attr-defined]
        world.at(50_000_000, lambda: scene.b.post_recv(RecvWR(1, [scene.his.sge()])))
    else:
        assert scene.a.pending() == []
        scene.b.post_recv(RecvWR(1, [scene.his.sge()]))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    assert scene.b.wait()[0].byte_len == 64


@pytest.mark.parametrize("peer_state", [QpState.IBV_QPS_RESET, QpState.IBV_QPS_ERR], ids=lambda s: s.name)
@pytest.mark.parametrize("retries", [0, 2])
def test_silence_ends_in_retry_exceeded(stage: Stage, peer_state: QpState, retries: int) -> None:
    """A peer in RESET or ERR says nothing: no NAK, only the timeouts, retry_cnt + 1 of them."""
    scene = Scene(stage, retry_cnt=retries, timeout=8)
    attr = QPAttr()
    attr.qp_state = peer_state
    scene.b.modify(attr, IBV_QP_STATE)
    a = scene.a
    a.post_send(scene.wr(IBV_WR_RDMA_WRITE), scene.wr(IBV_WR_RDMA_WRITE, wr_id=2))
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(1, IBV_WC_RETRY_EXC_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert a.state == IBV_QPS_ERR
    assert scene.untouched()
    if stage.name == "sim":
        now = a.end.hca.world.now  # type: ignore[attr-defined]
        assert now >= (retries + 1) * (4096 << 8)
        assert now < (retries + 2) * (4096 << 8)


# ---- LOC_QP_OP_ERR, REM_INV_REQ_ERR ----------------------------------------------------------------------------------


def test_a_read_that_may_not_be_asked_for(stage: Stage) -> None:
    scene = Scene(stage, max_rd_atomic=0)
    fails(scene, scene.wr(IBV_WR_RDMA_READ), IBV_WC_LOC_QP_OP_ERR, peer_ends=False)


def test_more_reads_than_the_responder_holds(stage: Stage) -> None:
    """max_rd_atomic over the peer's max_dest_rd_atomic: the surplus READ is an invalid request."""
    one, two = stage.a.queue(), stage.b.queue()
    connect(one, two, max_rd_atomic=16, max_dest_rd_atomic=1)
    # Long enough that the first cannot be answered before the second is there.
    mine, his = stage.a.memory(16 << 20), stage.b.memory(16 << 20)
    one.post_send(*(SendWR(i, IBV_WR_RDMA_READ, [mine.sge()], 0, SIGNALED, his.addr, his.rkey) for i in range(8)))
    statuses = [wc.status for wc in one.wait(8)]
    first = next(i for i, status in enumerate(statuses) if status != IBV_WC_SUCCESS)
    assert statuses[first] == IBV_WC_REM_INV_REQ_ERR
    assert set(statuses[first + 1 :]) <= {IBV_WC_WR_FLUSH_ERR}
    assert stage.b.events(1) == [IBV_EVENT_QP_REQ_ERR]


# ---- flushing and coming back ----------------------------------------------------------------------------------------


def test_err_flushes_both_queues_in_order_and_reset_drops_them(stage: Stage) -> None:
    scene = Scene(stage, rnr_retry=7)
    a: Queue = scene.a
    attr = QPAttr()
    a.post_recv(*(RecvWR(i) for i in range(5)))
    a.post_send(*(scene.wr(IBV_WR_SEND, wr_id=10 + i, send_flags=0) for i in range(4)))  # no receive there: they wait
    attr.qp_state = QpState.IBV_QPS_ERR
    a.modify(attr, IBV_QP_STATE)
    got = a.wait(9)
    assert {wc.status for wc in got} == {IBV_WC_WR_FLUSH_ERR}
    assert [wc.wr_id for wc in got if wc.wr_id < 10] == [0, 1, 2, 3, 4]
    assert [wc.wr_id for wc in got if wc.wr_id >= 10] == [10, 11, 12, 13]  # errors complete, signaled or not
    # RESET drops what is posted, without completions; connected anew the queue pair works.
    for queue in (a, scene.b):
        attr.qp_state = QpState.IBV_QPS_RESET
        queue.modify(attr, IBV_QP_STATE)
        queue.psn = (queue.psn + 1000) & 0xFFFFFF
    connect(a, scene.b)
    a.post_recv(RecvWR(50))
    attr.qp_state = QpState.IBV_QPS_RESET
    a.modify(attr, IBV_QP_STATE)
    scene.b.modify(attr, IBV_QP_STATE)
    assert a.pending() == []
    a.psn = (a.psn + 1000) & 0xFFFFFF
    scene.b.psn = (scene.b.psn + 1000) & 0xFFFFFF
    connect(a, scene.b)
    a.post_send(scene.wr(IBV_WR_RDMA_WRITE, wr_id=77))
    assert [(wc.wr_id, wc.status) for wc in a.wait()] == [(77, IBV_WC_SUCCESS)]
    assert a.pending() == []


# ---- LOC_ACCESS_ERR, path MTU, BAD_RESP_ERR --------------------------------------------------------------------------


def test_an_immediate_whose_write_is_refused(stage: Stage) -> None:
    """The receive it would have told of completes with LOC_ACCESS_ERR; the requester sees REM_ACCESS_ERR."""
    scene = Scene(stage)
    scene.b.post_recv(RecvWR(81), RecvWR(82))
    fails(scene, scene.wr(IBV_WR_RDMA_WRITE_WITH_IMM, rkey=scene.his.rkey ^ 0x10000), IBV_WC_REM_ACCESS_ERR)
    assert [(wc.wr_id, wc.status) for wc in scene.b.wait(2)] == [(81, IBV_WC_LOC_ACCESS_ERR), (82, IBV_WC_WR_FLUSH_ERR)]


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_SEND], ids=lambda o: o.name)
@pytest.mark.parametrize(("mine", "his"), [(Mtu.IBV_MTU_4096, Mtu.IBV_MTU_1024), (Mtu.IBV_MTU_1024, Mtu.IBV_MTU_4096)])
def test_ends_that_disagree_about_the_path_mtu(stage: Stage, opcode: int, mine: Mtu, his: Mtu) -> None:
    """Messages of one packet pass; longer ones are invalid requests: their packets are too long, or not full."""
    scene = Scene(stage)
    a, b = stage.a.queue(), stage.b.queue()
    bring_up(a, b, path_mtu=mine)
    bring_up(b, a, path_mtu=his)
    scene.a, scene.b = a, b
    b.post_recv(*(RecvWR(80 + i, [scene.his.sge()]) for i in range(3)))
    a.post_send(scene.wr(opcode, 1000))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    a.post_send(scene.wr(opcode, 5000))
    assert a.wait()[0].status == IBV_WC_REM_INV_REQ_ERR
    assert b.state == IBV_QPS_ERR


def test_a_read_between_ends_that_disagree_about_the_path_mtu(stage: Stage) -> None:
    """Its responses come in packets that the requester does not take: BAD_RESP_ERR, and nothing of them is stored."""
    scene = Scene(stage)
    a, b = stage.a.queue(), stage.b.queue()
    bring_up(a, b, path_mtu=Mtu.IBV_MTU_1024)
    bring_up(b, a, path_mtu=Mtu.IBV_MTU_4096)
    scene.a, scene.b = a, b
    a.post_send(scene.wr(IBV_WR_RDMA_READ, 1000))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    scene.mine.data[:] = b"m" * SIZE
    fails(scene, scene.wr(IBV_WR_RDMA_READ, 5000), IBV_WC_BAD_RESP_ERR, peer_ends=False)
    assert "READ_RESPONSE" in a.last_error


def unanswered(stage: Stage, opcode: int) -> Scene:
    """A request of `a` that its peer, in INIT, does not hear, and that waits for ever."""
    scene = Scene(stage)
    scene.a, scene.b = stage.a.queue(), stage.b.queue()
    bring_up(scene.a, scene.b, timeout=0)
    scene.a.post_send(scene.wr(opcode), scene.wr(IBV_WR_RDMA_WRITE, wr_id=2))
    assert scene.a.pending() == []
    return scene


def forge(scene: Scene, opcode: BthOpcode, syndrome: int) -> None:
    """The peer says this about the first request of `a`."""
    a, b = scene.a, scene.b
    a.end.forge(Frame(int(opcode), b.end.lid, a.end.lid, a.qpn, a.psn, syndrome=syndrome))


@pytest.mark.parametrize("code", [5, 31])
def test_a_nak_that_nobody_knows(stage: Stage, code: int) -> None:
    """The reserved codes of IBTA table 46, from a peer of another kind: GENERAL_ERR."""
    scene = unanswered(stage, IBV_WR_RDMA_WRITE)
    forge(scene, BthOpcode.RC_ACKNOWLEDGE, int(AethSyndrome.NAK) | code)
    got = scene.a.wait(2)
    assert [(wc.wr_id, wc.status) for wc in got] == [(1, IBV_WC_GENERAL_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert scene.a.state == IBV_QPS_ERR


def test_a_response_to_another_kind_of_request(stage: Stage) -> None:
    """An atomic's, where a READ's was due: BAD_RESP_ERR."""
    scene = unanswered(stage, IBV_WR_RDMA_READ)
    forge(scene, BthOpcode.RC_ATOMIC_ACKNOWLEDGE, 31)
    got = scene.a.wait(2)
    assert [(wc.wr_id, wc.status) for wc in got] == [(1, IBV_WC_BAD_RESP_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert scene.a.state == IBV_QPS_ERR
    assert scene.untouched()


def test_what_an_error_completion_says_and_does_not_say(stage: Stage) -> None:
    """wr_id, status, qp_num and vendor_err; all else is poisoned, so that code that reads it is found out (A6)."""
    scene = Scene(stage)
    scene.a.post_send(scene.wr(IBV_WR_RDMA_WRITE, wr_id=33, rkey=1))
    (wc,) = scene.a.wait()
    assert (wc.wr_id, wc.status, wc.qp_num) == (33, IBV_WC_REM_ACCESS_ERR, scene.a.qpn)
    (good,) = _good_completion(stage)
    for name in ("opcode", "byte_len", "src_qp", "wc_flags"):
        assert getattr(wc, name) != getattr(good, name), name
    assert wc.opcode not in set(WcOpcode)


def _good_completion(stage: Stage) -> list[WC]:
    scene = Scene(stage)
    scene.a.post_send(scene.wr(IBV_WR_RDMA_WRITE))
    return scene.a.wait()
