"""Completion queues over two daemons: resize, events, moderation, acknowledgement, the extended interface."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_EX_WITH_CVLAN,
    IBV_WC_RDMA_WRITE,
    IBV_WC_RECV,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    CreateCqWcFlags,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, CQEX, QP, CqInitAttrEx, PollCqAttr, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR

Pair = tuple[End, End]
ALL_FIELDS = 0x7F | CreateCqWcFlags.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | 1 << 11


def arrived(cq: CQ, count: int) -> None:
    """Wait until `count` completions are there, without polling them."""
    deadline = time.monotonic() + 20
    while len(cq._ring) < count:
        assert time.monotonic() < deadline, f"{len(cq._ring)} of {count} completions"


# ---- resize ----------------------------------------------------------------------------------------------------------


def with_queue(a: End, b: End, cqe: int) -> tuple[CQ, QP]:
    """A small completion queue at `a` and a connected queue pair that completes into it."""
    cq = CQ(a.ctx, cqe, None, a.channel)
    qp = QP(a.pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(256, 64)))
    peer = QP(b.pd, QPInitAttr(scq=b.cq, rcq=b.cq, cap=QPCap(256, 64)))
    qp.connect(peer.endpoint())
    peer.connect(qp.endpoint())
    b.peer = peer  # type: ignore[attr-defined]  # keeps it alive
    return cq, qp


@pytest.mark.parametrize("new_size", [5, 6, 16, 200])
def test_resize_keeps_what_is_pending_in_order(pair: Pair, new_size: int) -> None:
    a, b = pair
    cq, qp = with_queue(a, b, 7)
    for lap in range(3):  # so that slots of old and new ring do not agree by chance
        qp.post_send(*(a.write(b, 8, wr_id=i) for i in range(3)))
        arrived(cq, 3)
        assert [wc.wr_id for wc in cq.poll(9)[1]] == [0, 1, 2], lap
    qp.post_send(*(a.write(b, 8, wr_id=i) for i in range(5)))
    arrived(cq, 5)
    cq.resize(new_size)
    assert cq.cqe == new_size
    qp.post_send(*(a.write(b, 8, wr_id=i) for i in range(5, new_size)))
    arrived(cq, new_size)
    assert [wc.wr_id for wc in cq.poll(new_size)[1]] == list(range(new_size))


def test_resize_while_completions_arrive_loses_none(pair: Pair) -> None:
    a, b = pair
    cq, qp = with_queue(a, b, 256)
    got: list[int] = []
    sent = 0
    for size in (300, 256, 400, 257, 1000, 256):
        burst = range(sent, sent + 200)
        qp.post_send(*(a.write(b, 8, wr_id=i) for i in burst))
        sent += 200
        cq.resize(size)
        while len(got) < sent:
            got += [wc.wr_id for wc in cq.wait(64, 20)]
    assert got == list(range(sent))


def test_resize_below_what_is_pending_or_above_the_device_changes_nothing(pair: Pair) -> None:
    a, b = pair
    cq, qp = with_queue(a, b, 8)
    qp.post_send(*(a.write(b, 8, wr_id=i) for i in range(4)))
    arrived(cq, 4)
    for size, words in ((3, "4 completions are pending"), (1 << 30, "legal are 1 to"), (0, "pending")):
        with pytest.raises(VerbsError, match=words) as caught:
            cq.resize(size)
        assert caught.value.errno == errno.EINVAL
    assert cq.cqe == 8
    assert [wc.wr_id for wc in cq.poll(8)[1]] == [0, 1, 2, 3]


# ---- events ----------------------------------------------------------------------------------------------------------


def test_arming_survives_a_resize(pair: Pair) -> None:
    a, b = pair
    cq, qp = with_queue(a, b, 8)
    cq.req_notify()
    cq.resize(16)
    qp.post_send(a.write(b, 8))
    assert a.channel.get_cq_event(cq, timeout_s=20) is cq
    cq.ack_events(1)


def test_an_event_of_another_queue_than_expected_is_an_error(pair: Pair) -> None:
    a, b = pair
    other = CQ(a.ctx, 8, None, a.channel)
    a.cq.req_notify()
    a.qp.post_send(a.write(b, 8))
    with pytest.raises(VerbsError, match=f"the event is of CQ {a.cq.handle}, expected CQ {other.handle}") as caught:
        a.channel.get_cq_event(other, timeout_s=20)
    assert caught.value.errno == errno.EINVAL
    a.cq.ack_events(1)  # got all the same


@pytest.mark.parametrize("solicited", [True, False])
def test_an_error_wakes_who_waits_for_solicited_completions(pair: Pair, solicited: bool) -> None:
    a, b = pair
    a.cq.req_notify(solicited_only=True)
    a.qp.post_send(a.write(b, 8))  # success, not solicited
    arrived(a.cq, 1)
    assert a.channel.get_cq_event(timeout_s=0) is None
    if solicited:
        a.qp.post_recv(RecvWR(1))
        b.qp.post_send(SendWR(1, IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED | IBV_SEND_SOLICITED))
    else:
        a.qp.post_send(a.write(b, 8, rkey=b.mr.rkey ^ 1))
    assert a.channel.get_cq_event(a.cq, timeout_s=20) is a.cq
    a.cq.ack_events(1)


def test_more_acknowledgements_than_events_are_refused(pair: Pair) -> None:
    a, _ = pair
    with pytest.raises(VerbsError, match="0 are unacknowledged") as caught:
        a.cq.ack_events(1)
    assert caught.value.errno == errno.EINVAL


def test_destroying_a_queue_waits_for_acknowledgement_and_says_so(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    cq, qp = with_queue(a, b, 8)
    for _ in range(2):
        cq.req_notify()
        qp.post_send(a.write(b, 8))
        assert a.channel.get_cq_event(cq, timeout_s=20) is cq
    qp.close()
    warned = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.set()

    watch = Watch()
    logging.getLogger("fauxrdma.verbs.event_account").addHandler(watch)
    monkeypatch.setattr(type(cq._events).settle, "__defaults__", (0.01,))
    closer = threading.Thread(target=cq.close)
    closer.start()
    assert warned.wait(20)
    assert closer.is_alive()
    cq.ack_events(1)
    assert closer.is_alive()
    cq.ack_events(1)
    closer.join(20)
    assert not closer.is_alive()
    assert "2 events that were got and not acknowledged" in caplog.text
    logging.getLogger("fauxrdma.verbs.event_account").removeHandler(watch)


def test_closing_the_context_does_not_wait(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    connect(a, b)
    a.cq.req_notify()
    a.qp.post_send(a.write(b, 8))
    assert a.channel.get_cq_event(a.cq, timeout_s=20) is a.cq
    a.close()
    b.close()


def test_moderation_by_count(pair: Pair) -> None:
    a, b = pair
    a.cq.modify(3, 0xFFFF)
    a.cq.req_notify()
    a.qp.post_send(a.write(b, 8), a.write(b, 8))
    arrived(a.cq, 2)
    assert a.channel.get_cq_event(timeout_s=0) is None
    a.qp.post_send(a.write(b, 8))
    assert a.channel.get_cq_event(a.cq, timeout_s=20) is a.cq
    a.cq.ack_events(1)
    a.qp.post_send(*[a.write(b, 8)] * 3)
    arrived(a.cq, 6)
    assert a.channel.get_cq_event(timeout_s=0) is None  # one-shot as ever
    a.cq.modify(0, 0)
    a.cq.req_notify()
    a.qp.post_send(a.write(b, 8))
    assert a.channel.get_cq_event(a.cq, timeout_s=20) is a.cq
    a.cq.ack_events(1)


def test_moderation_by_period(pair: Pair) -> None:
    a, b = pair
    a.cq.modify(100, 50_000)
    a.cq.req_notify()
    before = a.ctx.fabric_now_ns()
    a.qp.post_send(a.write(b, 8), a.write(b, 8))
    assert a.channel.get_cq_event(a.cq, timeout_s=20) is a.cq
    assert a.ctx.fabric_now_ns() - before >= 50_000_000
    assert len(a.cq._ring) == 2
    a.cq.ack_events(1)


def test_turning_moderation_off_announces_what_it_held_back(pair: Pair) -> None:
    a, b = pair
    a.cq.modify(100, 0xFFFF)
    a.cq.req_notify()
    a.qp.post_send(a.write(b, 8))
    arrived(a.cq, 1)
    a.cq.modify(0, 0)
    assert a.channel.get_cq_event(a.cq, timeout_s=0) is a.cq
    a.cq.ack_events(1)
    for values in ((0x10000, 1), (1, 0x10000), (-1, 0)):
        with pytest.raises(VerbsError, match="Failed to modify CQ") as caught:
            a.cq.modify(*values)
        assert caught.value.errno == errno.EINVAL


def test_completion_vectors_have_a_range(pair: Pair) -> None:
    a, _ = pair
    last = a.ctx.num_comp_vectors - 1
    CQ(a.ctx, 8, None, None, last).close()
    for vector in (last + 1, -1):
        with pytest.raises(VerbsError, match=f"comp_vector is {vector}, legal are 0 to {last}") as caught:
            CQ(a.ctx, 8, None, None, vector)
        assert caught.value.errno == errno.EINVAL


# ---- the extended interface ------------------------------------------------------------------------------------------


@pytest.fixture
def extended(unshaped: LocalLab) -> Iterator[tuple[End, End, CQEX, QP]]:
    """Two ends, and an extended queue at the second whose queue pair is connected with the first's."""
    a, b = End(unshaped, 0), End(unshaped, 1)
    cq = CQEX(b.ctx, CqInitAttrEx(cqe=16, channel=b.channel, wc_flags=ALL_FIELDS))
    qp = QP(b.pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(8, 8)))
    a.qp.connect(qp.endpoint())
    qp.connect(a.qp.endpoint())
    yield a, b, cq, qp
    a.close()
    b.close()


