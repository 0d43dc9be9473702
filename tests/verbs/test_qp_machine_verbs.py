"""The queue pair machine over a daemon, row by row: every transition of every transport moves with what it requires,
is refused without, and query_qp returns what was set (REFERENCE A1)."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from pairs import End

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTR,
    IBV_QPS_RTS,
    IBV_QPS_SQD,
    IBV_QPS_SQE,
    IBV_QPT_RC,
    IBV_QPT_UD,
    IBV_WR_SEND,
    QpAttrMask,
    QpState,
    QpType,
)
from fauxrdma.ib.qp_states import TRANSITIONS
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, QP, SGE, AHAttr, QPAttr, QPInitAttr, RecvWR, SendWR

M = QpAttrMask
ROWS = [(kind, old, new) for kind, table in TRANSITIONS.items() for old, new in table]
NAMES = (
    (M.IBV_QP_ACCESS_FLAGS, "qp_access_flags"), (M.IBV_QP_QKEY, "qkey"), (M.IBV_QP_AV, "ah_attr"),
    (M.IBV_QP_PATH_MTU, "path_mtu"), (M.IBV_QP_TIMEOUT, "timeout"), (M.IBV_QP_RETRY_CNT, "retry_cnt"),
    (M.IBV_QP_RNR_RETRY, "rnr_retry"), (M.IBV_QP_RQ_PSN, "rq_psn"), (M.IBV_QP_SQ_PSN, "sq_psn"),
    (M.IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic"), (M.IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
    (M.IBV_QP_MIN_RNR_TIMER, "min_rnr_timer"), (M.IBV_QP_DEST_QPN, "dest_qp_num"),
)  # fmt: skip


@pytest.fixture(scope="module")
def end(unshaped: LocalLab) -> Iterator[End]:
    end = End(unshaped, 0)
    yield end
    end.close()


def attributes(state: QpState) -> QPAttr:
    return QPAttr(
        qp_state=state, dest_qp_num=77, ah_attr=AHAttr(2, sl=3), qp_access_flags=7, qkey=5, rq_psn=10, sq_psn=20,
        max_rd_atomic=3, max_dest_rd_atomic=2, timeout=9, retry_cnt=6, rnr_retry=5, min_rnr_timer=4, path_mtu=4,
    )  # fmt: skip


def queue_pair(end: End, kind: QpType, state: QpState) -> QP:
    qp = QP(end.pd, QPInitAttr(qp_type=kind, scq=end.cq, rcq=end.cq))
    moves = {IBV_QPS_INIT: qp.to_init, IBV_QPS_RTR: qp.to_rtr}
    if state in moves:
        moves[state](attributes(state))
    elif state == IBV_QPS_ERR:
        qp.modify(QPAttr(qp_state=state), IBV_QP_STATE)
    elif state != IBV_QPS_RESET:
        qp.to_rts(attributes(state))
    if state == IBV_QPS_SQD:
        qp.modify(QPAttr(qp_state=state), IBV_QP_STATE)
    elif state == IBV_QPS_SQE:
        wr = SendWR(1, IBV_WR_SEND, [SGE(1, 1, 1)])
        if kind == IBV_QPT_UD:
            wr.set_wr_ud(AH(end.pd, attr=AHAttr(1)), 1, 1)
        qp.post_send(wr)
        assert end.wait(1)[0].status != 0
    assert qp.qp_state == state
    return qp


@pytest.mark.parametrize(("kind", "old", "new"), ROWS)
def test_each_row(end: End, kind: QpType, old: QpState, new: QpState) -> None:
    qp = queue_pair(end, kind, old)
    row = TRANSITIONS[kind][old, new]
    before = qp.query()[0]
    for bit in M:
        if bit & row.required:
            with pytest.raises(VerbsError, match=str(bit.name)) as caught:
                qp.modify(attributes(new), (row.required & ~bit) | IBV_QP_STATE)
            assert caught.value.errno == errno.EINVAL
    assert (qp.qp_state, qp.query()[0]) == (old, before)
    taken = (row.required | row.optional) & ~(M.IBV_QP_CUR_STATE | M.IBV_QP_ALT_PATH | M.IBV_QP_PATH_MIG_STATE)
    qp.modify(attributes(new), taken | IBV_QP_STATE)
    got, wanted = qp.query()[0], attributes(new)
    assert qp.qp_state == got.qp_state == new
    for bit, name in NAMES:
        if bit & taken:
            assert getattr(got, name) == getattr(wanted, name), name
    qp.close()


@pytest.mark.parametrize("kind", list(QpType))
def test_from_every_state_to_every_state(end: End, kind: QpType) -> None:
    for old in QpState:
        if (kind, old) == (IBV_QPT_RC, IBV_QPS_SQE):
            continue
        for new in QpState:
            qp = queue_pair(end, kind, old)
            if new in (IBV_QPS_RESET, IBV_QPS_ERR):
                qp.modify(QPAttr(qp_state=new), IBV_QP_STATE)
                assert qp.qp_state == new
            elif (old, new) not in TRANSITIONS[kind]:
                with pytest.raises(VerbsError, match="is not a legal transition") as caught:
                    qp.modify(attributes(new), IBV_QP_STATE)
                assert caught.value.errno == errno.EINVAL
                assert qp.qp_state == old
            qp.close()


@pytest.mark.parametrize("kind", list(QpType))
def test_what_may_be_posted_in_each_state(end: End, kind: QpType) -> None:
    ah = AH(end.pd, attr=AHAttr(1))
    for state in QpState:
        if (kind, state) == (IBV_QPT_RC, IBV_QPS_SQE):
            continue
        qp = queue_pair(end, kind, state)
        send, receive = SendWR(1, IBV_WR_SEND, []), RecvWR(2)
        send.set_wr_ud(ah, 1, 1)
        if state == IBV_QPS_RESET:
            with pytest.raises(VerbsError, match="IBV_QPS_RESET"):
                qp.post_recv(receive)
        else:
            qp.post_recv(receive)
        if state in (IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR):
            with pytest.raises(VerbsError, match=state.name) as caught:
                qp.post_send(send)
            assert caught.value.errno == errno.EINVAL
        elif state != IBV_QPS_RTS:
            qp.post_send(send)
        if state != IBV_QPS_RESET:
            qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
            expected = [2] if state in (IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS) else [1, 2]
            assert sorted(wc.wr_id for wc in end.wait(len(expected))) == expected
        qp.close()
