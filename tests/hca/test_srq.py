"""Shared receive queues in the engine: order over queue pairs, limit events, LAST_WQE_REACHED, accounting."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.hca.srq import SharedReceives
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import AsyncEventType, QpAttrMask, QpState, WcOpcode, WcStatus, WrOpcode
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.sim.world import LinkFaults, SimQp, SimSrq, World

SEND = int(WrOpcode.IBV_WR_SEND)
LIMIT = AsyncEventType.IBV_EVENT_SRQ_LIMIT_REACHED
LAST = AsyncEventType.IBV_EVENT_QP_LAST_WQE_REACHED


class Shared:
    """`pairs` queue pairs of HCA 2 that share one receive queue, each with its peer on HCA 1."""

    def __init__(self, pairs: int = 2, world: World | None = None, **attributes: int) -> None:
        self.world = world or World()
        self.a, self.b = self.world.hcas[:2]
        self.srq: SimSrq = self.b.create_srq()
        self.source, self.data = self.a.alloc(4096)
        self.target, self.memory = self.b.alloc(65536)
        self.senders: list[SimQp] = []
        self.receivers: list[SimQp] = []
        for _ in range(pairs):
            sender, receiver = self.a.create_qp(), self.b.create_qp(srq=self.srq.srq)
            self.world.connect(sender, receiver, **attributes)
            self.senders.append(sender)
            self.receivers.append(receiver)

    def post(self, count: int, length: int = 64) -> None:
        for _ in range(count):
            i = self.srq.posted
            self.srq.post_recv(i, ((self.target.base + i * 64 % 65536, length, self.target.lkey),))

    def send(self, which: int, wr_id: int, length: int = 8) -> None:
        self.senders[which].post_send(SendWqe(0, wr_id, SEND, 2, ((self.source.base, length, self.source.lkey),)))

    def events(self, kind: AsyncEventType) -> list[int]:
        return [event.element for event in self.b.async_events if event.kind == kind]

    def modify(self, qp: SimQp, state: QpState) -> None:
        self.world.perform(
            qp.hca,
            qp.hca.engine.modify_qp(qp.qp.qpn, QPAttr(qp_state=state), QpAttrMask.IBV_QP_STATE, self.world.now),
        )


def test_receives_go_to_whoever_needs_one_in_the_order_of_posting() -> None:
    s = Shared(3)
    s.post(6)
    for i, which in enumerate((2, 0, 1, 1, 2, 0)):
        s.send(which, i)
        s.world.run()
    assert [(wc.wr_id, wc.status) for wc in s.b.completions] == [(i, WcStatus.IBV_WC_SUCCESS) for i in range(6)]
    assert [wc.qp_num for wc in s.b.completions] == [s.receivers[w].qp.qpn for w in (2, 0, 1, 1, 2, 0)]


def test_an_empty_shared_queue_is_receiver_not_ready_until_something_is_posted() -> None:
    s = Shared(2)
    s.send(0, 1)
    s.send(1, 2)
    assert s.world.run(until=lambda: s.world.now > 3_000_000) is True
    assert s.b.completions == []
    s.post(2)
    s.world.run()
    assert sorted(wc.wr_id for wc in s.b.completions) == [0, 1]
    assert sorted(wc.wr_id for wc in s.a.completions) == [1, 2]


def test_the_limit_event_comes_once_and_has_to_be_armed_again() -> None:
    s = Shared(2)
    s.post(6)
    s.srq.arm(4)
    for i in range(2):
        s.send(i, i)
        s.world.run()
    assert s.events(LIMIT) == []  # four left is not fewer than four
    s.send(0, 2)
    s.world.run()
    assert s.events(LIMIT) == [s.srq.srq.srqn]
    assert s.srq.srq.limit == 0
    s.send(1, 3)
    s.world.run()
    assert len(s.events(LIMIT)) == 1
    s.post(4)
    s.srq.arm(6)
    assert len(s.events(LIMIT)) == 1
    s.send(1, 4)
    s.world.run()
    assert len(s.events(LIMIT)) == 2


def test_arming_a_limit_that_is_undercut_already_fires_at_once() -> None:
    s = Shared(1)
    s.post(3)
    s.srq.arm(4)
    assert s.events(LIMIT) == [s.srq.srq.srqn]


def test_a_queue_pair_in_error_takes_none_of_the_shared_receives_with_it() -> None:
    s = Shared(2)
    s.post(4)
    s.modify(s.receivers[0], QpState.IBV_QPS_ERR)
    assert s.b.completions == []
    assert s.events(LAST) == [s.receivers[0].qp.qpn]
    s.modify(s.receivers[0], QpState.IBV_QPS_ERR)
    assert len(s.events(LAST)) == 1
    s.send(1, 7)
    s.world.run()
    assert [wc.wr_id for wc in s.b.completions] == [0]
    s.modify(s.receivers[0], QpState.IBV_QPS_RESET)
    assert len(s.srq.rq) == 3
    # Brought up again, its next end is told again.
    s.modify(s.senders[0], QpState.IBV_QPS_RESET)
    s.world.connect(s.senders[0], s.receivers[0])
    s.modify(s.receivers[0], QpState.IBV_QPS_ERR)
    assert s.events(LAST) == [s.receivers[0].qp.qpn] * 2


def test_an_error_on_the_wire_raises_last_wqe_after_the_failed_receive() -> None:
    s = Shared(1)
    s.post(2, length=4)
    s.send(0, 1, length=8)  # longer than the receive
    s.world.run()
    assert [wc.status for wc in s.b.completions] == [WcStatus.IBV_WC_LOC_LEN_ERR]
    assert [wc.status for wc in s.a.completions] == [WcStatus.IBV_WC_REM_INV_REQ_ERR]
    assert s.events(LAST) == [s.receivers[0].qp.qpn]
    assert len(s.srq.rq) == 1


def test_the_memory_of_a_receive_belongs_to_the_domain_of_the_shared_queue() -> None:
    world = World()
    other = ProtectionDomain(99)
    b = world.hcas[1]
    srq = b.create_srq(pd=other)
    region, memory = b.alloc(64, pd=other)
    sender, receiver = world.hcas[0].create_qp(), b.create_qp(srq=srq.srq)
    world.connect(sender, receiver)
    srq.post_recv(5, ((region.base, 64, region.lkey),))
    sender.post_send(SendWqe(0, 1, SEND, 2 | 8, inline=b"into the other"))
    world.run()
    assert [wc.status for wc in b.completions] == [WcStatus.IBV_WC_SUCCESS]
    assert bytes(memory[:14]) == b"into the other"


def test_a_receive_held_by_a_queue_pair_that_is_reset_or_destroyed_is_counted_as_dropped() -> None:
    for end in ("reset", "destroy"):
        world = World(burst=4096, fault_rule=lambda frame: "ok")
        s = Shared(2, world)
        s.post(3, length=64 * 1024)
        s.world.fault_rule = lambda frame: "lost" if frame.opcode == 0x02 else "ok"  # the last burst of the SEND
        big, _ = s.a.alloc(8192)
        s.senders[0].post_send(SendWqe(0, 1, SEND, 2, ((big.base, 8192, big.lkey),)))
        assert s.world.run(until=lambda rq=s.srq.rq: len(rq) == 2) is True  # type: ignore[misc]
        receives = s.receivers[0].qp.rq
        assert isinstance(receives, SharedReceives)
        assert receives.in_hand == 1
        if end == "reset":
            s.modify(s.receivers[0], QpState.IBV_QPS_RESET)
        else:
            s.b.engine.destroy_qp(s.receivers[0].qp.qpn)
        assert s.srq.srq.dropped == 1
        assert len(s.srq.rq) == 2


def test_a_shared_queue_in_use_cannot_be_destroyed() -> None:
    s = Shared(1)
    with pytest.raises(VerbsError, match="1 queue pairs still use it") as caught:
        s.b.engine.srqs.destroy(s.srq.srq.srqn)
    assert caught.value.errno == 16
    s.b.engine.destroy_qp(s.receivers[0].qp.qpn)
    children = s.srq.srq.pd.children
    s.b.engine.srqs.destroy(s.srq.srq.srqn)
    assert s.srq.srq.pd.children == children - 1


def test_the_first_packet_in_rtr_establishes_the_communication_once() -> None:
    world = World()
    a, b = world.hcas[0].create_qp(), world.hcas[1].create_qp()
    world.connect(a, b)
    region, _ = b.hca.alloc(64)
    # Back to RTR, as a server that has not seen its client's message yet.
    b.qp.state = QpState.IBV_QPS_RTR
    for wr_id in range(3):
        a.post_send(SendWqe(0, wr_id, int(WrOpcode.IBV_WR_RDMA_WRITE), 2 | 8, (), region.base, region.rkey, 0, b"x"))
        world.run()
    assert [(e.kind, e.element) for e in b.hca.async_events] == [(AsyncEventType.IBV_EVENT_COMM_EST, b.qp.qpn)]
    assert [wc.status for wc in a.completions] == [WcStatus.IBV_WC_SUCCESS] * 3


@given(
    st.integers(0, 1 << 32),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=30),
    st.floats(0, 0.2),
)
def test_any_traffic_completes_each_shared_receive_once_and_in_order(
    seed: int, plan: list[tuple[int, int]], loss: float
) -> None:
    s = Shared(3, World(seed=seed, faults=LinkFaults(loss=loss)), timeout=8, rnr_retry=7, retry_cnt=7)
    sent = 0
    for which, posts in plan:
        s.post(posts)
        s.send(which, sent)
        sent += 1
    s.world.run()
    receives = [wc for wc in s.b.completions if wc.opcode & WcOpcode.IBV_WC_RECV]
    ok = [wc for wc in receives if wc.status == WcStatus.IBV_WC_SUCCESS]
    assert len({wc.wr_id for wc in receives}) == len(receives)
    for receiver in s.receivers:
        mine = [wc.wr_id for wc in ok if wc.qp_num == receiver.qp.qpn]
        assert all(x < y for x, y in pairwise(mine))
    taken = s.srq.posted - len(s.srq.rq)
    held = sum(r.qp.rq.in_hand for r in s.receivers if isinstance(r.qp.rq, SharedReceives))
    assert taken == len(receives) + held + s.srq.srq.dropped
    if all(r.qp.state == QpState.IBV_QPS_RTS for r in s.receivers):
        assert len(ok) == sent