def test_an_empty_extended_queue_is_enoent(extended: tuple[End, End, CQEX, QP]) -> None:
    _, _, cq, _ = extended
    assert cq.start_poll(PollCqAttr()) == errno.ENOENT == 2
    with pytest.raises(VerbsError, match="end_poll without start_poll"):
        cq.end_poll()
    with pytest.raises(VerbsError, match="poll_next without start_poll"):
        cq.poll_next()
    with pytest.raises(VerbsError, match="no completion to read"):
        cq.read_opcode()


def test_completions_are_read_field_by_field(extended: tuple[End, End, CQEX, QP]) -> None:
    a, b, cq, qp = extended
    qp.post_recv(RecvWR(11, [b.sge(0, 64)]), RecvWR(12, [b.sge(64, 64)]))
    before, wall_before = b.ctx.fabric_now_ns(), time.time_ns()
    a.qp.post_send(
        SendWR(1, IBV_WR_SEND_WITH_IMM, [a.sge(0, 24)], imm_data=0xDEADBEEF), SendWR(2, IBV_WR_SEND, [a.sge(0, 8)])
    )
    arrived(cq, 2)
    assert cq.start_poll() == 0
    assert (cq.wr_id, cq.status, cq.read_opcode(), cq.read_byte_len()) == (11, IBV_WC_SUCCESS, IBV_WC_RECV, 24)
    assert (cq.read_imm_data(), cq.read_wc_flags()) == (0xDEADBEEF, IBV_WC_WITH_IMM)
    assert (cq.read_qp_num(), cq.read_src_qp()) == (qp.qp_num, a.qp.qp_num)
    assert (cq.read_slid(), cq.read_sl(), cq.read_dlid_path_bits(), cq.read_vendor_err()) == (a.ctx.hca.lid, 0, 0, 0)
    first = cq.read_timestamp()
    assert before <= first <= b.ctx.fabric_now_ns()
    assert wall_before - 10_000_000 <= cq.read_completion_wallclock_ns() <= time.time_ns() + 10_000_000
    with pytest.raises(VerbsError, match="start_poll before end_poll"):
        cq.start_poll()
    assert cq.poll_next() == 0
    assert (cq.wr_id, cq.read_wc_flags(), cq.read_byte_len()) == (12, 0, 8)
    assert cq.read_timestamp() >= first
    assert cq.poll_next() == errno.ENOENT
    cq.end_poll()
    assert cq.start_poll() == errno.ENOENT


