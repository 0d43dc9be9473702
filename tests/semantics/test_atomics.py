"""REFERENCE A2, the atomic rows: 8 bytes, naturally aligned, host-endian values, exactly once, on RC alone."""

from __future__ import annotations

import errno
import struct
import sys

import pytest
from stages import ALL_ACCESS, Memory, Stage, connect, refused

from fauxrdma.ib.enums import (
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_REQ_ERR,
    IBV_QPS_ERR,
    IBV_SEND_FENCE,
    IBV_SEND_SIGNALED,
    IBV_WC_COMP_SWAP,
    IBV_WC_FETCH_ADD,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_WRITE,
    AccessFlags,
    QpType,
)
from fauxrdma.ib.work import SendWR

SIGNALED = int(IBV_SEND_SIGNALED)
MASK = (1 << 64) - 1
ATOMICS = (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD)


def word(memory: Memory, offset: int = 0) -> int:
    return int.from_bytes(memory.data[offset : offset + 8], sys.byteorder)


def put(memory: Memory, value: int, offset: int = 0) -> None:
    memory.data[offset : offset + 8] = struct.pack("=Q", value)


class Scene:
    def __init__(self, stage: Stage, his_access: int = ALL_ACCESS, **changes: int) -> None:
        self.stage = stage
        self.a, self.b = stage.pair(**changes)
        self.mine, self.his = stage.a.memory(256), stage.b.memory(256, his_access)

    def wr(
        self,
        opcode: int,
        compare_add: int,
        swap: int = 0,
        wr_id: int = 1,
        offset: int = 0,
        mine: int = 0,
        flags: int = 0,
    ) -> SendWR:
        wr = SendWR(wr_id, opcode, [self.mine.sge(8, mine)], 0, SIGNALED)
        wr.set_wr_atomic(self.his.rkey, self.his.addr + offset, compare_add, swap)
        return wr


@pytest.mark.parametrize("value", [0, 1, 0x0102030405060708, MASK])
def test_fetch_and_add(stage: Stage, value: int) -> None:
    scene = Scene(stage)
    put(scene.his, value, 8)
    put(scene.his, 0x1111, 0)
    scene.a.post_send(scene.wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 3, offset=8))
    (wc,) = scene.a.wait()
    assert (wc.status, wc.opcode, wc.byte_len) == (IBV_WC_SUCCESS, IBV_WC_FETCH_ADD, 8)
    assert word(scene.mine) == value
    assert word(scene.his, 8) == (value + 3) & MASK  # wraps
    assert word(scene.his, 0) == 0x1111
    assert word(scene.his, 16) == 0
    assert scene.b.pending() == []


@pytest.mark.parametrize("equal", [True, False])
def test_compare_and_swap(stage: Stage, equal: bool) -> None:
    scene = Scene(stage)
    value = 0x0102030405060708
    put(scene.his, value)
    scene.a.post_send(scene.wr(IBV_WR_ATOMIC_CMP_AND_SWP, value if equal else value + 1, 0xCAFEBABE00000001))
    (wc,) = scene.a.wait()
    assert (wc.status, wc.opcode, wc.byte_len) == (IBV_WC_SUCCESS, IBV_WC_COMP_SWAP, 8)
    assert word(scene.mine) == value  # the original, whether it swapped or not
    assert word(scene.his) == (0xCAFEBABE00000001 if equal else value)


def test_many_in_order_and_more_than_may_be_outstanding(stage: Stage) -> None:
    scene = Scene(stage, max_rd_atomic=2, max_dest_rd_atomic=2)
    for i in range(20):
        scene.a.post_send(scene.wr(IBV_WR_ATOMIC_FETCH_AND_ADD, i, wr_id=i, mine=8 * i))
    got = scene.a.wait(20)
    assert [(wc.wr_id, wc.status) for wc in got] == [(i, IBV_WC_SUCCESS) for i in range(20)]
    assert [word(scene.mine, 8 * i) for i in range(20)] == [sum(range(i)) for i in range(20)]
    assert word(scene.his) == sum(range(20))


def test_a_fence_waits_for_the_original_value(stage: Stage) -> None:
    scene = Scene(stage)
    put(scene.his, 77)
    write = SendWR(2, IBV_WR_RDMA_WRITE, [scene.mine.sge(8)], 0, SIGNALED | int(IBV_SEND_FENCE))
    write.set_wr_rdma(scene.his.rkey, scene.his.addr + 64)
    scene.a.post_send(scene.wr(IBV_WR_ATOMIC_FETCH_AND_ADD, 1), write)
    assert [wc.status for wc in scene.a.wait(2)] == [IBV_WC_SUCCESS] * 2
    assert word(scene.his, 64) == 77


