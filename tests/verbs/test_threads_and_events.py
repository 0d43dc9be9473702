"""What programs with threads, event loops and bad arguments rely on, over two daemons."""

from __future__ import annotations

import errno
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import (
    CQ,
    DM,
    DMMR,
    MR,
    PD,
    QP,
    SGE,
    SRQ,
    AllocDmAttr,
    CompChannel,
    QPAttr,
    QPCap,
    QPInitAttr,
    RecvWR,
    SendWR,
    SrqAttr,
    SrqInitAttr,
)

Pair = tuple[End, End]


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns a thousand times as often: what can go wrong between two lines does."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def together(*calls: Callable[[], None]) -> None:
    """Run the calls in threads of their own; raises what the first to fail raised."""
    failures: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def another(a: End, b: End, channel: CompChannel | None = None) -> tuple[QP, CQ]:
    """One more connected queue pair of `a`, with a completion queue of its own."""
    cq = CQ(a.ctx, 256, None, channel)
    cap = QPCap(max_send_wr=64)
    qp = QP(a.pd, QPInitAttr(scq=cq, rcq=cq, cap=cap))
    peer = QP(b.pd, QPInitAttr(scq=b.cq, rcq=b.cq, cap=cap))
    qp.connect(peer.endpoint())
    peer.connect(qp.endpoint())
    return qp, cq


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty_threads")
def test_threads_post_to_one_queue_pair_and_poll_one_queue(pair: Pair) -> None:
    a, b = pair
    per_thread, posters = 400, 4
    statuses: dict[int, int] = {}
    polled = threading.Semaphore(0)

    def post(first: int) -> None:
        for i in range(per_thread):
            while True:
                try:
                    a.qp.post_send(a.write(b, 8, wr_id=first + i))
                    break
                except VerbsError as full:
                    if full.errno != errno.ENOMEM:
                        raise

    def poll() -> None:
        while len(statuses) < per_thread * posters:
            for wc in a.cq.wait(8, 1.0):
                assert wc.wr_id not in statuses
                statuses[wc.wr_id] = wc.status
        polled.release()

    together(*(lambda first=i * per_thread: post(first) for i in range(posters)), poll, poll)  # type: ignore[misc]
    assert statuses == dict.fromkeys(range(per_thread * posters), IBV_WC_SUCCESS)


@pytest.mark.usefixtures("hasty_threads")
def test_no_doorbell_is_lost_between_threads(pair: Pair) -> None:
    a, b = pair
    queue_pairs = [another(a, b) for _ in range(6)]

    def ping(qp: QP, cq: CQ) -> None:
        for i in range(400):
            qp.post_send(a.write(b, 8, wr_id=i))
            count = 0
            while not count:
                count, wcs = cq.poll(1)
            assert (wcs[0].wr_id, wcs[0].status) == (i, IBV_WC_SUCCESS)

    together(*(lambda qp=qp, cq=cq: ping(qp, cq) for qp, cq in queue_pairs))  # type: ignore[misc]


@pytest.mark.usefixtures("hasty_threads")
def test_threads_wait_for_different_queues_of_one_channel(pair: Pair) -> None:
    a, b = pair
    qp, cq = another(a, b, a.channel)

    def ping(qp: QP, cq: CQ) -> None:
        for i in range(300):
            qp.post_send(a.write(b, 8, wr_id=i))
            assert [wc.wr_id for wc in cq.wait(1, 20.0)] == [i]

    together(lambda: ping(a.qp, a.cq), lambda: ping(qp, cq))


# ---- descriptors -----------------------------------------------------------------------------------------------------


def test_a_channel_is_readable_as_long_as_there_are_events(pair: Pair) -> None:
    a, b = pair
    qp, cq = another(a, b, a.channel)
    for queue in (a.cq, cq):
        queue.req_notify()
    a.qp.post_send(a.write(b, 8))
    qp.post_send(a.write(b, 8))
    epoll = select.epoll()
    epoll.register(a.channel.fd, select.EPOLLIN)
    seen = set()
    for _ in range(2):
        assert epoll.poll(20)
        event_of = a.channel.get_cq_event(timeout_s=0)
        assert event_of is not None
        event_of.ack_events(1)
        seen.add(event_of)
    assert seen == {a.cq, cq}
    assert not epoll.poll(0)


