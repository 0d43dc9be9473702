"""Each completion status this transport can produce: who sees it, what the other side sees, and that no byte moved."""

from __future__ import annotations

from typing import Any

import pytest

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_REQ_ERR,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    QpAttrMask,
)
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.sim.world import World
from fauxrdma.wire.headers import Frame

SIZE = 20_000
WRITE, READ, SEND = int(IBV_WR_RDMA_WRITE), int(IBV_WR_RDMA_READ), int(IBV_WR_SEND)


class Rig:
    """Two connected queue pairs with a region each; `his` may be given other rights."""

    def __init__(self, his_access: int = 7, his_pd: bool = True, **attributes: Any) -> None:
        self.world = World(2, seed=5)
        self.a, self.b = self.world.pair(**attributes)
        self.mine, self.my_bytes = self.world.hcas[0].alloc(SIZE)
        pd = None if his_pd else ProtectionDomain(99)
        self.his, self.his_bytes = self.world.hcas[1].alloc(SIZE, his_access, pd)
        self.my_bytes[:] = b"m" * SIZE
        self.his_bytes[:] = b"h" * SIZE

    def send(self, opcode: int = WRITE, length: int = 64, wr_id: int = 1, **fields: Any) -> None:
        sges = fields.pop("sges", ((self.mine.base, length, self.mine.lkey),))
        values = {"remote_addr": self.his.base, "rkey": self.his.rkey, **fields}
        self.a.post_send(SendWqe(0, wr_id, opcode, 2, sges, **values))

    def run(self) -> None:
        self.world.run()

    def statuses(self) -> list[int]:
        return [int(wc.status) for wc in self.a.completions]


def untouched(rig: Rig) -> bool:
    return rig.his_bytes == b"h" * SIZE and rig.my_bytes == b"m" * SIZE


@pytest.mark.parametrize("opcode", [WRITE, READ])
@pytest.mark.parametrize(
    ("case", "fields", "access", "pd", "words"),
    [
        ("wrong key", {"rkey": 0x1234567}, 7, True, "rkey 0x1234567 is not registered"),
        ("past the end", {"remote_addr": 0x10000 + SIZE - 63}, 7, True, "leaves region [0x10000, 0x14e20)"),
        ("before the start", {"remote_addr": 0xFFFF}, 7, True, "leaves region"),
        ("no remote access", {}, 1, True, "does not grant IBV_ACCESS_REMOTE_"),
        ("another domain", {}, 7, False, "another protection domain"),
    ],
)
def test_remote_access_errors(
    opcode: int, case: str, fields: dict[str, int], access: int, pd: bool, words: str
) -> None:
    rig = Rig(access, pd)
    rig.send(opcode, **fields)
    rig.send(SEND, wr_id=2)
    rig.b.post_recv(7)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR]
    assert rig.a.qp.state is IBV_QPS_ERR
    assert rig.b.qp.state is IBV_QPS_ERR
    assert [wc.status for wc in rig.b.completions] == [IBV_WC_WR_FLUSH_ERR]
    assert [event.kind for event in rig.world.hcas[1].async_events] == [IBV_EVENT_QP_ACCESS_ERR]
    assert untouched(rig)
    # The same words on both sides: the requester's user need not look into the other machine.
    assert words in rig.b.qp.last_error
    assert rig.a.qp.last_error == rig.b.qp.last_error


def test_an_operation_missing_in_the_qps_access_flags() -> None:
    rig = Rig(qp_access_flags=1)
    rig.send()
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert "was not given IBV_ACCESS_REMOTE_WRITE" in rig.a.qp.last_error


def test_a_long_message_is_refused_at_its_first_packet() -> None:
    rig = Rig()
    rig.send(length=SIZE, remote_addr=rig.his.base + 1)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_ACCESS_ERR]
    assert untouched(rig)


def test_zero_length_needs_no_key() -> None:
    rig = Rig()
    rig.send(WRITE, 0, rkey=0, remote_addr=0)
    rig.send(READ, 0, rkey=0, remote_addr=0)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS] * 2


@pytest.mark.parametrize("opcode", [WRITE, READ, SEND])
def test_a_bad_local_key_stops_after_what_came_before(opcode: int) -> None:
    rig = Rig()
    rig.send(WRITE, SIZE)
    rig.send(opcode, wr_id=2, sges=((rig.mine.base, 8, 0x77),))
    rig.send(WRITE, wr_id=3)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR]
    assert "lkey 0x77" in rig.a.qp.last_error
    assert rig.his_bytes == b"m" * SIZE


def test_read_into_memory_without_local_write() -> None:
    rig = Rig()
    region, data = rig.world.hcas[0].alloc(100, access=0)
    rig.send(READ, sges=((region.base, 64, region.lkey),))
    rig.run()
    assert rig.statuses() == [IBV_WC_LOC_PROT_ERR]
    assert data == bytes(100)


def test_an_unknown_opcode_and_reads_without_credit() -> None:
    rig = Rig()
    rig.send(opcode=77)
    rig.run()
    assert rig.statuses() == [IBV_WC_LOC_QP_OP_ERR]
    rig = Rig(max_rd_atomic=0)
    rig.send(READ)
    rig.run()
    assert rig.statuses() == [IBV_WC_LOC_QP_OP_ERR]


