"""Shared receive queues over two daemons."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SRQ_LIMIT_REACHED,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_SRQ_LIMIT,
    IBV_SRQ_MAX_WR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import (
    CQ,
    PD,
    QP,
    SGE,
    SRQ,
    WC,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)


class Shared:
    """`pairs` queue pairs of node 1 with one shared receive queue; queue pair i completes into completion queue i."""

    def __init__(self, lab: LocalLab, max_wr: int = 8, pairs: int = 2) -> None:
        self.a, self.b = End(lab, 0), End(lab, 1)
        self.srq = SRQ(self.b.pd, SrqInitAttr(SrqAttr(max_wr=max_wr, max_sge=2)))
        self.cqs = [CQ(self.b.ctx, 64, None, self.b.channel) for _ in range(pairs)]
        cap = QPCap(max_send_wr=64, max_recv_wr=1 << 20)  # more than any device has: ignored with an SRQ
        self.receivers = [QP(self.b.pd, QPInitAttr(scq=self.b.cq, rcq=cq, cap=cap, srq=self.srq)) for cq in self.cqs]
        self.senders = [QP(self.a.pd, QPInitAttr(scq=self.a.cq, rcq=self.a.cq, cap=QPCap(64, 1))) for _ in range(pairs)]
        for sender, receiver in zip(self.senders, self.receivers, strict=True):
            sender.connect(receiver.endpoint())
            receiver.connect(sender.endpoint())

    def recv(self, wr_id: int, length: int = 64) -> RecvWR:
        return RecvWR(wr_id, [SGE(self.b.mr.buf + wr_id % 100 * 64, length, self.b.mr.lkey)])

    def post(self, *wr_ids: int) -> None:
        self.srq.post_recv(*(self.recv(i) for i in wr_ids))

    def send(self, which: int) -> None:
        self.senders[which].post_send(SendWR(1, IBV_WR_SEND, [self.a.sge(0, 8)]))
        (wc,) = self.a.wait()
        assert wc.status == IBV_WC_SUCCESS

    def poll(self, which: int) -> list[WC]:
        return self.cqs[which].wait(64, 20.0)

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture
def shared(unshaped: LocalLab) -> Iterator[Shared]:
    shared = Shared(unshaped)
    yield shared
    shared.close()


def test_receives_are_taken_in_order_whichever_queue_pair_needs_them(shared: Shared) -> None:
    shared.post(1, 2, 3, 4)
    for which in (1, 0, 0, 1):
        shared.send(which)
    assert [wc.wr_id for wc in shared.poll(0)] == [2, 3]
    assert [wc.wr_id for wc in shared.poll(1)] == [1, 4]


def test_slots_are_free_when_their_completion_was_polled_from_whichever_queue(shared: Shared) -> None:
    shared.post(*range(8))
    with pytest.raises(VerbsError, match="all 8 receives are outstanding") as caught:
        shared.post(8)
    assert caught.value.errno == errno.ENOMEM
    for which in (0, 1, 1):
        shared.send(which)
    with pytest.raises(VerbsError):
        shared.post(8)  # taken, completed, and not polled
    assert len(shared.poll(1)) == 2
    shared.post(8, 9)
    with pytest.raises(VerbsError):
        shared.post(10)
    assert [wc.wr_id for wc in shared.poll(0)] == [0]
    shared.post(10)
    got = []
    for i in range(8):
        shared.send(i % 2)
        got += [wc.wr_id for wc in shared.poll(i % 2)]
    assert got == [3, 4, 5, 6, 7, 8, 9, 10]


def test_a_post_of_several_posts_those_before_the_bad_one(shared: Shared) -> None:
    too_many = RecvWR(2, [SGE(shared.b.mr.buf, 8, shared.b.mr.lkey)] * 3)
    with pytest.raises(VerbsError, match="3 SGEs, it has max_sge 2") as caught:
        shared.srq.post_recv(shared.recv(1), too_many, shared.recv(3))
    assert caught.value.errno == errno.EINVAL
    shared.send(0)
    assert [wc.wr_id for wc in shared.poll(0)] == [1]


def test_receives_cannot_be_posted_to_a_queue_pair_that_shares(shared: Shared) -> None:
    with pytest.raises(VerbsError, match="post to the SRQ") as caught:
        shared.receivers[0].post_recv(shared.recv(1))
    assert caught.value.errno == errno.EINVAL
    assert shared.receivers[0].query()[1].cap.max_recv_wr == 0
    assert shared.receivers[0].query()[1].srq is shared.srq


def test_the_limit_event_comes_once_and_disarms(shared: Shared) -> None:
    shared.post(1, 2, 3, 4)
    shared.srq.modify(SrqAttr(srq_limit=3), IBV_SRQ_LIMIT)
    assert shared.srq.query() == SrqAttr(max_wr=8, max_sge=2, srq_limit=3)
    shared.send(0)
    assert shared.b.ctx.get_async_event(0) is None
    shared.send(1)
    event = shared.b.ctx.get_async_event(20)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_SRQ_LIMIT_REACHED, shared.srq.handle)
    assert shared.srq.query().srq_limit == 0
    shared.send(1)
    assert shared.b.ctx.get_async_event(0) is None


@pytest.mark.parametrize("new_size", [2, 3, 8, 100])
def test_resizing_keeps_what_is_posted(shared: Shared, new_size: int) -> None:
    # Laps before the resize, so that the slots of old and new ring do not agree by chance.
    for lap in range(7):
        shared.post(lap)
        shared.send(0)
        assert [wc.wr_id for wc in shared.poll(0)] == [lap]
    shared.post(50, 51)
    shared.srq.modify(SrqAttr(max_wr=new_size), IBV_SRQ_MAX_WR)
    assert shared.srq.query().max_wr == new_size
    shared.post(*range(52, 50 + new_size))
    with pytest.raises(VerbsError, match=f"all {new_size} receives"):
        shared.post(99)
    for i in range(new_size):
        shared.send(i % 2)
    got = [wc.wr_id for which in (0, 1) for wc in shared.poll(which)]
    assert sorted(got) == list(range(50, 50 + new_size))


def test_a_resize_that_cannot_be_changes_nothing(shared: Shared) -> None:
    shared.post(1, 2, 3)
    shared.send(0)  # taken, not polled: still outstanding
    for attr, mask, words in (
        (SrqAttr(max_wr=2), IBV_SRQ_MAX_WR, "3 are outstanding"),
        (SrqAttr(max_wr=1 << 30), IBV_SRQ_MAX_WR, "this device takes 1 to"),
        (SrqAttr(srq_limit=9), IBV_SRQ_LIMIT, "srq_limit 9 is not 0 to the queue's max_wr 8"),
        (SrqAttr(max_wr=4, srq_limit=5), IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT, "srq_limit 5"),
        (SrqAttr(), 64, "unknown bits"),
    ):
        with pytest.raises(VerbsError, match=words) as caught:
            shared.srq.modify(attr, mask)
        assert caught.value.errno == errno.EINVAL
    assert shared.srq.query() == SrqAttr(8, 2, 0)
    shared.send(1)
    assert [wc.wr_id for wc in shared.poll(1)] == [2]


def test_a_queue_pair_in_error_leaves_the_shared_receives_alone_and_says_so_once(shared: Shared) -> None:
    shared.post(1, 2)
    shared.receivers[0].post_send(SendWR(7, IBV_WR_SEND, [shared.b.sge(0, 8)]))  # no receive there: RNR until the end
    shared.receivers[0].modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    event = shared.b.ctx.get_async_event(20)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_QP_LAST_WQE_REACHED, shared.receivers[0].qp_num)
    assert [(wc.wr_id, wc.status) for wc in shared.b.wait()] == [(7, IBV_WC_WR_FLUSH_ERR)]
    shared.receivers[0].modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    assert shared.b.ctx.get_async_event(0) is None
    assert shared.cqs[0].poll(8)[0] == 0
    shared.send(1)
    assert [wc.wr_id for wc in shared.poll(1)] == [1]


def test_reset_gives_the_slots_of_purged_completions_back(shared: Shared) -> None:
    shared.post(*range(8))
    for _ in range(3):
        shared.send(0)
    shared.receivers[0].modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    assert shared.cqs[0].poll(8)[0] == 0
    shared.post(8, 9, 10)
    with pytest.raises(VerbsError):
        shared.post(11)


def test_a_shared_queue_in_use_is_busy(shared: Shared) -> None:
    with pytest.raises(VerbsError, match="2 queue pairs still use it") as caught:
        shared.srq.close()
    assert caught.value.errno == errno.EBUSY
    for qp in shared.receivers:
        qp.close()
    shared.srq.close()
    shared.srq.close()
    with pytest.raises(VerbsError, match="no shared receive queue"):
        QP(shared.b.pd, QPInitAttr(scq=shared.b.cq, rcq=shared.b.cq, srq=shared.srq))


def test_a_domain_with_a_shared_queue_is_busy(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    pd = PD(end.ctx)
    srq = SRQ(pd, SrqInitAttr())
    assert (srq.query(), srq.get_srq_num()) == (SrqAttr(100, 1, 0), srq.handle)
    with pytest.raises(VerbsError) as caught:
        pd.close()
    assert caught.value.errno == errno.EBUSY
    srq.close()
    pd.close()
    for attr in (SrqAttr(0), SrqAttr(1 << 30), SrqAttr(1, 1000)):
        with pytest.raises(VerbsError, match="Failed to create SRQ") as caught:
            SRQ(end.pd, SrqInitAttr(attr))
        assert caught.value.errno == errno.EINVAL
    end.close()


def test_reset_purges_the_completions_of_this_queue_pair_from_both_queues_and_no_others(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    receive_cq = CQ(b.ctx, 16, None, b.channel)
    mine = QP(b.pd, QPInitAttr(scq=b.cq, rcq=receive_cq, cap=QPCap(4, 4)))
    peer = QP(a.pd, QPInitAttr(scq=a.cq, rcq=a.cq, cap=QPCap(4, 4)))
    peer.connect(mine.endpoint())
    mine.connect(peer.endpoint())
    connect(a, b)
    mine.post_recv(RecvWR(1, [b.sge(0, 8)]))
    peer.post_send(SendWR(2, IBV_WR_SEND, [a.sge(0, 8)]))
    a.wait()
    b.qp.post_send(b.write(a, 8, wr_id=10))
    mine.post_send(SendWR(3, 0, [b.sge(0, 8)], remote_addr=a.mr.buf, rkey=a.mr.rkey))
    b.qp.post_send(b.write(a, 8, wr_id=11))
    for qp in (mine, b.qp):  # a round trip later everything has completed
        qp.query()
    seen = 0
    while seen < 3:
        seen = len(b.cq._ring)
    mine.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    assert receive_cq.poll(8)[0] == 0
    assert [wc.wr_id for wc in b.cq.poll(8)[1]] == [10, 11]
    a.close()
    b.close()
