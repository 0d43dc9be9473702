"""Work requests built by calls: every operation over two daemons, and a batch that is posted whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import socket
import threading
from collections.abc import Iterator

import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib import enums as e
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, MW, DataBuffer, MWBindInfo, QPCap, QPEx, QPInitAttrEx, RecvWR, inc_rkey

ALL_RC = sum(1 << bit for bit in range(10))
ACCESS = 0x1F  # everything, binding of windows too


class ExtendedEnd(End):
    """An end whose queue pair is extended."""

    def __init__(self, lab: LocalLab, node: int, qp_type: int = e.IBV_QPT_RC, operations: int = ALL_RC) -> None:
        super().__init__(lab, node, access=ACCESS)
        self.qp.close()
        self.ex = QPEx(self.pd, init_attr(self, qp_type, operations))
        self.qp = self.ex
        self.mr.write(bytes(range(256)), 256)


def init_attr(end: End, qp_type: int = e.IBV_QPT_RC, operations: int = ALL_RC, **fields: int) -> QPInitAttrEx:
    cap = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=3, max_recv_sge=3, max_inline_data=64)
    mask = e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | e.IBV_QP_INIT_ATTR_PD
    values = {"comp_mask": mask, **fields}
    return QPInitAttrEx(qp_type, scq=end.cq, rcq=end.cq, cap=cap, pd=end.pd, send_ops_flags=operations, **values)  # type: ignore[arg-type]


@pytest.fixture
def ends(unshaped: LocalLab) -> Iterator[tuple[ExtendedEnd, ExtendedEnd]]:
    a, b = ExtendedEnd(unshaped, 0), ExtendedEnd(unshaped, 1)
    a.qp.connect(b.qp.endpoint())
    b.qp.connect(a.qp.endpoint())
    yield a, b
    a.close()
    b.close()


def start(end: ExtendedEnd, wr_id: int = 7, flags: int = e.IBV_SEND_SIGNALED) -> QPEx:
    qp = end.ex
    qp.wr_start()
    qp.wr_id, qp.wr_flags = wr_id, flags
    return qp


def test_write_and_read_in_one_batch(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    qp = start(a, 1)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 1000)
    qp.wr_set_sge_list(2, [a.sge(10, 5), a.sge(100, 5), a.sge(200, 5)])
    qp.wr_id = 2
    qp.wr_rdma_read(b.mr.rkey, b.mr.buf + 1000)
    qp.wr_set_sge(a.sge(2000, 10))
    qp.wr_complete()
    assert [(wc.wr_id, wc.status, wc.opcode) for wc in a.wait(2)] == [
        (1, 0, e.IBV_WC_RDMA_WRITE),
        (2, 0, e.IBV_WC_RDMA_READ),
    ]
    assert a.mr.read(10, 2000) == bytes([*range(10, 15), *range(100, 105)])


def test_immediates_are_in_host_order(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    b.qp.post_recv(RecvWR(1, [b.sge(0, 64)]), RecvWR(2, [b.sge(64, 64)]))
    qp = start(a)
    qp.wr_send_imm(0x01020304)
    qp.wr_set_sge(a.sge(0, 8))
    qp.wr_rdma_write_imm(b.mr.rkey, b.mr.buf + 500, 0x0A0B0C0D)
    qp.wr_set_sge(a.sge(0, 8))
    qp.wr_complete()
    assert [socket.ntohl(wc.imm_data) for wc in b.wait(2)] == [0x01020304, 0x0A0B0C0D]


def test_inline_data_is_copied_when_it_is_set(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    first, second = ctypes.create_string_buffer(b"hello ", 6), ctypes.create_string_buffer(b"inline", 6)
    qp = start(a)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
    qp.wr_set_inline_data_list(2, [DataBuffer(ctypes.addressof(first), 6), DataBuffer(ctypes.addressof(second), 6)])
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 100)
    qp.wr_set_inline_data(ctypes.addressof(first), 5)
    first.raw = second.raw = b"XXXXXX"
    qp.wr_complete()
    a.wait(2)
    assert (b.mr.read(12, 0), b.mr.read(5, 100)) == (b"hello inline", b"hello")


def test_atomics(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    b.mr.write((5).to_bytes(8, "little"), 8, 800)
    qp = start(a)
    qp.wr_atomic_fetch_add(b.mr.rkey, b.mr.buf + 800, 10)
    qp.wr_set_sge(a.sge(3000, 8))
    qp.wr_atomic_cmp_swp(b.mr.rkey, b.mr.buf + 800, 15, 99)
    qp.wr_set_sge(a.sge(3008, 8))
    qp.wr_complete()
    assert [wc.status for wc in a.wait(2)] == [0, 0]
    assert a.mr.read(16, 3000) == (5).to_bytes(8, "little") + (15).to_bytes(8, "little")
    assert b.mr.read(8, 800) == (99).to_bytes(8, "little")


def test_a_window_bound_used_and_invalidated(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    window = MW(b.pd, e.IBV_MW_TYPE_2)
    rkey = inc_rkey(window.rkey)
    qp = start(b)
    qp.wr_bind_mw(window, rkey, MWBindInfo(b.mr, b.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
    qp.wr_complete()
    assert b.wait()[0].status == 0
    b.qp.post_recv(RecvWR(5, [b.sge(64, 64)]))
    qp = start(a)
    qp.wr_rdma_write(rkey, b.mr.buf + 32)
    qp.wr_set_sge(a.sge(0, 32))
    qp.wr_send_inv(rkey)
    qp.wr_set_sge(a.sge(0, 4))
    qp.wr_complete()
    assert [wc.status for wc in a.wait(2)] == [0, 0]
    (received,) = b.wait()
    assert (received.wr_id, received.imm_data, received.wc_flags & e.IBV_WC_WITH_INV) == (5, rkey, e.IBV_WC_WITH_INV)
    qp = start(b)
    qp.wr_bind_mw(window, inc_rkey(rkey), MWBindInfo(b.mr, b.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
    qp.wr_local_inv(inc_rkey(rkey))
    qp.wr_complete()
    assert [wc.status for wc in b.wait(2)] == [0, 0]


def test_datagrams(unshaped: LocalLab) -> None:
    operations = e.IBV_QP_EX_WITH_SEND | e.IBV_QP_EX_WITH_SEND_WITH_IMM
    a, b = (ExtendedEnd(unshaped, node, e.IBV_QPT_UD, operations) for node in (0, 1))
    try:
        for end in (a, b):
            end.qp.to_rts(QPAttr(qkey=0x11))
        b.qp.post_recv(RecvWR(1, [b.sge(0, 200)]))
        handle = AH(a.pd, attr=AHAttr(b.ctx.hca.lid))
        qp = start(a)
        qp.wr_send()
        qp.wr_set_ud_addr(handle, b.qp.qp_num, 0x11)
        qp.wr_set_sge(a.sge(5, 20))
        qp.wr_complete()
        assert b.wait()[0].byte_len == 60
        assert b.mr.read(20, 40) == bytes(range(5, 25))
    finally:
        a.close()
        b.close()


def test_nothing_is_posted_before_complete_nor_after_abort(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    qp = start(a, 1)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 600)
    qp.wr_set_sge(a.sge(0, 4))
    qp.wr_abort()
    qp = start(a, 2)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 700)
    qp.wr_set_sge(a.sge(1, 4))
    qp.wr_complete()
    assert [wc.wr_id for wc in a.wait()] == [2]
    assert a.cq.poll(4)[0] == 0
    assert b.mr.read(4, 600) == bytes(4)


def test_one_bad_request_and_none_is_posted(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    qp = start(a, 1)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 600)
    qp.wr_set_sge(a.sge(0, 4))
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 700)
    qp.wr_set_sge_list(4, [a.sge(0, 1)] * 4)
    with pytest.raises(VerbsError, match="max_send_sge 3") as caught:
        qp.wr_complete()
    assert caught.value.errno == errno.EINVAL
    qp = start(a, 2)  # the queue pair is as good as before
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf + 800)
    qp.wr_set_sge(a.sge(0, 4))
    qp.wr_complete()
    assert [wc.wr_id for wc in a.wait()] == [2]
    assert b.mr.read(4, 600) == bytes(4)


def test_a_full_queue_is_enomem_and_none_is_posted(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    qp = start(a)
    for _ in range(17):
        qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
        qp.wr_set_sge(a.sge(0, 4))
    with pytest.raises(VerbsError) as caught:
        qp.wr_complete()
    assert caught.value.errno == errno.ENOMEM
    assert a.cq.poll(20)[0] == 0


@pytest.mark.parametrize(
    ("calls", "complaint"),
    [
        (lambda qp, sge: qp.wr_set_sge(sge), "wr_set_sge_list before any builder"),
        (lambda qp, sge: qp.wr_set_ud_addr(None, 1, 1), "wr_set_ud_addr before any builder"),
        (lambda qp, sge: (qp.wr_rdma_read(1, 2), qp.wr_set_sge(sge)), "IBV_QP_EX_WITH_RDMA_READ is not in"),
        (lambda qp, sge: (qp.wr_atomic_fetch_add(1, 2, 3), qp.wr_set_sge(sge)), "ATOMIC_FETCH_AND_ADD is not in"),
    ],
)
def test_what_is_wrong_is_said_by_complete(unshaped: LocalLab, calls: object, complaint: str) -> None:
    end = ExtendedEnd(unshaped, 0, operations=e.IBV_QP_EX_WITH_SEND)
    try:
        end.qp.connect(end.qp.endpoint())
        qp = start(end)
        calls(qp, end.sge(0, 8))  # type: ignore[operator]
        with pytest.raises(VerbsError, match=complaint):
            qp.wr_complete()
        with pytest.raises(VerbsError, match="wr_complete without wr_start"):
            qp.wr_complete()
    finally:
        end.close()


def test_calls_outside_a_batch_are_refused_at_once(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    qp = ends[0].ex
    for call in (qp.wr_send, qp.wr_abort, qp.wr_complete):
        with pytest.raises(VerbsError, match="without wr_start"):
            call()
    qp.wr_start()
    with pytest.raises(VerbsError, match="a batch begun by this thread"):
        qp.wr_start()
    qp.wr_abort()


def test_batches_of_threads_do_not_mix(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    qp = start(a, 1)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
    qp.wr_set_sge(a.sge(0, 4))
    entered = threading.Event()

    def other() -> None:
        entered.set()
        start(a, 2)
        qp.wr_rdma_write(b.mr.rkey, b.mr.buf)
        qp.wr_set_sge(a.sge(0, 4))
        qp.wr_complete()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    qp.wr_rdma_write(b.mr.rkey, b.mr.buf)  # with this thread's wr_id: the other waits
    qp.wr_set_sge(a.sge(0, 4))
    qp.wr_complete()
    thread.join(10)
    assert [wc.wr_id for wc in a.wait(3)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("fields", "code", "complaint"),
    [
        ({"send_ops_flags": e.IBV_QP_EX_WITH_TSO}, errno.EOPNOTSUPP, "IBV_QP_EX_WITH_TSO"),
        ({"send_ops_flags": e.IBV_QP_EX_WITH_FLUSH}, errno.EOPNOTSUPP, "IBV_QP_EX_WITH_FLUSH"),
        ({"qp_type": e.IBV_QPT_UC, "send_ops_flags": e.IBV_QP_EX_WITH_RDMA_READ}, errno.EOPNOTSUPP, "IBV_QPT_UC"),
        ({"comp_mask": e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_XRCD}, errno.EOPNOTSUPP, "XRCD"),
        ({"comp_mask": e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_CREATE_FLAGS, "create_flags": 2}, errno.EOPNOTSUPP,
         "CREATE_FLAGS"),
        ({"comp_mask": 0}, errno.EINVAL, "no PD"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_refused(unshaped: LocalLab, fields: dict[str, int], code: int, complaint: str) -> None:
    end = End(unshaped, 0)
    try:
        attr = init_attr(end)
        for name, value in fields.items():
            setattr(attr, name, value)
        with pytest.raises(VerbsError, match=complaint) as caught:
            QPEx(end.ctx, attr)
        assert caught.value.errno == code
    finally:
        end.close()


def test_it_is_an_ordinary_queue_pair_too(ends: tuple[ExtendedEnd, ExtendedEnd]) -> None:
    a, b = ends
    a.qp.post_send(a.write(b, 16, wr_id=3))
    assert a.wait()[0].wr_id == 3
    for call in (lambda: a.ex.wr_send_tso(0, 0, 0), lambda: a.ex.wr_set_xrc_srqn(1)):
        with pytest.raises(VerbsError) as caught:
            call()
        assert caught.value.errno == errno.EOPNOTSUPP