@pytest.mark.parametrize("length", [65, 4096, SIZE])
def test_a_receive_too_small(length: int) -> None:
    rig = Rig()
    rig.b.post_recv(7, ((rig.his.base, 64, rig.his.lkey),))
    rig.b.post_recv(8)
    rig.send(SEND, length)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_INV_REQ_ERR]
    assert [int(wc.status) for wc in rig.b.completions] == [IBV_WC_LOC_LEN_ERR, IBV_WC_WR_FLUSH_ERR]
    assert f"{min(length, 16384)} B or more, the posted receive has 64 B" in rig.a.qp.last_error
    assert rig.world.hcas[1].async_events == []


def test_a_bad_key_in_the_posted_receive() -> None:
    rig = Rig()
    rig.b.post_recv(7, ((rig.his.base, 64, 0x99),))
    rig.send(SEND)
    rig.run()
    assert rig.statuses() == [IBV_WC_REM_OP_ERR]
    assert [int(wc.status) for wc in rig.b.completions] == [IBV_WC_LOC_PROT_ERR]


@pytest.mark.parametrize("opcode", [SEND, int(IBV_WR_RDMA_WRITE_WITH_IMM)])
@pytest.mark.parametrize("rnr_retry", [0, 1, 6])
def test_receiver_not_ready_gives_up_after_its_retries(opcode: int, rnr_retry: int) -> None:
    rig = Rig(rnr_retry=rnr_retry, min_rnr_timer=10)
    rig.send(opcode)
    rig.run()
    assert rig.statuses() == [IBV_WC_RNR_RETRY_EXC_ERR]
    naks = [line for line in rig.world.trace if "RC_ACKNOWLEDGE" in line]
    assert len(naks) == rnr_retry + 1
    assert rig.world.now >= rnr_retry * 320_000  # timer code 10 is 0.32 ms
    assert rig.b.qp.state is IBV_QPS_RTS


def test_receiver_not_ready_recovers_when_a_receive_is_posted() -> None:
    rig = Rig(rnr_retry=7, min_rnr_timer=10)
    rig.send(SEND)
    rig.world.at(1_500_000, lambda: rig.b.post_recv(7, ((rig.his.base, 64, rig.his.lkey),)))
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS]
    assert rig.his_bytes[:64] == b"m" * 64


def test_write_and_read_never_see_rnr() -> None:
    rig = Rig(rnr_retry=0)
    rig.send(WRITE)
    rig.send(READ)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS] * 2


def test_a_peer_in_reset_is_silence() -> None:
    rig = Rig(timeout=5, retry_cnt=2)
    engine = rig.world.hcas[1].engine
    engine.modify_qp(rig.b.qp.qpn, QPAttr(qp_state=IBV_QPS_RESET), QpAttrMask(IBV_QP_STATE), 0)
    rig.send()
    rig.run()
    assert rig.statuses() == [12]
    # (retry_cnt + 1) timeouts of 4.096 us x 2^5
    assert rig.world.now == pytest.approx(3 * 4096 * 32, abs=2_000)
    assert [line for line in rig.world.trace if "lid2->" in line] == []


def test_more_reads_than_the_responder_allows() -> None:
    rig = Rig(max_rd_atomic=8, max_dest_rd_atomic=2)
    for i in range(6):
        rig.send(READ, SIZE, wr_id=i)
    rig.run()
    statuses = rig.statuses()
    assert IBV_WC_REM_INV_REQ_ERR in statuses
    assert [event.kind for event in rig.world.hcas[1].async_events] == [IBV_EVENT_QP_REQ_ERR]
    assert "max_dest_rd_atomic 2" in rig.a.qp.last_error


def test_reads_wait_for_their_turn_at_max_rd_atomic() -> None:
    rig = Rig(max_rd_atomic=2, max_dest_rd_atomic=2)
    for i in range(6):
        rig.send(READ, SIZE, wr_id=i)
    rig.run()
    assert rig.statuses() == [IBV_WC_SUCCESS] * 6


def test_posts_in_err_are_flushed_and_modify_to_err_flushes() -> None:
    rig = Rig()
    rig.a.post_recv(1)
    engine = rig.world.hcas[0].engine
    rig.world.perform(
        rig.world.hcas[0], engine.modify_qp(rig.a.qp.qpn, QPAttr(qp_state=IBV_QPS_ERR), QpAttrMask(IBV_QP_STATE), 0)
    )
    rig.send(wr_id=2)
    rig.a.post_recv(3)
    rig.run()
    assert [(wc.wr_id, int(wc.status)) for wc in rig.a.completions] == [(1, 5), (2, 5), (3, 5)]


def test_cq_overflow_stops_the_attached_queue_pairs() -> None:
    rig = Rig()
    actions = rig.world.hcas[0].engine.cq_overflowed(1, 0)
    rig.world.perform(rig.world.hcas[0], actions)
    assert [event.kind for event in rig.world.hcas[0].async_events] == [IBV_EVENT_CQ_ERR]
    assert rig.a.qp.state is IBV_QPS_ERR


def test_frames_from_a_stranger_are_dropped() -> None:
    rig = Rig()
    engine = rig.world.hcas[1].engine
    forged = Frame(0x0A, 77, 2, rig.b.qp.qpn, 0, va=rig.his.base, rkey=rig.his.rkey, dma_len=4, nbytes=4)
    assert engine.place(forged) is None
    assert engine.place(Frame(0x0A, 1, 2, 0x999999, 0)) is None
