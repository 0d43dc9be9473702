"""What queue pairs of pyverbs do.

Each name is used here, and true; or refused as not offered. `OFFERED` holds functions of a World that return
something true; `NOT_OFFERED` those that must be EOPNOTSUPP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from exercises_of_resources import bound_window
from pyverbs import (
    addr,
    base,
    cmid,
)
from pyverbs import enums as e
from pyverbs import mr as m
from pyverbs import qp as q
from pyverbs_world import QKEY, World

Exercise = Callable[[World], object]
OFFERED: dict[str, Exercise] = {}
NOT_OFFERED: dict[str, Exercise] = {}


def _swapped(number: int) -> int:
    return int.from_bytes(number.to_bytes(4, "little"), "big")


# ---- queue pairs ---------------------------------------------------------------------------------------------------


def moved(w: World) -> bool:
    """By single steps, and by `modify`."""
    with q.QP(w.pd, w.plain()) as qp:
        states = [qp.qp_state]
        for step in (qp.to_init, qp.to_rtr, qp.to_rts):
            step(w.path(w.b))
            states.append(qp.qp_state)
        qp.modify(q.QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        return [*states, qp.qp_state] == [0, 1, 2, 3, 0]


def transported(w: World) -> bool:
    w.mr.write("transport", 8)
    w.b.post_recv(w.recv())
    w.a.post_send(w.send())
    received, sent = w.completions(2)
    return received.opcode == e.IBV_WC_RECV and sent.wr_id == 2 and w.mr.read(8, 1024) == b"transpor"


def created_ready(w: World) -> bool:
    """With attributes RC is in INIT, UD in RTS."""
    with q.QP(w.pd, w.plain(), w.attr()) as rc, q.QP(w.pd, w.plain(e.IBV_QPT_UD), w.attr()) as ud:
        return (rc.qp_state, ud.qp_state) == (e.IBV_QPS_INIT, e.IBV_QPS_RTS)


def atomic(call: str, *operands: int) -> Exercise:
    def exercise(w: World) -> bool:
        w.mr.write((5).to_bytes(8, "little"), 8, 2048)
        w.by_calls(lambda a: getattr(a, call)(*w.remote(), *operands), lambda a: a.wr_set_sge(w.sge()))
        return w.mr.read(8, 0) == (5).to_bytes(8, "little") and w.mr.read(1, 2048) == b"\7"

    return exercise


def aborted(w: World) -> bool:
    a, _ = w.kept = w.pair(q.QPEx, w.cq)
    a.wr_start()
    a.wr_send()
    a.wr_abort()
    return bool(w.cq.poll() == (0, []))


def window_by_calls(w: World) -> bool:
    """Bound, written through, and taken away by the other side's SEND and by a request of its own."""
    a, b = w.pair(q.QPEx, w.cq)
    window = m.MW(w.pd, e.IBV_MW_TYPE_2)
    key = base.inc_rkey(window.rkey)

    def post(qp: Any, call: Callable[[], None]) -> None:
        qp.wr_start()
        qp.wr_id, qp.wr_flags = 2, e.IBV_SEND_SIGNALED
        call()
        qp.wr_complete()

    post(b, lambda: b.wr_bind_mw(window, key, m.MWBindInfo(w.mr, w.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE)))
    kinds = [w.completions()[0].opcode]
    b.post_recv(w.recv())
    post(a, lambda: a.wr_send_inv(key))
    received = w.completions(2)[0]
    window.rkey = key
    post(b, lambda: b.wr_bind_mw(window, base.inc_rkey(key), m.MWBindInfo(w.mr, w.mr.buf, 64, 2)))
    w.completions()
    post(b, lambda: b.wr_local_inv(base.inc_rkey(key)))
    kinds.append(w.completions()[0].opcode)
    b.close()  # which closes the window
    a.close()
    return kinds == [e.IBV_WC_BIND_MW, e.IBV_WC_LOCAL_INV] and received.wc_flags & e.IBV_WC_WITH_INV


def inline(w: World) -> bool:
    text = ctypes.create_string_buffer(b"in one or more pieces")
    at = ctypes.addressof(text)
    pieces = [q.DataBuffer(at, 7), q.DataBuffer(at + 7, 3)]
    w.by_calls(lambda a: a.wr_send(), lambda a: a.wr_set_inline_data_list(2, pieces), receive=True)
    first = w.mr.read(10, 1024)
    w.by_calls(lambda a: a.wr_send(), lambda a: a.wr_set_inline_data(at, 4), receive=True)
    return first == b"in one or " and w.mr.read(4, 1024) == b"in o"


def datagram_by_calls(w: World) -> bool:
    a, b = w.kept = [q.QPEx(w.ctx, w.extended(e.IBV_QPT_UD, operations=4), w.attr()) for _ in range(2)]
    b.post_recv(w.recv())
    with addr.AH(w.pd, attr=w.address()) as ah:
        a.wr_start()
        a.wr_id, a.wr_flags = 2, e.IBV_SEND_SIGNALED
        a.wr_send()
        a.wr_set_ud_addr(ah, b.qp_num, QKEY)
        a.wr_set_sge(w.sge())
        a.wr_complete()
        return w.completions(2)[0].src_qp == a.qp_num


def with_immediate(*calls: Callable[[World, Any], None]) -> Exercise:
    def exercise(w: World) -> bool:
        received = w.by_calls(
            *(lambda a, call=call: call(w, a) for call in calls), lambda a: a.wr_set_sge(w.sge()), receive=True
        )[0]
        return _swapped(received.imm_data) == 7

    return exercise


