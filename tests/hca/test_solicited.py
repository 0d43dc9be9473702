"""Which completions are solicited: receives of messages sent with IBV_SEND_SOLICITED, and no others (A2)."""

from __future__ import annotations

import pytest

from fauxrdma.hca.events import Action, Complete, Event
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    QpType,
)
from fauxrdma.sim.world import SimHca, World


def completions_of(hca: SimHca) -> list[Complete]:
    """Every completion the engine of this HCA orders from now on."""
    seen: list[Complete] = []
    handle = hca.engine.handle

    def spy(event: Event, now: int) -> list[Action]:
        actions = handle(event, now)
        seen.extend(action for action in actions if isinstance(action, Complete))
        return actions

    hca.engine.handle = spy  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM])
@pytest.mark.parametrize("qp_type", [QpType.IBV_QPT_RC, QpType.IBV_QPT_UC])
@pytest.mark.parametrize("length", [0, 64, 20_000])
def test_the_receiver_s_completion_is_solicited_when_asked(qp_type: QpType, opcode: int, length: int) -> None:
    world = World(2, burst=8192)
    a, b = (hca.create_qp(sq_sig_all=False, qp_type=qp_type) for hca in world.hcas)
    world.connect(a, b)
    mine, _ = world.hcas[0].alloc(20_000)
    his, _ = world.hcas[1].alloc(20_000)
    sender, receiver = completions_of(world.hcas[0]), completions_of(world.hcas[1])
    for i, solicited in enumerate((True, False, True)):
        b.post_recv(i, ((his.base, 20_000, his.lkey),))
        flags = int(IBV_SEND_SIGNALED) | (int(IBV_SEND_SOLICITED) if solicited else 0)
        sges = ((mine.base, length, mine.lkey),) if length else ()
        a.post_send(SendWqe(0, i, opcode, flags, sges, his.base, his.rkey))
    world.run()
    assert [(action.wc.wr_id, action.solicited) for action in receiver] == [(0, True), (1, False), (2, True)]
    assert [action.solicited for action in sender] == [False] * 3