def many_last_wqes(end: End, count: int) -> list[int]:
    """Queue pairs with a shared receive queue, all gone to ERR: an asynchronous event for each."""
    srq = SRQ(end.pd, SrqInitAttr(SrqAttr(8, 1)))
    init = QPInitAttr(scq=end.cq, rcq=end.cq, cap=QPCap(1, 1), srq=srq)
    qps = [QP(end.pd, init) for _ in range(count)]
    for qp in qps:
        qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    return [qp.qp_num for qp in qps]


def test_the_descriptor_of_asynchronous_events_is_readable_as_long_as_there_are_some(pair: Pair) -> None:
    a, _ = pair
    numbers = many_last_wqes(a, 3)
    epoll = select.epoll()
    epoll.register(a.ctx.async_fd, select.EPOLLIN)
    for number in numbers:
        assert epoll.poll(20)
        event = a.ctx.get_async_event(0)
        assert event is not None
        assert (event.event_type, event.element) == (IBV_EVENT_QP_LAST_WQE_REACHED, number)
        event.ack()
    assert not epoll.poll(0)


def test_no_asynchronous_event_is_lost_to_a_slow_reader(pair: Pair) -> None:
    a, _ = pair
    numbers = many_last_wqes(a, 800)  # more than a pipe holds
    heard = []
    while len(heard) < len(numbers):
        event = a.ctx.get_async_event(20)
        assert event is not None, f"{len(heard)} of {len(numbers)} events"
        event.ack()
        heard.append(event.element)
    assert heard == numbers


# ---- what is refused, and what that leaves ---------------------------------------------------------------------------


def test_a_chain_to_a_shared_queue_posts_what_came_before_the_bad_request(pair: Pair) -> None:
    a, b = pair
    srq = SRQ(b.pd, SrqInitAttr(SrqAttr(8, 1)))
    sender, receiver = (
        QP(end.pd, QPInitAttr(scq=end.cq, rcq=end.cq, cap=QPCap(8, 1), srq=shared))
        for end, shared in ((a, None), (b, srq))
    )
    sender.connect(receiver.endpoint())
    receiver.connect(sender.endpoint())
    bad = RecvWR(3, [b.sge(0, 8)] * 2, next_wr=RecvWR(4))
    with pytest.raises(VerbsError) as refused:
        srq.post_recv(RecvWR(1, [b.sge(0, 8)], next_wr=RecvWR(2, [b.sge(0, 8)], next_wr=bad)))
    assert refused.value.errno == errno.EINVAL
    assert refused.value.bad_wr is bad
    sender.post_send(*(SendWR(i, IBV_WR_SEND, [a.sge(0, 8)]) for i in range(2)))
    assert [wc.wr_id for wc in b.wait(2)] == [1, 2]
    assert all(wc.status == IBV_WC_SUCCESS for wc in a.wait(2))


@pytest.mark.parametrize(
    "wr",
    [
        SendWR(1, IBV_WR_SEND, [SGE(0, 1 << 32, 0)]),
        SendWR(1, IBV_WR_SEND, [SGE(-1, 1, 0)]),
        SendWR(1 << 64, IBV_WR_SEND),
        SendWR(1, IBV_WR_SEND_WITH_IMM, imm_data=-1),
    ],
    ids=["length", "address", "wr_id", "immediate"],
)
def test_numbers_that_do_not_fit_their_fields(pair: Pair, wr: SendWR) -> None:
    a, b = pair
    with pytest.raises(VerbsError, match="out of its range") as refused:
        a.qp.post_send(a.write(b, 8, wr_id=7), wr)
    assert refused.value.errno == errno.EINVAL
    assert refused.value.bad_wr is wr
    assert [wc.wr_id for wc in a.wait()] == [7]


@pytest.mark.parametrize("entries", [10.5, None, "8", 1 << 70])
def test_an_argument_of_a_wrong_type_costs_nothing_but_the_call(pair: Pair, entries: Any) -> None:
    a, b = pair
    with pytest.raises(VerbsError) as refused:
        CQ(a.ctx, entries)
    assert refused.value.errno == errno.EINVAL
    a.qp.post_send(a.write(b, 8))
    assert a.wait()[0].status == IBV_WC_SUCCESS