def one_sided(w: World) -> bool:
    w.mr.write("one-side", 8)
    write = w.by_calls(lambda a: a.wr_rdma_write(*w.remote()), lambda a: a.wr_set_sge(w.sge()))[0]
    there = w.mr.read(8, 2048)
    pieces = [w.sge(4, 512), w.sge(4, 600)]
    read = w.by_calls(lambda a: a.wr_rdma_read(*w.remote()), lambda a: a.wr_set_sge_list(2, pieces))[0]
    assert (w.mr.read(4, 512), w.mr.read(4, 600)) == (b"one-", b"side")
    return (write.opcode, read.opcode, there) == (e.IBV_WC_RDMA_WRITE, e.IBV_WC_RDMA_READ, b"one-side")


def sent(w: World) -> bool:
    w.mr.write("by calls", 8)
    received, done = w.by_calls(lambda a: a.wr_send(), lambda a: a.wr_set_sge(w.sge()), receive=True)
    return done.wr_id == 2 and received.byte_len == 8 and w.mr.read(8, 1024) == b"by calls"


def queried(w: World) -> bool:
    attr, init = w.a.query(e.IBV_QP_STATE | e.IBV_QP_AV | e.IBV_QP_CAP)
    assert attr.ah_attr.dlid == w.port.lid
    assert "RTS" in str(attr)
    return attr.dest_qp_num == w.b.qp_num and init.max_recv_wr == attr.cap.max_recv_wr == 16


OFFERED |= {
    "qp.QP(pd)": lambda w: q.QP(w.pd, w.plain()).qp_state == e.IBV_QPS_RESET,
    "qp.QP(ctx)": lambda w: q.QP(w.ctx, w.extended()).qp_type == e.IBV_QPT_RC,
    "qp.QP(attr)": created_ready,
    "qp.QP.to_init": moved,
    "qp.QP.to_rtr": moved,
    "qp.QP.to_rts": moved,
    "qp.QP.modify": moved,
    "qp.QP.query": queried,
    "qp.QP.post_send": transported,
    "qp.QP.post_recv": transported,
    "qp.QP.bind_mw": bound_window,
    "qp.QP.query_data_in_order": lambda w: w.a.query_data_in_order(e.IBV_WR_RDMA_WRITE) == 1,
    "qp.QP.set_ece": lambda w: w.a.set_ece(q.ECE()) is None,
    "qp.QPEx": lambda w: isinstance(q.QPEx(w.ctx, w.extended()), q.QP),
    "qp.QPCap": lambda w: (q.QPCap().max_send_wr, q.QPCap().max_recv_wr, q.QPCap().max_inline_data) == (1, 10, 0),
    "qp.QPInitAttr": lambda w: (q.QPInitAttr().qp_type, q.QPInitAttr().sq_sig_all) == (e.IBV_QPT_UD, 1),
    "qp.QPInitAttrEx": lambda w: (q.QPInitAttrEx().qp_type, q.QPInitAttrEx().sq_sig_all) == (e.IBV_QPT_UD, 0),
    "qp.QPAttr": lambda w: (q.QPAttr().qp_state, q.QPAttr().timeout, q.QPAttr().port_num) == (e.IBV_QPS_INIT, 0, 1),
    "qp.ECE": lambda w: q.ECE(1, 2, 3).options == 2,
    "qp.QPRateLimitAttr": lambda w: q.QPRateLimitAttr(rate_limit=5).rate_limit == 5,
    "qp.DataBuffer": inline,
    "qp.QPEx.wr_start": sent,
    "qp.QPEx.wr_complete": sent,
    "qp.QPEx.wr_abort": aborted,
    "qp.QPEx.wr_id": sent,
    "qp.QPEx.wr_flags": sent,
    "qp.QPEx.wr_rdma_write": one_sided,
    "qp.QPEx.wr_rdma_write_imm": with_immediate(lambda w, a: a.wr_rdma_write_imm(*w.remote(), 7)),
    "qp.QPEx.wr_rdma_read": one_sided,
    "qp.QPEx.wr_send": sent,
    "qp.QPEx.wr_send_imm": with_immediate(lambda w, a: a.wr_send_imm(7)),
    "qp.QPEx.wr_send_inv": window_by_calls,
    "qp.QPEx.wr_atomic_cmp_swp": atomic("wr_atomic_cmp_swp", 5, 7),
    "qp.QPEx.wr_atomic_fetch_add": atomic("wr_atomic_fetch_add", 2),
    "qp.QPEx.wr_local_inv": window_by_calls,
    "qp.QPEx.wr_bind_mw": window_by_calls,
    "qp.QPEx.wr_set_sge": sent,
    "qp.QPEx.wr_set_sge_list": one_sided,
    "qp.QPEx.wr_set_inline_data": inline,
    "qp.QPEx.wr_set_inline_data_list": inline,
    "qp.QPEx.wr_set_ud_addr": datagram_by_calls,
}
NOT_OFFERED |= {
    "qp.QP(cmid)": lambda w: q.QP(cmid.CMID(), w.plain()),
    "qp.QP.query_ece": lambda w: w.a.query_ece(),
    "qp.QPEx.wr_send_tso": lambda w: q.QPEx(w.ctx, w.extended()).wr_send_tso(0, 0, 0),
    "qp.QPEx.wr_atomic_write": lambda w: q.QPEx(w.ctx, w.extended()).wr_atomic_write(*w.remote(), bytes(8)),
    "qp.QPEx.wr_flush": lambda w: q.QPEx(w.ctx, w.extended()).wr_flush(*w.remote(), 8, 1, 0),
    "qp.QPEx.wr_set_xrc_srqn": lambda w: q.QPEx(w.ctx, w.extended()).wr_set_xrc_srqn(1),
}