def test_two_queue_pairs_on_one_word(stage: Stage) -> None:
    """Atomic among all queue pairs of one device."""
    scene = Scene(stage)
    other_a, other_b = stage.a.queue(), stage.b.queue()
    connect(other_a, other_b)
    results = stage.a.memory(8 * 40)

    def add(i: int) -> SendWR:
        wr = SendWR(i, IBV_WR_ATOMIC_FETCH_AND_ADD, [results.sge(8, 8 * i)], 0, SIGNALED)
        wr.set_wr_atomic(scene.his.rkey, scene.his.addr, 1)
        return wr

    for i in range(20):
        scene.a.post_send(add(2 * i))
        other_a.post_send(add(2 * i + 1))
    scene.a.wait(20)
    other_a.wait(20)
    assert word(scene.his) == 40
    assert sorted(word(results, 8 * i) for i in range(40)) == list(range(40))


@pytest.mark.parametrize("opcode", ATOMICS, ids=lambda o: o.name)
@pytest.mark.parametrize("offset", [1, 2, 4, 7])
def test_an_unaligned_word_is_an_invalid_request(stage: Stage, opcode: int, offset: int) -> None:
    scene = Scene(stage)
    scene.a.post_send(scene.wr(opcode, 0, 5, offset=offset))
    assert scene.a.wait()[0].status == IBV_WC_REM_INV_REQ_ERR
    assert not any(scene.his.data)
    assert stage.b.events(1) == [IBV_EVENT_QP_REQ_ERR]
    assert scene.b.state == IBV_QPS_ERR


@pytest.mark.parametrize("opcode", ATOMICS, ids=lambda o: o.name)
@pytest.mark.parametrize("case", ["key", "end", "access", "qp access"])
def test_remote_access(stage: Stage, opcode: int, case: str) -> None:
    no_atomics = ALL_ACCESS & ~int(AccessFlags.IBV_ACCESS_REMOTE_ATOMIC)
    scene = Scene(
        stage,
        no_atomics if case == "access" else ALL_ACCESS,
        **({"qp_access_flags": no_atomics} if case == "qp access" else {}),
    )
    wr = scene.wr(opcode, 0, 5)
    if case == "key":
        wr.rkey ^= 0x10000
    elif case == "end":
        wr.remote_addr += 256
    scene.a.post_send(wr)
    assert scene.a.wait()[0].status == IBV_WC_REM_ACCESS_ERR
    assert not any(scene.his.data)
    assert stage.b.events(1) == [IBV_EVENT_QP_ACCESS_ERR]


@pytest.mark.parametrize("opcode", ATOMICS, ids=lambda o: o.name)
def test_the_local_side(stage: Stage, opcode: int) -> None:
    """8 bytes that may be written, or the request fails here and the word is untouched."""
    for case, expected in (
        ("short", {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR}),
        ("long", {IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR}),
        ("key", {IBV_WC_LOC_PROT_ERR}),
        ("read-only", {IBV_WC_LOC_PROT_ERR}),
    ):
        scene = Scene(stage)
        wr = scene.wr(opcode, 0, 5)
        if case == "read-only":
            wr.sg = [stage.a.memory(8, 0).sge()]
        elif case == "key":
            wr.sg[0].lkey ^= 0x10000
        else:
            wr.sg[0].length = 7 if case == "short" else 9
        scene.a.post_send(wr)
        assert scene.a.wait()[0].status in expected, case
        assert not any(scene.his.data)


@pytest.mark.parametrize("opcode", ATOMICS, ids=lambda o: o.name)
@pytest.mark.parametrize("qp_type", [QpType.IBV_QPT_UC, QpType.IBV_QPT_UD], ids=lambda t: t.name)
def test_only_reliable_connections_have_them(stage: Stage, qp_type: QpType, opcode: int) -> None:
    one, two = stage.pair(qp_type)
    mine, his = stage.a.memory(8), stage.b.memory(8)
    wr = SendWR(1, opcode, [mine.sge()], 0, SIGNALED)
    wr.set_wr_atomic(his.rkey, his.addr, 0, 5)
    if stage.name == "daemons":
        refused(errno.EINVAL, lambda: one.post_send(wr))
    else:
        one.post_send(wr)
        assert one.wait()[0].status == IBV_WC_LOC_QP_OP_ERR
    assert not any(his.data)
    assert two.pending() == []
