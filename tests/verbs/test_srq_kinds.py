"""Shared receive queues among transports, broken ones, and events that are not acknowledged, over two daemons."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_SRQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPT_RC,
    IBV_QPT_UC,
    IBV_QPT_UD,
    IBV_SRQ_LIMIT,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import (
    AH,
    CQ,
    QP,
    SRQ,
    AHAttr,
    Context,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)

KINDS = (IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD)
QKEY = 0x11


class Mixed:
    """A queue pair of each transport on two nodes; those of node 1 share one receive queue."""

    def __init__(self, lab: LocalLab) -> None:
        self.a, self.b = End(lab, 0), End(lab, 1)
        self.srq = SRQ(self.b.pd, SrqInitAttr(SrqAttr(8, 1)))
        self.ah = AH(self.a.pd, attr=AHAttr(dlid=self.b.ctx.hca.lid))
        self.senders, self.receivers = {}, {}
        for kind in KINDS:
            sender, receiver = (
                QP(end.pd, QPInitAttr(qp_type=kind, scq=end.cq, rcq=end.cq, cap=QPCap(8, 1), srq=srq))
                for end, srq in ((self.a, None), (self.b, self.srq))
            )
            if kind == IBV_QPT_UD:
                for qp in (sender, receiver):
                    qp.to_rts(QPAttr(qkey=QKEY))
            else:
                sender.connect(receiver.endpoint())
                receiver.connect(sender.endpoint())
            self.senders[kind], self.receivers[kind] = sender, receiver

    def send(self, kind: int, length: int = 8) -> None:
        wr = SendWR(1, IBV_WR_SEND, [self.a.sge(0, length)])
        if kind == IBV_QPT_UD:
            wr.set_wr_ud(self.ah, self.receivers[kind].qp_num, QKEY)
        self.senders[kind].post_send(wr)
        assert self.a.wait()[0].status == IBV_WC_SUCCESS

    def post(self, *wr_ids: int, length: int = 64) -> None:
        self.srq.post_recv(*(RecvWR(i, [self.b.sge(i * 64, length)]) for i in wr_ids))

    def received(self) -> tuple[int, int]:
        """wr_id and queue pair of the next receive that completes."""
        (wc,) = self.b.wait()
        assert wc.status == IBV_WC_SUCCESS
        return wc.wr_id, wc.qp_num

    def close(self) -> None:
        self.a.close()
        self.b.close()


@pytest.fixture
def mixed(unshaped: LocalLab) -> Iterator[Mixed]:
    mixed = Mixed(unshaped)
    yield mixed
    mixed.close()


def test_every_transport_takes_receives_in_the_order_of_posting(mixed: Mixed) -> None:
    order = (IBV_QPT_UD, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RC)
    mixed.post(*range(len(order)))
    for i, kind in enumerate(order):
        mixed.send(kind)
        assert mixed.received() == (i, mixed.receivers[kind].qp_num)
    mixed.post(*range(8))  # all slots are free again


def test_datagrams_and_uc_messages_without_a_receive_vanish(mixed: Mixed) -> None:
    for kind in (IBV_QPT_UC, IBV_QPT_UD):
        mixed.send(kind)
    # Messages of the node arrive in order, so what comes behind them tells that they were here.
    mixed.a.qp.connect(mixed.b.qp.endpoint())
    mixed.b.qp.connect(mixed.a.qp.endpoint())
    mixed.a.qp.post_send(mixed.a.write(mixed.b, 8))
    mixed.a.wait()
    mixed.post(7)
    mixed.send(IBV_QPT_RC)
    assert mixed.received() == (7, mixed.receivers[IBV_QPT_RC].qp_num)


@pytest.mark.parametrize("kind", [IBV_QPT_UC, IBV_QPT_UD])
def test_a_receive_that_was_too_short_serves_the_next_message(mixed: Mixed, kind: int) -> None:
    mixed.post(3, length=48)
    mixed.send(kind, length=60)  # dropped; its queue pair keeps the receive
    mixed.send(kind, length=8)
    assert mixed.received() == (3, mixed.receivers[kind].qp_num)


@pytest.mark.parametrize("kind", [IBV_QPT_UC, IBV_QPT_UD])
def test_a_queue_pair_in_error_flushes_what_it_holds_and_says_so(mixed: Mixed, kind: int) -> None:
    receiver = mixed.receivers[kind]
    mixed.post(3, 4, length=48)
    mixed.send(kind, length=60)
    while receiver.last_error() == "":
        pass
    receiver.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    (wc,) = mixed.b.wait()
    assert (wc.wr_id, wc.status, wc.qp_num) == (3, IBV_WC_WR_FLUSH_ERR, receiver.qp_num)
    event = mixed.b.ctx.get_async_event(20)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_QP_LAST_WQE_REACHED, receiver.qp_num)
    event.ack()
    mixed.send(IBV_QPT_RC)
    assert mixed.received() == (4, mixed.receivers[IBV_QPT_RC].qp_num)


def test_a_shared_queue_whose_memory_is_overwritten_is_an_event_and_stops_its_queue_pairs(mixed: Mixed) -> None:
    mixed.srq._ring.publish(1 << 40)  # more than it holds
    mixed.send(IBV_QPT_UD)  # a datagram needs no answer
    kinds = set()
    while IBV_EVENT_SRQ_ERR not in kinds:
        event = mixed.b.ctx.get_async_event(20)
        assert event is not None
        if event.event_type == IBV_EVENT_SRQ_ERR:
            assert event.element == mixed.srq.handle
            assert "overwritten" in event.text
        kinds.add(event.event_type)
        event.ack()
    for qp in mixed.receivers.values():
        assert qp.qp_state == IBV_QPS_ERR
    assert mixed.b.qp.qp_state != IBV_QPS_ERR


# ---- events that are not acknowledged --------------------------------------------------------------------------------


def last_wqe(end: End) -> tuple[int, Callable[[], None]]:
    srq = SRQ(end.pd, SrqInitAttr(SrqAttr(8, 1)))
    qp = QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq, cap=QPCap(1, 1), srq=srq))
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    return IBV_EVENT_QP_LAST_WQE_REACHED, qp.close


def limit_reached(end: End) -> tuple[int, Callable[[], None]]:
    srq = SRQ(end.pd, SrqInitAttr(SrqAttr(8, 1)))
    srq.modify(SrqAttr(srq_limit=1), IBV_SRQ_LIMIT)
    return IBV_EVENT_SRQ_LIMIT_REACHED, srq.close


def overflow(end: End) -> tuple[int, Callable[[], None]]:
    cq = CQ(end.ctx, 1)
    qp = QP(end.pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(4, 4)))
    qp.connect(qp.endpoint())
    qp.post_send(end.write(end, 8), end.write(end, 8))

    def close() -> None:
        qp.close()
        cq.close()

    return IBV_EVENT_CQ_ERR, close


@pytest.mark.parametrize("cause", [last_wqe, limit_reached, overflow])
def test_destroying_waits_for_the_acknowledgement_of_asynchronous_events(
    unshaped: LocalLab, cause: Callable[[End], tuple[int, Callable[[], None]]]
) -> None:
    end = End(unshaped, 0)
    kind, close = cause(end)
    event = end.ctx.get_async_event(20)
    assert event is not None
    assert event.event_type == kind
    account = event._account
    assert account is not None
    waiting = threading.Event()
    wait_for = account._changed.wait_for

    def watched(done: Callable[[], bool], timeout: float | None = None) -> bool:
        waiting.set()
        return wait_for(done, timeout)

    account._changed.wait_for = watched  # type: ignore[method-assign]
    closer = threading.Thread(target=close)
    closer.start()
    assert waiting.wait(20)
    assert closer.is_alive()
    event.ack()
    closer.join(20)
    assert not closer.is_alive()
    end.close()


def test_a_closed_context_says_that_it_is_closed(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    end.qp.connect(end.qp.endpoint())
    ctx: Context = end.ctx
    end.close()
    for attempt in (
        lambda: ctx.query_port(1),
        lambda: ctx.get_async_event(0),
        lambda: end.qp.post_send(end.write(end, 8)),
    ):
        with pytest.raises(VerbsError, match=r"the context is closed|was destroyed"):
            attempt()


def test_what_was_destroyed_says_so(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)
    end.qp.connect(end.qp.endpoint())
    end.qp.close()
    end.cq.close()
    end.channel.close()
    assert end.channel.fd == -1
    for attempt in (
        lambda: end.qp.post_send(end.write(end, 8)),
        lambda: end.qp.post_recv(RecvWR(1)),
        lambda: end.channel.get_cq_event(timeout_s=0),
    ):
        with pytest.raises(VerbsError, match="was destroyed"):
            attempt()
    end.close()
