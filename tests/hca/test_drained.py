"""SQD tells when what was begun is done, and not before (A1)."""

from __future__ import annotations

import pytest

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_EVENT_SQ_DRAINED,
    IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_STATE,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from fauxrdma.sim.world import World


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
@pytest.mark.parametrize("notify", [0, 1])
@pytest.mark.parametrize("begun", [True, False])
def test_the_event_comes_when_the_last_acknowledgement_has(opcode: int, notify: int, begun: bool) -> None:
    world = World(2)
    a, _ = world.pair()
    mine, _ = world.hcas[0].alloc(20_000)
    his, _ = world.hcas[1].alloc(20_000)
    hca = world.hcas[0]
    if begun:
        a.post_send(SendWqe(0, 1, opcode, 2, ((mine.base, 20_000, mine.lkey),), his.base, his.rkey))
        world.run(lambda: len(world.trace) > 0)  # its first frame has left
    attr = QPAttr(qp_state=IBV_QPS_SQD, en_sqd_async_notify=notify)
    mask = IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY
    world.perform(hca, hca.engine.modify_qp(a.qp.qpn, attr, mask, world.now))
    a.post_send(SendWqe(0, 2, opcode, 2, ((mine.base, 64, mine.lkey),), his.base, his.rkey))
    if begun:
        assert hca.async_events == []  # not yet
    world.run()
    assert [event.kind for event in hca.async_events] == [IBV_EVENT_SQ_DRAINED] * notify
    assert [(wc.wr_id, wc.status) for wc in a.completions] == [(1, IBV_WC_SUCCESS)] * begun
    world.perform(hca, hca.engine.modify_qp(a.qp.qpn, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE, world.now))
    world.run()
    assert [wc.wr_id for wc in a.completions][-1] == 2
    assert len(hca.async_events) == notify
