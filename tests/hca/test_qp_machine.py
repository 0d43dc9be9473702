"""The queue pair machine of every transport, row by row, on real queue pairs: what moves, what is refused whole, what
may be posted where (REFERENCE A1; tests/ib holds the table itself to the man page)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import AHAttr, QPAttr
from fauxrdma.ib.enums import IBV_QP_STATE, IBV_WC_WR_FLUSH_ERR, IBV_WR_SEND, QpAttrMask, QpState, QpType
from fauxrdma.ib.qp_states import TRANSITIONS
from fauxrdma.sim.world import SimQp, World

M = QpAttrMask
S = QpState
ROWS = [(kind, old, new) for kind, table in TRANSITIONS.items() for old, new in table]
ALL_STATES = [
    (kind, state) for kind in QpType for state in S if not (kind == QpType.IBV_QPT_RC and state == S.IBV_QPS_SQE)
]
WAY = (S.IBV_QPS_INIT, S.IBV_QPS_RTR, S.IBV_QPS_RTS)


def attributes(**fields: Any) -> QPAttr:
    return QPAttr(
        dest_qp_num=77, ah_attr=AHAttr(2), qp_access_flags=7, qkey=5, rq_psn=10, sq_psn=20, max_rd_atomic=3,
        max_dest_rd_atomic=2, timeout=9, retry_cnt=6, rnr_retry=5, min_rnr_timer=4, path_mtu=4, **fields,
    )  # fmt: skip


def queue_pair(kind: QpType, state: QpState) -> tuple[World, SimQp]:
    """A queue pair that has come to `state` by legal moves."""
    world = World(2)
    qp = world.hcas[0].create_qp(qp_type=kind)
    now = S.IBV_QPS_RESET
    if state == S.IBV_QPS_ERR:
        world.modify(qp, QPAttr(qp_state=S.IBV_QPS_ERR), IBV_QP_STATE)
    elif state != S.IBV_QPS_RESET:
        for step in WAY:
            world.modify(qp, attributes(qp_state=step), TRANSITIONS[kind][now, step].required | IBV_QP_STATE)
            now = step
            if step == state:
                break
    if state == S.IBV_QPS_SQD:
        world.modify(qp, QPAttr(qp_state=S.IBV_QPS_SQD), IBV_QP_STATE)
    elif state == S.IBV_QPS_SQE:
        qp.post_send(SendWqe(0, 0, IBV_WR_SEND, 2, ((1, 1, 1),)))
        world.run()
        world.hcas[0].completions.clear()
    assert qp.qp.state == state
    return world, qp


@pytest.mark.parametrize(("kind", "old", "new"), ROWS)
def test_each_row_moves_and_what_is_set_is_there(kind: QpType, old: QpState, new: QpState) -> None:
    world, qp = queue_pair(kind, old)
    row = TRANSITIONS[kind][old, new]
    taken = (row.required | row.optional) & ~(M.IBV_QP_CUR_STATE | M.IBV_QP_ALT_PATH | M.IBV_QP_PATH_MIG_STATE)
    world.modify(qp, attributes(qp_state=new), taken | IBV_QP_STATE)
    assert qp.qp.state == new
    wanted, got = attributes(), qp.qp.attr
    for bit, name in (
        (M.IBV_QP_ACCESS_FLAGS, "qp_access_flags"), (M.IBV_QP_QKEY, "qkey"), (M.IBV_QP_AV, "ah_attr"),
        (M.IBV_QP_PATH_MTU, "path_mtu"), (M.IBV_QP_TIMEOUT, "timeout"), (M.IBV_QP_RETRY_CNT, "retry_cnt"),
        (M.IBV_QP_RNR_RETRY, "rnr_retry"), (M.IBV_QP_RQ_PSN, "rq_psn"), (M.IBV_QP_SQ_PSN, "sq_psn"),
        (M.IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic"), (M.IBV_QP_MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic"),
        (M.IBV_QP_MIN_RNR_TIMER, "min_rnr_timer"), (M.IBV_QP_DEST_QPN, "dest_qp_num"),
    ):  # fmt: skip
        if bit & taken:
            assert getattr(got, name) == getattr(wanted, name), name


@pytest.mark.parametrize(("kind", "old", "new"), ROWS)
def test_a_row_that_lacks_an_attribute_changes_nothing(kind: QpType, old: QpState, new: QpState) -> None:
    world, qp = queue_pair(kind, old)
    before = replace(qp.qp.attr)
    required = TRANSITIONS[kind][old, new].required
    for bit in M:
        if bit & required:
            with pytest.raises(VerbsError, match=str(bit.name)):
                world.modify(qp, attributes(qp_state=new), (required & ~bit) | IBV_QP_STATE)
            assert (qp.qp.state, qp.qp.attr) == (old, before)
    out_of_range = replace(attributes(qp_state=new), sq_psn=1 << 24, pkey_index=9, qkey=-1)
    for bit in (M.IBV_QP_SQ_PSN, M.IBV_QP_PKEY_INDEX, M.IBV_QP_QKEY):
        if bit & required:
            with pytest.raises(VerbsError, match="legal are"):
                world.modify(qp, out_of_range, required | IBV_QP_STATE)
            assert (qp.qp.state, qp.qp.attr) == (old, before)


@pytest.mark.parametrize(("kind", "state"), ALL_STATES)
def test_from_every_state_to_every_state(kind: QpType, state: QpState) -> None:
    for target in S:
        world, qp = queue_pair(kind, state)
        row = TRANSITIONS[kind].get((state, target))
        if target in (S.IBV_QPS_RESET, S.IBV_QPS_ERR):
            world.modify(qp, QPAttr(qp_state=target), IBV_QP_STATE)
            assert qp.qp.state == target
        elif row is None:
            before = replace(qp.qp.attr)
            with pytest.raises(VerbsError, match=r"it may go to .*IBV_QPS_ERR, IBV_QPS_RESET"):
                world.modify(qp, attributes(qp_state=target), IBV_QP_STATE)
            assert (qp.qp.state, qp.qp.attr) == (state, before)


@pytest.mark.parametrize("kind", list(QpType))
@pytest.mark.parametrize("state", [S.IBV_QPS_INIT, S.IBV_QPS_RTR, S.IBV_QPS_RTS, S.IBV_QPS_SQD, S.IBV_QPS_SQE])
@pytest.mark.parametrize("end", [S.IBV_QPS_ERR, S.IBV_QPS_RESET])
def test_err_flushes_what_is_posted_in_order_and_reset_forgets_it(kind: QpType, state: QpState, end: QpState) -> None:
    if (kind, state) == (QpType.IBV_QPT_RC, S.IBV_QPS_SQE):
        return
    world, qp = queue_pair(kind, state)
    for wr_id in range(3):
        qp.post_recv(wr_id)
    if state == S.IBV_QPS_SQD:
        for wr_id in range(10, 13):
            qp.post_send(SendWqe(0, wr_id, IBV_WR_SEND, 2))
    world.run()
    assert qp.completions == []
    world.modify(qp, QPAttr(qp_state=end), IBV_QP_STATE)
    flushed = [(wc.wr_id, wc.status) for wc in qp.completions]
    sends = [10, 11, 12] if state == S.IBV_QPS_SQD else []
    expected = [] if end == S.IBV_QPS_RESET else [(wr_id, IBV_WC_WR_FLUSH_ERR) for wr_id in (*sends, 0, 1, 2)]
    assert flushed == expected
    assert (len(qp.sq), len(qp.rq)) == (0, 0)
    if end == S.IBV_QPS_ERR:  # and what is posted then is flushed at once
        qp.post_recv(3)
        qp.post_send(SendWqe(0, 13, IBV_WR_SEND, 0))
        assert [(wc.wr_id, wc.status) for wc in qp.completions[len(expected) :]] == [(3, 5), (13, 5)]
    else:
        assert qp.qp.attr == QPAttr()


@pytest.mark.parametrize("kind", list(QpType))
def test_sqd_sends_nothing_new_and_rts_goes_on(kind: QpType) -> None:
    world, qp = queue_pair(kind, S.IBV_QPS_SQD)
    if kind == QpType.IBV_QPT_UD:
        world.hcas[0].create_ah(AHAttr(2))
    qp.post_send(SendWqe(0, 1, IBV_WR_SEND, 2, handle=1))
    world.run()
    assert not any("->lid" in line for line in world.trace)
    world.modify(qp, QPAttr(qp_state=S.IBV_QPS_RTS), IBV_QP_STATE)
    world.run(until=lambda: any("->lid2" in line for line in world.trace))
    assert any("->lid2" in line for line in world.trace)


@given(
    st.sampled_from(list(QpType)),
    st.lists(
        st.one_of(
            st.tuples(st.just("modify"), st.sampled_from(list(S)), st.booleans()),
            st.tuples(st.just("send"), st.booleans(), st.booleans()),
            st.tuples(st.just("receive"), st.booleans(), st.booleans()),
        ),
        max_size=25,
    ),
)
def test_state_by_input_is_a_legal_state_or_an_error_that_names_the_moves(
    kind: QpType, moves: list[tuple[str, Any, bool]]
) -> None:
    """Whatever is asked for in whatever order: the state is the one the table says, every request that was not
    forgotten in RESET completes once, in the order of its queue."""
    world = World(2)
    qp = world.hcas[0].create_qp(qp_type=kind)
    state = S.IBV_QPS_RESET
    sends: list[int] = []
    receives: list[int] = []
    first = 0
    for number, (what, value, full) in enumerate(moves):
        if what == "modify":
            row = TRANSITIONS[kind].get((state, value))
            mask = IBV_QP_STATE | (row.required if row is not None and full else M(0))
            legal = value in (S.IBV_QPS_RESET, S.IBV_QPS_ERR) or (row is not None and not row.required & ~mask)
            if legal:
                world.modify(qp, attributes(qp_state=value), mask)
                state = value
            else:
                with pytest.raises(VerbsError, match=r"it may go to .*IBV_QPS_RESET|also needs IBV_QP_"):
                    world.modify(qp, attributes(qp_state=value), mask)
        elif what == "send" and state not in (S.IBV_QPS_RESET, S.IBV_QPS_INIT, S.IBV_QPS_RTR):
            # On an unreliable queue pair: one whose SGE is no good, so that RTS becomes SQE.
            bad = kind != QpType.IBV_QPT_RC
            sends.append(number)
            qp.post_send(SendWqe(0, number, IBV_WR_SEND, 2, ((1, 1, 1),) if bad else ()))
        elif what == "receive" and state != S.IBV_QPS_RESET:
            receives.append(number)
            qp.post_recv(number)
        if kind != QpType.IBV_QPT_RC:
            world.run()
            if state == S.IBV_QPS_RTS and qp.qp.state == S.IBV_QPS_SQE:
                state = S.IBV_QPS_SQE
        assert qp.qp.state == state
        if state == S.IBV_QPS_RESET:
            sends.clear()
            receives.clear()
            first = len(qp.completions)
    world.modify(qp, QPAttr(qp_state=S.IBV_QPS_ERR), IBV_QP_STATE)
    done = qp.completions[first:]
    assert [wc.wr_id for wc in done if not wc.is_receive] == sends
    assert [wc.wr_id for wc in done if wc.is_receive] == receives