def test_integers_of_numpy_are_integers(pair: Pair) -> None:
    a, _ = pair
    with CQ(a.ctx, np.int64(8)) as cq, MR(a.pd, np.int64(4096), np.int32(7)) as mr:  # type: ignore[arg-type]
        assert cq.cqe == 8
        assert mr.length == 4096


def test_an_unknown_bit_of_the_attribute_mask(pair: Pair) -> None:
    a, _ = pair
    with pytest.raises(VerbsError, match="unknown bits 0x10000000000") as refused:
        a.qp.modify(QPAttr(), 1 << 40)
    assert refused.value.errno == errno.EINVAL


def test_a_queue_pair_that_cannot_be_moved_on_creation_is_not_left_behind(pair: Pair) -> None:
    a, _ = pair
    pd = PD(a.ctx)
    with pytest.raises(VerbsError, match="pkey_index"):
        QP(pd, QPInitAttr(scq=a.cq, rcq=a.cq), QPAttr(pkey_index=9))
    pd.close()  # EBUSY if there were one


def test_a_verb_that_a_signal_interrupts_is_not_answered_by_the_next_one(unshaped: LocalLab) -> None:
    end = End(unshaped, 0)

    class Impatient(Exception):
        pass

    def handler(*_: object) -> None:
        raise Impatient

    old = signal.signal(signal.SIGUSR1, handler)
    receive = end.ctx._channel._receive
    try:
        # The signal comes when the request is out and the answer is awaited.
        def interrupted() -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return receive()

        end.ctx._channel._receive = interrupted  # type: ignore[method-assign]
        with pytest.raises(Impatient):
            PD(end.ctx)
        end.ctx._channel._receive = receive  # type: ignore[method-assign]
        with pytest.raises(VerbsError, match="interrupted") as refused:
            CQ(end.ctx, 8)
        assert refused.value.errno == errno.EIO
    finally:
        signal.signal(signal.SIGUSR1, old)
        end.close()


def test_query_tells_of_sq_sig_all(pair: Pair) -> None:
    a, _ = pair
    marker = object()
    for sig_all in (0, 1):
        with QP(a.pd, QPInitAttr(scq=a.cq, rcq=a.cq, sq_sig_all=sig_all, qp_context=marker)) as qp:
            init = qp.query()[1]
            assert (init.sq_sig_all, init.qp_context) == (sig_all, marker)


# ---- what long runs leave --------------------------------------------------------------------------------------------


def test_a_shared_queue_outlives_its_queue_pairs_with_all_its_slots(pair: Pair) -> None:
    a, b = pair
    srq = SRQ(b.pd, SrqInitAttr(SrqAttr(4, 1)))
    for _ in range(3):
        receiver = QP(b.pd, QPInitAttr(scq=b.cq, rcq=b.cq, cap=QPCap(1, 1), srq=srq))
        sender = QP(a.pd, QPInitAttr(scq=a.cq, rcq=a.cq, cap=QPCap(8, 1)))
        sender.connect(receiver.endpoint())
        receiver.connect(sender.endpoint())
        srq.post_recv(*(RecvWR(i, [b.sge(0, 8)]) for i in range(4)))
        sender.post_send(*(SendWR(i, IBV_WR_SEND, [a.sge(0, 8)]) for i in range(4)))
        assert len(a.wait(4)) == 4
        receiver.close()  # with its completions not polled
        sender.close()
        assert b.ctx._srq_of_qp == {}
        assert [wc.wr_id for wc in b.wait(4)] == [0, 1, 2, 3]


def test_regions_over_device_memory_leave_no_mapping_behind(pair: Pair, unshaped: LocalLab) -> None:
    a, _ = pair

    def mappings() -> int:
        with open(f"/proc/{unshaped.daemons[0]}/maps") as maps:
            return sum("fauxrdma-dm" in line for line in maps)

    before = mappings()
    with DM(a.ctx, AllocDmAttr(4096)) as dm:
        for _ in range(20):
            DMMR(a.pd, 64, 7, dm, 0).close()
        assert mappings() - before <= 3
