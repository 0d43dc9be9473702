"""REFERENCE A2, row by row: what each operation does on each transport, and what flags and lists change about it."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from stages import Memory, Queue, Stage, bring_up, connect, refused

from fauxrdma.ib.enums import (
    IBV_SEND_FENCE,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WC_RDMA_READ,
    IBV_WC_RDMA_WRITE,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SEND,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    QpType,
)
from fauxrdma.ib.work import RecvWR, SendWR

RC, UC = QpType.IBV_QPT_RC, QpType.IBV_QPT_UC
SIGNALED = int(IBV_SEND_SIGNALED)
INLINE = int(IBV_SEND_INLINE)
SIZE = 100_000
SENDS = (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM)
WRITES = (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM)
IMMEDIATES = (IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM)
WC_OPCODE = {
    IBV_WR_SEND: IBV_WC_SEND,
    IBV_WR_SEND_WITH_IMM: IBV_WC_SEND,
    IBV_WR_RDMA_WRITE: IBV_WC_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM: IBV_WC_RDMA_WRITE,
    IBV_WR_RDMA_READ: IBV_WC_RDMA_READ,
}


class Scene:
    """Two connected queue pairs of a transport, with memory on both sides."""

    def __init__(self, stage: Stage, qp_type: QpType = RC, **changes: Any) -> None:
        self.stage = stage
        self.a, self.b = stage.pair(qp_type, **changes)
        self.mine, self.his = stage.a.memory(SIZE), stage.b.memory(SIZE)
        self.mine.data[:] = bytes(i * 7 % 251 for i in range(SIZE))

    def wr(self, opcode: int, length: int, wr_id: int = 1, **fields: Any) -> SendWR:
        values = {
            "remote_addr": self.his.addr,
            "rkey": self.his.rkey,
            "send_flags": SIGNALED,
            "imm_data": 0x80C0FFEE,
            **fields,
        }
        sg = values.pop("sg", [self.mine.sge(length)])
        return SendWR(wr_id, opcode, sg, **values)


def painted(memory: Memory, length: int) -> bytes:
    return bytes(memory.data[:length])


@pytest.mark.parametrize("length", [0, 1, 64, 4095, 4096, 4097, 65_536])
@pytest.mark.parametrize("opcode", [*SENDS, *WRITES], ids=lambda o: o.name)
@pytest.mark.parametrize("qp_type", [RC, UC], ids=lambda t: t.name)
def test_messages(stage: Stage, qp_type: QpType, opcode: int, length: int) -> None:
    scene = Scene(stage, qp_type)
    a, b = scene.a, scene.b
    b.post_recv(RecvWR(81, [scene.his.sge(offset=10_000)]), RecvWR(82))
    a.post_send(scene.wr(opcode, length, sg=[scene.mine.sge(length)] if length else []))
    (done,) = a.wait()
    assert (done.wr_id, done.status, done.opcode, done.qp_num) == (1, IBV_WC_SUCCESS, WC_OPCODE[opcode], a.qpn)
    takes_receive = opcode != IBV_WR_RDMA_WRITE
    if takes_receive:
        (wc,) = b.wait()
        assert (wc.wr_id, wc.status, wc.byte_len) == (81, IBV_WC_SUCCESS, length)
        assert wc.opcode == (IBV_WC_RECV if opcode in SENDS else IBV_WC_RECV_RDMA_WITH_IMM)
        assert (wc.qp_num, wc.src_qp) == (b.qpn, a.qpn)
        assert wc.wc_flags == (IBV_WC_WITH_IMM if opcode in IMMEDIATES else 0)
        if opcode in IMMEDIATES:
            assert wc.imm_data == 0x80C0FFEE
    elif qp_type == UC:
        # Nothing tells when it is there, but what comes behind it does.
        a.post_send(scene.wr(IBV_WR_SEND, 0, 2, sg=[]))
        assert b.wait()[0].wr_id == 81
    at = 10_000 if opcode in SENDS else 0
    assert bytes(scene.his.data[at : at + length]) == painted(scene.mine, length)
    assert not any(scene.his.data[at + length :])
    assert not any(scene.his.data[:at])
    if not takes_receive and qp_type == RC:
        assert b.pending() == []  # a plain WRITE takes no receive and tells nobody


@pytest.mark.parametrize("length", [0, 1, 8, 4096, 4097, 65_536])
def test_read(stage: Stage, length: int) -> None:
    scene = Scene(stage)
    scene.his.data[:] = scene.mine.data
    scene.mine.data[:] = bytes(SIZE)
    halves = [scene.mine.sge(length // 3, 100), scene.mine.sge(length - length // 3, 50_000)]
    scene.a.post_send(scene.wr(IBV_WR_RDMA_READ, length, sg=halves if length else [], remote_addr=scene.his.addr + 3))
    (wc,) = scene.a.wait()
    assert (wc.status, wc.opcode, wc.byte_len) == (IBV_WC_SUCCESS, IBV_WC_RDMA_READ, length)
    third = length // 3
    assert bytes(scene.mine.data[100 : 100 + third]) == bytes(scene.his.data[3 : 3 + third])
    assert bytes(scene.mine.data[50_000:][: length - third]) == bytes(scene.his.data[3 + third : 3 + length])
    assert sum(map(bool, scene.mine.data)) <= length
    assert scene.b.pending() == []


@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_RDMA_WRITE_WITH_IMM], ids=lambda o: o.name)
def test_gather_and_scatter(stage: Stage, opcode: int) -> None:
    scene = Scene(stage)
    lengths = (5, 0, 3000, 10_001)
    pieces = [scene.mine.sge(n, 20_000 * i) for i, n in enumerate(lengths)]
    total = b"".join(bytes(scene.mine.data[20_000 * i :][:n]) for i, n in enumerate(lengths))
    his = [scene.his.sge(7, 100), scene.his.sge(6000, 1000), scene.his.sge(50_000, 20_000)]
    scene.b.post_recv(RecvWR(1, his))
    scene.a.post_send(scene.wr(opcode, 0, sg=pieces, remote_addr=scene.his.addr + 70_000))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    assert scene.b.wait()[0].byte_len == len(total)
    if opcode == IBV_WR_SEND:
        data = scene.his.data
        got = bytes(data[100:107]) + bytes(data[1000:7000]) + bytes(data[20_000:][: len(total) - 6007])
        assert got == total
        assert not any(data[107:1000])
    else:
        assert bytes(scene.his.data[70_000:][: len(total)]) == total


def test_inline_data_is_taken_when_posted(stage: Stage) -> None:
    """The lkey does not matter and the buffer may be reused at once; over max_inline_data is refused."""
    scene = Scene(stage, rnr_retry=7)
    sge = scene.mine.sge(64)
    sge.lkey = 0
    before = painted(scene.mine, 64)
    scene.a.post_send(scene.wr(IBV_WR_SEND, 64, sg=[sge], send_flags=SIGNALED | INLINE))  # no receive yet: it must wait
    scene.mine.data[:64] = b"x" * 64
    scene.b.post_recv(RecvWR(1, [scene.his.sge()]))
    assert scene.a.wait()[0].status == IBV_WC_SUCCESS
    scene.b.wait()
    assert painted(scene.his, 64) == before
    if stage.name == "daemons":
        refused(errno.EINVAL, lambda: scene.a.post_send(scene.wr(IBV_WR_SEND, 129, send_flags=INLINE)))


@pytest.mark.parametrize("sig_all", [False, True])
def test_which_requests_complete(stage: Stage, sig_all: bool) -> None:
    scene = Scene(stage, sig_all=sig_all)
    flags = (0, SIGNALED, 0, 0, SIGNALED)
    scene.a.post_send(*(scene.wr(IBV_WR_RDMA_WRITE, 64, i, send_flags=f) for i, f in enumerate(flags)))
    expected = [i for i, f in enumerate(flags) if f or sig_all]
    assert [wc.wr_id for wc in scene.a.wait(len(expected))] == expected
    assert scene.a.pending() == []


def test_requests_complete_in_order_whatever_they_are(stage: Stage) -> None:
    scene = Scene(stage)
    opcodes = [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM] * 4
    scene.b.post_recv(*(RecvWR(i, [scene.his.sge()]) for i in range(8)))
    scene.a.post_send(*(scene.wr(op, 10_000 if op == IBV_WR_RDMA_READ else 10, i) for i, op in enumerate(opcodes)))
    got = scene.a.wait(20)
    assert [wc.wr_id for wc in got] == list(range(20))
    assert [wc.opcode for wc in got] == [WC_OPCODE[op] for op in opcodes]
    assert [wc.wr_id for wc in scene.b.wait(8)] == list(range(8))


def test_a_fence_waits_for_the_read_before_it(stage: Stage) -> None:
    """WRITE back what a READ brought: right only behind a fence."""
    scene = Scene(stage)
    scene.his.data[:50_000] = b"r" * 50_000
    scene.a.post_send(
        scene.wr(IBV_WR_RDMA_READ, 50_000),
        scene.wr(
            IBV_WR_RDMA_WRITE, 50_000, 2, remote_addr=scene.his.addr + 50_000, send_flags=SIGNALED | int(IBV_SEND_FENCE)
        ),
    )
    assert [wc.status for wc in scene.a.wait(2)] == [IBV_WC_SUCCESS] * 2
    assert bytes(scene.his.data[50_000:]) == b"r" * 50_000


def test_more_reads_than_max_rd_atomic_wait_their_turn(stage: Stage) -> None:
    one, two = stage.a.queue(), stage.b.queue()
    connect(one, two, max_rd_atomic=2, max_dest_rd_atomic=2)
    mine, his = stage.a.memory(SIZE), stage.b.memory(SIZE)
    his.data[:] = bytes(range(250)) * 400
    one.post_send(
        *(
            SendWR(i, IBV_WR_RDMA_READ, [mine.sge(5000, 5000 * i)], 0, SIGNALED, his.addr + 5000 * i, his.rkey)
            for i in range(20)
        )
    )
    assert [wc.status for wc in one.wait(20)] == [IBV_WC_SUCCESS] * 20
    assert bytes(mine.data) == bytes(his.data)


def test_both_directions_at_once(stage: Stage) -> None:
    scene = Scene(stage)
    a: Queue = scene.a
    b: Queue = scene.b
    scene.his.data[50_000:] = b"b" * 50_000
    for i in range(10):
        a.post_send(scene.wr(IBV_WR_RDMA_WRITE, 50_000, i))
        wr = SendWR(i, IBV_WR_RDMA_WRITE, [scene.his.sge(50_000, 50_000)], 0, SIGNALED)
        wr.set_wr_rdma(scene.mine.rkey, scene.mine.addr + 50_000)
        b.post_send(wr)
    assert [wc.wr_id for wc in a.wait(10)] == list(range(10))
    assert [wc.wr_id for wc in b.wait(10)] == list(range(10))
    assert bytes(scene.his.data[:50_000]) == painted(scene.mine, 50_000)
    assert bytes(scene.mine.data[50_000:]) == b"b" * 50_000


def test_a_queue_pair_may_talk_to_itself(stage: Stage) -> None:
    queue = stage.a.queue()
    bring_up(queue, queue)
    memory = stage.a.memory(200)
    memory.data[:100] = b"s" * 100
    queue.post_send(SendWR(1, IBV_WR_RDMA_WRITE, [memory.sge(100)], 0, SIGNALED, memory.addr + 100, memory.rkey))
    assert queue.wait()[0].status == IBV_WC_SUCCESS
    assert bytes(memory.data) == b"s" * 200