def test_an_extended_queue_reports_errors_and_is_purged_by_reset(extended: tuple[End, End, CQEX, QP]) -> None:
    a, b, cq, qp = extended
    qp.post_recv(RecvWR(1, [b.sge(0, 64)]), RecvWR(2, [b.sge(0, 64)]))
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    arrived(cq, 2)
    assert cq.start_poll() == 0
    assert (cq.wr_id, cq.status) == (1, IBV_WC_WR_FLUSH_ERR)
    cq.end_poll()
    qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    assert cq.start_poll() == errno.ENOENT
    # Usable again, and the slots of what was purged are free.
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    a.qp.connect(qp.endpoint())
    qp.connect(a.qp.endpoint())
    qp.post_recv(*(RecvWR(i, [b.sge(0, 8)]) for i in range(8)))
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 8)]))
    arrived(cq, 1)
    assert cq.start_poll() == 0
    assert cq.wr_id == 0
    cq.end_poll()


def test_events_of_an_extended_queue(extended: tuple[End, End, CQEX, QP]) -> None:
    a, b, cq, qp = extended
    cq.req_notify()
    qp.post_send(b.write(a, 8))
    assert b.channel.get_cq_event(cq, timeout_s=20) is cq
    cq.ack_events(1)
    assert cq.start_poll() == 0
    assert cq.read_opcode() == IBV_WC_RDMA_WRITE
    cq.end_poll()


