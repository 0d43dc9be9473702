"""Memory windows of both types, atomics' operands and chains of requests, as a client sees them over two daemons."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_MW_BIND,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_MW_TYPE_1,
    IBV_MW_TYPE_2,
    IBV_SEND_SIGNALED,
    IBV_WC_BIND_MW,
    IBV_WC_LOCAL_INV,
    IBV_WC_MW_BIND_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_INV,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW,
    IBV_WR_LOCAL_INV,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_INV,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import MW, QP, MWBind, MWBindInfo, QPCap, QPInitAttr, RecvWR, SendWR, inc_rkey

BINDABLE = int(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND)
WRITABLE = int(IBV_ACCESS_REMOTE_WRITE)


@pytest.fixture
def ends(unshaped: LocalLab) -> Iterator[tuple[End, End]]:
    """`b` owns a region that grants nothing remotely but may be bound."""
    a, b = End(unshaped, 0, length=4096), End(unshaped, 1, length=4096, access=BINDABLE)
    connect(a, b)
    yield a, b
    a.close()
    b.close()


def write(a: End, b: End, rkey: int, offset: int = 0) -> int:
    """Write 8 bytes into `b`'s region through `rkey`; the completion's status."""
    a.qp.post_send(a.write(b, 8, rkey=rkey, remote_addr=b.mr.buf + offset))
    return a.wait()[0].status


def test_a_type_1_window_is_bound_moved_and_taken_away(ends: tuple[End, End]) -> None:
    a, b = ends
    with MW(b.pd, IBV_MW_TYPE_1) as mw:
        b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, b.mr.buf, 64, WRITABLE), wr_id=5))
        (wc,) = b.wait()
        assert (wc.wr_id, wc.status, wc.opcode) == (5, IBV_WC_SUCCESS, IBV_WC_BIND_MW)
        first = mw.rkey
        a.mr.view[:8] = b"window 1"
        assert write(a, b, first) == IBV_WC_SUCCESS
        assert bytes(b.mr.view[:8]) == b"window 1"
        with pytest.raises(VerbsError) as caught:
            b.mr.close()
        assert caught.value.errno == errno.EBUSY
        # Bound anew it has another key, and the old one is dead.
        b.qp.bind_mw(mw, MWBind(MWBindInfo(b.mr, b.mr.buf + 64, 64, WRITABLE)))
        assert b.wait()[0].status == IBV_WC_SUCCESS
        assert mw.rkey != first
        assert write(a, b, mw.rkey, 64) == IBV_WC_SUCCESS
        assert write(a, b, first) == IBV_WC_REM_ACCESS_ERR


def test_a_type_2_window_is_bound_by_a_request_and_taken_away_by_the_peer(ends: tuple[End, End]) -> None:
    a, b = ends
    mw = MW(b.pd, IBV_MW_TYPE_2)
    bind = SendWR(1, IBV_WR_BIND_MW)
    bind.set_bind_wr(mw, MWBindInfo(b.mr, b.mr.buf, 64, WRITABLE))
    assert bind.rkey == inc_rkey(mw.rkey)
    b.qp.post_send(bind)
    assert b.wait()[0].status == IBV_WC_SUCCESS
    a.mr.view[:8] = b"window 2"
    assert write(a, b, bind.rkey) == IBV_WC_SUCCESS
    assert bytes(b.mr.view[:8]) == b"window 2"
    b.qp.post_recv(RecvWR(9, []))
    a.qp.post_send(SendWR(2, IBV_WR_SEND_WITH_INV, [], bind.rkey, IBV_SEND_SIGNALED))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    (wc,) = b.wait()
    assert (wc.wr_id, wc.wc_flags, wc.imm_data) == (9, IBV_WC_WITH_INV, bind.rkey)
    assert write(a, b, bind.rkey) == IBV_WC_REM_ACCESS_ERR
    mw.close()


def test_a_type_2_window_is_taken_away_by_its_owner(ends: tuple[End, End]) -> None:
    a, b = ends
    mw = MW(b.pd, IBV_MW_TYPE_2)
    bind = SendWR(1, IBV_WR_BIND_MW)
    bind.set_bind_wr(mw, MWBindInfo(b.mr, b.mr.buf, 64, WRITABLE))
    b.qp.post_send(bind, SendWR(2, IBV_WR_LOCAL_INV, [], bind.rkey))
    got = b.wait(2)
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in got] == [
        (1, IBV_WC_SUCCESS, IBV_WC_BIND_MW),
        (2, IBV_WC_SUCCESS, IBV_WC_LOCAL_INV),
    ]
    assert write(a, b, bind.rkey) == IBV_WC_REM_ACCESS_ERR


def test_a_bind_that_is_refused(ends: tuple[End, End]) -> None:
    """The region does not grant MW_BIND: MW_BIND_ERR, and the queue pair is in ERR."""
    a, b = ends
    mw = MW(a.pd, IBV_MW_TYPE_2)
    bind = SendWR(1, IBV_WR_BIND_MW)
    bind.set_bind_wr(mw, MWBindInfo(a.mr, a.mr.buf, 64, int(IBV_ACCESS_REMOTE_READ)))
    a.qp.post_send(bind, a.write(b, 8, wr_id=2))
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(1, IBV_WC_MW_BIND_ERR), (2, IBV_WC_WR_FLUSH_ERR)]
    assert "MW_BIND" in a.qp.last_error()


def test_a_domain_with_windows_is_busy(ends: tuple[End, End]) -> None:
    _, b = ends
    mw = MW(b.pd, IBV_MW_TYPE_1)
    b.qp.close()
    b.mr.close()
    with pytest.raises(VerbsError, match="windows") as caught:
        b.pd.close()
    assert caught.value.errno == errno.EBUSY
    mw.close()
    b.pd.close()


def test_windows_of_the_wrong_type_are_refused_when_posted(ends: tuple[End, End]) -> None:
    _, b = ends
    info = MWBindInfo(b.mr, b.mr.buf, 64, WRITABLE)
    bind = SendWR(1, IBV_WR_BIND_MW)
    bind.set_bind_wr(MW(b.pd, IBV_MW_TYPE_1), info)
    with pytest.raises(VerbsError, match="type 1"):
        b.qp.post_send(bind)
    with pytest.raises(VerbsError, match="type 2"):
        b.qp.bind_mw(MW(b.pd, IBV_MW_TYPE_2), MWBind(info))
    with pytest.raises(VerbsError, match="set_bind_wr"):
        b.qp.post_send(SendWR(1, IBV_WR_BIND_MW))


def test_a_chain_posts_what_comes_before_the_bad_request(ends: tuple[End, End]) -> None:
    """The requests before it are posted and complete; the error names the one that was not (A6)."""
    a, b = ends
    b.qp.post_recv(RecvWR(1, []), RecvWR(2, []))
    good = [SendWR(i, IBV_WR_SEND, [], 0, IBV_SEND_SIGNALED) for i in range(3)]
    bad = SendWR(9, 99)
    good[0].next_wr, good[1].next_wr, bad.next_wr = good[1], bad, good[2]
    with pytest.raises(VerbsError) as caught:
        a.qp.post_send(good[0])
    assert caught.value.errno == errno.EINVAL
    assert caught.value.bad_wr is bad
    assert [(wc.wr_id, wc.status) for wc in a.wait(2)] == [(0, IBV_WC_SUCCESS), (1, IBV_WC_SUCCESS)]
    assert [wc.wr_id for wc in b.wait(2)] == [1, 2]


def test_a_full_queue_refuses_and_polling_makes_room(ends: tuple[End, End]) -> None:
    """ENOMEM names the request; unsignaled requests alone never free a slot (A6)."""
    a, b = ends
    qp = QP(a.pd, QPInitAttr(scq=a.cq, rcq=a.cq, cap=QPCap(4, 2), sq_sig_all=0))
    peer = QP(b.pd, QPInitAttr(scq=b.cq, rcq=b.cq, cap=QPCap(4, 2)))
    qp.connect(peer.endpoint())
    peer.connect(qp.endpoint())
    quiet = [SendWR(i, IBV_WR_RDMA_WRITE, [], 0, 0, b.mr.buf, 0) for i in range(5)]
    with pytest.raises(VerbsError) as caught:
        qp.post_send(*quiet)
    assert (caught.value.errno, caught.value.bad_wr) == (errno.ENOMEM, quiet[4])
    with pytest.raises(VerbsError):
        qp.post_send(quiet[0])
    receives = [RecvWR(i) for i in range(3)]
    with pytest.raises(VerbsError) as caught:
        qp.post_recv(*receives)
    assert (caught.value.errno, caught.value.bad_wr) == (errno.ENOMEM, receives[2])


def test_an_atomic_s_operands_are_64_bits(ends: tuple[End, End]) -> None:
    a, b = ends
    wr = SendWR(1, IBV_WR_ATOMIC_FETCH_AND_ADD, [a.sge(0, 8)])
    wr.set_wr_atomic(b.mr.rkey, b.mr.buf, 1 << 64)
    with pytest.raises(VerbsError, match="compare_add is 18446744073709551616"):
        a.qp.post_send(wr)
