"""Nothing waits for ever, nobody starves, and a slow link alone does not break a queue pair."""

from __future__ import annotations

import pytest

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    QpAttrMask,
)
from fauxrdma.sim.world import SimQp, World

SIZE = 300_000
WRITE, READ, SEND = int(IBV_WR_RDMA_WRITE), int(IBV_WR_RDMA_READ), int(IBV_WR_SEND)


def memory(world: World) -> tuple[tuple[int, int, int], int, int]:
    """An SGE of SIZE bytes on the first HCA; address and rkey of as many on the second."""
    mine, _ = world.hcas[0].alloc(SIZE)
    his, _ = world.hcas[1].alloc(SIZE)
    return (mine.base, SIZE, mine.lkey), his.base, his.rkey


def statuses(qp: SimQp) -> list[int]:
    return [int(wc.status) for wc in qp.completions]


@pytest.mark.parametrize("timeout", [0, 14])
@pytest.mark.parametrize("good", [1, 5])
def test_a_request_that_fails_locally_lets_those_before_it_complete_at_once(timeout: int, good: int) -> None:
    world = World(2)
    a, b = world.pair(timeout=timeout)
    (addr, _, lkey), remote, rkey = memory(world)
    inbox, _ = world.hcas[1].alloc(100)
    for i in range(good):
        b.post_recv(i, ((inbox.base, 100, inbox.lkey),))
    # In the queue together, as a chain is: the good ones are sent while the bad one is not looked at yet.
    for i in range(good):
        a.sq.append(SendWqe(i, i, SEND, 2, ((addr, 100, lkey),)))
    a.posted_sends = good
    a.post_send(SendWqe(0, 99, WRITE, 2, ((addr, 10, 0x77),), remote, rkey))
    world.run()
    assert statuses(a) == [IBV_WC_SUCCESS] * good + [IBV_WC_LOC_PROT_ERR]
    assert a.completions[-1].timestamp_ns < 10_000
    assert len(b.completions) == good


def test_a_read_cannot_be_inline() -> None:
    world = World(2)
    a, _ = world.pair()
    _, remote, rkey = memory(world)
    a.post_send(SendWqe(0, 1, READ, 2, (), remote, rkey, inline=b"12345678"))
    world.run()
    assert statuses(a) == [IBV_WC_LOC_QP_OP_ERR]


def test_send_queue_drained_finishes_what_was_begun_and_holds_the_rest() -> None:
    world = World(2)
    a, _ = world.pair(timeout=8)
    sge, remote, rkey = memory(world)
    engine = world.hcas[0].engine

    def modify(state: int) -> None:
        attr = QPAttr(qp_state=state)
        world.perform(world.hcas[0], engine.modify_qp(a.qp.qpn, attr, QpAttrMask(IBV_QP_STATE), world.now))

    for i in range(3):
        a.post_send(SendWqe(0, i, WRITE, 2, (sge,), remote, rkey))
    world.at(14_000, lambda: modify(IBV_QPS_SQD))  # in the middle of the second message
    world.run()
    assert statuses(a) == [IBV_WC_SUCCESS] * 2
    assert a.qp.state is IBV_QPS_SQD
    modify(IBV_QPS_RTS)
    world.run()
    assert statuses(a) == [IBV_WC_SUCCESS] * 3


def test_reads_on_a_link_slower_than_the_timeout_are_not_refused() -> None:
    world = World(2, latency_ns=40_000)
    a, _ = world.pair(timeout=4, retry_cnt=7, max_rd_atomic=4, max_dest_rd_atomic=4)
    sge, remote, rkey = memory(world)
    for i in range(12):
        a.post_send(SendWqe(0, i, READ, 2, (sge,), remote, rkey))
    world.run()
    assert statuses(a) == [IBV_WC_SUCCESS] * 12
    repeated = world.hcas[0].engine.retransmits
    assert repeated > 0
    world.hcas[0].engine.destroy_qp(a.qp.qpn)
    assert world.hcas[0].engine.retransmits == repeated  # a count since the start, whoever is gone


def test_timers_do_not_pile_up() -> None:
    world = World(2)
    a, b = world.pair(rnr_retry=7, min_rnr_timer=1)
    inbox, _ = world.hcas[1].alloc(100)
    (addr, _, lkey), _, _ = memory(world)
    a.post_send(SendWqe(0, 1, SEND, 2, ((addr, 10, lkey),)))
    world.at(20_000_000, lambda: b.post_recv(1, ((inbox.base, 100, inbox.lkey),)))
    deepest = 0

    def look() -> bool:
        nonlocal deepest
        deepest = max(deepest, len(world.hcas[0].engine.timers))
        return False

    world.run(look)
    assert statuses(a) == [IBV_WC_SUCCESS]
    assert sum("syndrome=33" in line for line in world.trace) > 1000  # RNR NAKs
    assert deepest <= 3


def test_answering_reads_leaves_room_for_own_requests() -> None:
    world = World(2)
    a, b = world.pair(max_rd_atomic=16, max_dest_rd_atomic=16)
    sge, remote, rkey = memory(world)
    out, _ = world.hcas[1].alloc(64)
    for i in range(40):
        a.post_send(SendWqe(0, i, READ, 2, (sge,), remote, rkey))
    world.at(20_000, lambda: b.post_send(SendWqe(0, 77, WRITE, 2, ((out.base, 64, out.lkey),), sge[0], a_key)))
    a_key = next(r.rkey for r in world.hcas[0].engine.keys._by_lkey.values() if r.base == sge[0])
    world.run()
    (write,) = b.completions
    assert write.status == IBV_WC_SUCCESS
    assert write.timestamp_ns < 30_000
    assert world.now > 400_000  # the READs went on long after
