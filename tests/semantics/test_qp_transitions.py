"""REFERENCE A1, row by row: which transitions exist, what each must and may carry; a refusal changes nothing."""

from __future__ import annotations

import errno
from functools import partial

import pytest
from stages import STEPS, Queue, Stage, attributes, bring_up, refused

from fauxrdma.ib.enums import QpAttrMask, QpState, QpType
from fauxrdma.ib.work import RecvWR, SendWR

M, S, T = QpAttrMask, QpState, QpType
RC, UC, UD = T.IBV_QPT_RC, T.IBV_QPT_UC, T.IBV_QPT_UD
RESET, INIT, RTR, RTS, SQD, SQE, ERR = (QpState(i) for i in range(7))

# (required, optional) as the table says, written down a second time, from the reference and the kernel's table.
_ALT = M.IBV_QP_ALT_PATH
_RC_RTS_OPTIONAL = M.IBV_QP_ACCESS_FLAGS | _ALT | M.IBV_QP_PATH_MIG_STATE | M.IBV_QP_MIN_RNR_TIMER
_UC_RTS_OPTIONAL = M.IBV_QP_ACCESS_FLAGS | _ALT | M.IBV_QP_PATH_MIG_STATE
NONE = M(0)
TABLE: dict[tuple[QpType, QpState, QpState], tuple[QpAttrMask, QpAttrMask]] = {
    (RC, RESET, INIT): (M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS, NONE),
    (UC, RESET, INIT): (M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS, NONE),
    (UD, RESET, INIT): (M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_QKEY, NONE),
    (RC, INIT, INIT): (NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS),
    (UC, INIT, INIT): (NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS),
    (UD, INIT, INIT): (NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_QKEY),
    (RC, INIT, RTR): (
        M.IBV_QP_AV | M.IBV_QP_PATH_MTU | M.IBV_QP_DEST_QPN | M.IBV_QP_RQ_PSN
        | M.IBV_QP_MAX_DEST_RD_ATOMIC | M.IBV_QP_MIN_RNR_TIMER,
        _ALT | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX,
    ),
    (UC, INIT, RTR): (
        M.IBV_QP_AV | M.IBV_QP_PATH_MTU | M.IBV_QP_DEST_QPN | M.IBV_QP_RQ_PSN,
        _ALT | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX,
    ),
    (UD, INIT, RTR): (NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_QKEY),
    (RC, RTR, RTS): (
        M.IBV_QP_SQ_PSN | M.IBV_QP_TIMEOUT | M.IBV_QP_RETRY_CNT | M.IBV_QP_RNR_RETRY | M.IBV_QP_MAX_QP_RD_ATOMIC,
        _RC_RTS_OPTIONAL,
    ),
    (UC, RTR, RTS): (M.IBV_QP_SQ_PSN, _UC_RTS_OPTIONAL),
    (UD, RTR, RTS): (M.IBV_QP_SQ_PSN, M.IBV_QP_QKEY),
    (RC, RTS, RTS): (NONE, _RC_RTS_OPTIONAL),
    (UC, RTS, RTS): (NONE, _UC_RTS_OPTIONAL),
    (UD, RTS, RTS): (NONE, M.IBV_QP_QKEY),
    (RC, RTS, SQD): (NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (UC, RTS, SQD): (NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (UD, RTS, SQD): (NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (RC, SQD, RTS): (NONE, _RC_RTS_OPTIONAL),
    (UC, SQD, RTS): (NONE, _UC_RTS_OPTIONAL),
    (UD, SQD, RTS): (NONE, M.IBV_QP_QKEY),
}  # fmt: skip
"""Path migration is refused at the attribute, not by the table (one port); SQD to SQD is of no use here."""
_UNSUPPORTED = _ALT | M.IBV_QP_PATH_MIG_STATE
_ALL = [bit for bit in M if bit not in (M.IBV_QP_STATE, M.IBV_QP_CUR_STATE) and not bit & _UNSUPPORTED]


def in_state(queue: Queue, state: QpState) -> None:
    """Bring a fresh queue pair to this state (SQE is only reached by an error)."""
    bring_up(queue, None, min(state, RTS) if state != ERR else INIT)
    attr = attributes(queue, None)
    if state in (SQD, ERR):
        attr.qp_state = state
        queue.modify(attr, M.IBV_QP_STATE)
    assert queue.state == state


@pytest.mark.parametrize("qp_type", [RC, UC, UD], ids=lambda t: t.name)
@pytest.mark.parametrize("state", [RESET, INIT, RTR, RTS, SQD, ERR], ids=lambda s: s.name)
def test_each_transition_takes_what_the_table_says(stage: Stage, qp_type: QpType, state: QpState) -> None:
    queue = stage.a.queue(qp_type)
    in_state(queue, state)
    attr = attributes(queue, None)
    for target in (RESET, INIT, RTR, RTS, SQD, SQE, ERR):
        if (state, target) == (SQD, SQD):
            continue
        attr.qp_state = target
        row = TABLE.get((qp_type, state, target))
        if target in (RESET, ERR):
            row = (NONE, NONE)
        if row is None:
            # Not a transition: whatever comes with it, nothing happens.
            for mask in (M.IBV_QP_STATE, dict(STEPS[qp_type]).get(target, M.IBV_QP_STATE)):
                refused(errno.EINVAL, partial(queue.modify, attr, mask))
                assert queue.state == state
            continue
        required, optional = row
        for bit in _ALL:
            if bit & required:
                wrong = required & ~bit
            elif not bit & optional:
                wrong = required | bit
            else:
                continue
            error = refused(errno.EINVAL, partial(queue.modify, attr, M.IBV_QP_STATE | wrong))
            assert str(bit.name) in str(error)
            assert queue.state == state
        full = M.IBV_QP_STATE | required | (optional & ~_UNSUPPORTED)
        queue.modify(attr, full)
        assert queue.state == target
        # Back to where the next target starts from.
        attr.qp_state = RESET
        queue.modify(attr, M.IBV_QP_STATE)
        in_state(queue, state)


@pytest.mark.parametrize("stage", ["daemons"], indirect=True)  # the engine alone only sees what was posted
@pytest.mark.parametrize("qp_type", [RC, UC, UD], ids=lambda t: t.name)
def test_where_posting_is_refused(stage: Stage, qp_type: QpType) -> None:
    """RESET refuses posts; INIT and RTR refuse sends (A6). On hardware's terms: in the library, at post."""
    queue = stage.a.queue(qp_type)
    refused(errno.EINVAL, lambda: queue.post_recv(RecvWR(1)))
    for state in (RESET, INIT, RTR):
        bring_up(queue, None, state)
        refused(errno.EINVAL, lambda: queue.post_send(SendWR(1)))
        if state != RESET:
            queue.post_recv(RecvWR(1))
        attr = attributes(queue, None)
        attr.qp_state = RESET
        queue.modify(attr, M.IBV_QP_STATE)


def test_what_the_caller_believes_is_checked(stage: Stage) -> None:
    queue = stage.a.queue()
    in_state(queue, INIT)
    attr = attributes(queue, None)
    attr.qp_state, attr.cur_qp_state = ERR, RTS
    refused(errno.EINVAL, lambda: queue.modify(attr, M.IBV_QP_STATE | M.IBV_QP_CUR_STATE))
    assert queue.state == INIT


@pytest.mark.parametrize(
    ("name", "value", "mask"),
    [
        ("sq_psn", 1 << 24, M.IBV_QP_SQ_PSN),
        ("timeout", 32, M.IBV_QP_TIMEOUT),
        ("retry_cnt", 8, M.IBV_QP_RETRY_CNT),
        ("rnr_retry", 8, M.IBV_QP_RNR_RETRY),
        ("max_rd_atomic", 129, M.IBV_QP_MAX_QP_RD_ATOMIC),
        ("rq_psn", 1 << 24, M.IBV_QP_RQ_PSN),
        ("dest_qp_num", 1 << 24, M.IBV_QP_DEST_QPN),
        ("path_mtu", 6, M.IBV_QP_PATH_MTU),
        ("path_mtu", 0, M.IBV_QP_PATH_MTU),
        ("min_rnr_timer", 32, M.IBV_QP_MIN_RNR_TIMER),
        ("max_dest_rd_atomic", 129, M.IBV_QP_MAX_DEST_RD_ATOMIC),
        ("port_num", 2, M.IBV_QP_PORT),
        ("port_num", 0, M.IBV_QP_PORT),
        ("pkey_index", 200, M.IBV_QP_PKEY_INDEX),
    ],
)
def test_a_value_no_device_takes(stage: Stage, name: str, value: int, mask: QpAttrMask) -> None:
    """EINVAL that names the attribute and the value; state and attributes are what they were."""
    queue = stage.a.queue()
    for state, needed in STEPS[RC]:
        attr = attributes(queue, None)
        attr.qp_state = state
        if mask & needed:
            setattr(attr, name, value)
            before = queue.state
            error = refused(errno.EINVAL, partial(queue.modify, attr, needed))
            assert name in str(error)
            assert str(value) in str(error)
            assert queue.state == before
            return
        queue.modify(attr, needed)
    raise AssertionError(f"{name} is set nowhere")