def test_only_fields_asked_for_can_be_read(pair: Pair) -> None:
    a, b = pair
    cq = CQEX(a.ctx, CqInitAttrEx(cqe=4))
    qp = QP(a.pd, QPInitAttr(scq=cq, rcq=cq))
    qp.connect(b.qp.endpoint())
    qp.post_send(a.write(b, 8))
    qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    arrived(cq, 1)
    assert cq.start_poll() == 0
    for read, name in (
        (cq.read_byte_len, "BYTE_LEN"),
        (cq.read_imm_data, "IMM"),
        (cq.read_qp_num, "QP_NUM"),
        (cq.read_src_qp, "SRC_QP"),
        (cq.read_slid, "SLID"),
        (cq.read_sl, "SL"),
        (cq.read_dlid_path_bits, "DLID_PATH_BITS"),
        (cq.read_timestamp, "COMPLETION_TIMESTAMP"),
        (cq.read_completion_wallclock_ns, "COMPLETION_TIMESTAMP_WALLCLOCK"),
    ):
        with pytest.raises(VerbsError, match=f"created without IBV_WC_EX_WITH_{name}:"):
            read()
    cq.end_poll()
    for attr in (
        CqInitAttrEx(wc_flags=IBV_WC_EX_WITH_CVLAN),
        CqInitAttrEx(flags=IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN),
    ):
        with pytest.raises(VerbsError, match="Failed to create extended CQ") as caught:
            CQEX(a.ctx, attr)
        assert caught.value.errno == errno.EOPNOTSUPP
    with pytest.raises(VerbsError, match="comp_mask 0x2"):
        CQEX(a.ctx, CqInitAttrEx(comp_mask=2))
