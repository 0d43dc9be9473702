"""The state tables of RC, UC and UD, row by row, and the all-or-nothing rule of modify_qp.

The rows are written out here a second time, as one reads them in the ibv_modify_qp man page and in Linux'
`ib_modify_qp_is_ok`, so that a slip in the table of the code is not copied into its test.
"""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import RNR_TIMER_NS, QPAttr, ack_timeout_ns
from fauxrdma.ib.enums import QpAttrMask as M
from fauxrdma.ib.enums import QpState as S
from fauxrdma.ib.enums import QpType
from fauxrdma.ib.qp_states import TRANSITIONS, check_modify, check_type

RC, UC, UD = QpType.IBV_QPT_RC, QpType.IBV_QPT_UC, QpType.IBV_QPT_UD
BITS = [bit for bit in M if bit != M.IBV_QP_STATE]

# type, from, to, required, optional
ROWS = """
RC RESET INIT | PKEY_INDEX PORT ACCESS_FLAGS |
UC RESET INIT | PKEY_INDEX PORT ACCESS_FLAGS |
UD RESET INIT | PKEY_INDEX PORT QKEY |
RC INIT INIT | | PKEY_INDEX PORT ACCESS_FLAGS
UC INIT INIT | | PKEY_INDEX PORT ACCESS_FLAGS
UD INIT INIT | | PKEY_INDEX PORT QKEY
RC INIT RTR | AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER | ALT_PATH ACCESS_FLAGS PKEY_INDEX
UC INIT RTR | AV PATH_MTU DEST_QPN RQ_PSN | ALT_PATH ACCESS_FLAGS PKEY_INDEX
UD INIT RTR | | PKEY_INDEX QKEY
RC RTR RTS | SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
UC RTR RTS | SQ_PSN | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UD RTR RTS | SQ_PSN | CUR_STATE QKEY
RC RTS RTS | | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
UC RTS RTS | | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UD RTS RTS | | CUR_STATE QKEY
RC RTS SQD | | EN_SQD_ASYNC_NOTIFY
UC RTS SQD | | EN_SQD_ASYNC_NOTIFY
UD RTS SQD | | EN_SQD_ASYNC_NOTIFY
RC SQD SQD | | PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE
UC SQD SQD | | AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE
UD SQD SQD | | PKEY_INDEX QKEY
RC SQD RTS | | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER
UC SQD RTS | | CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE
UD SQD RTS | | CUR_STATE QKEY
UC SQE RTS | | CUR_STATE ACCESS_FLAGS
UD SQE RTS | | CUR_STATE QKEY
"""  # noqa: E501


def _mask(names: str) -> M:
    mask = M(0)
    for name in names.split():
        mask |= M[f"IBV_QP_{name}"]
    return mask


CASES = []
for row in ROWS.strip().splitlines():
    head, needs, takes = row.split("|")
    transport, start, end = head.split()
    CASES.append(
        (QpType[f"IBV_QPT_{transport}"], S[f"IBV_QPS_{start}"], S[f"IBV_QPS_{end}"], _mask(needs), _mask(takes))
    )
each_row = pytest.mark.parametrize(("transport", "old", "new", "required", "optional"), CASES)


@each_row
def test_required_attributes_suffice_and_optional_ones_are_taken(
    transport: QpType, old: S, new: S, required: M, optional: M
) -> None:
    assert check_modify(transport, old, required | M.IBV_QP_STATE, new) is new
    for bit in BITS:
        if bit & optional:
            assert check_modify(transport, old, required | bit | M.IBV_QP_STATE, new) is new
    assert check_modify(transport, old, required | optional | M.IBV_QP_STATE, new, old) is new


@each_row
def test_each_missing_attribute_is_named(transport: QpType, old: S, new: S, required: M, optional: M) -> None:
    for bit in BITS:
        if bit & required:
            with pytest.raises(VerbsError, match=f"also needs {bit.name}\\. ") as caught:
                check_modify(transport, old, (required & ~bit) | M.IBV_QP_STATE, new)
            assert caught.value.errno == errno.EINVAL


@each_row
def test_each_foreign_attribute_is_refused(transport: QpType, old: S, new: S, required: M, optional: M) -> None:
    for bit in BITS:
        if not bit & (required | optional):
            with pytest.raises(VerbsError, match=f"does not take {bit.name}\\. ") as caught:
                check_modify(transport, old, required | bit | M.IBV_QP_STATE, new, old)
            assert caught.value.errno == errno.EINVAL


def test_the_table_has_these_rows_and_no_others() -> None:
    assert {(t, old, new) for t, table in TRANSITIONS.items() for old, new in table} == {case[:3] for case in CASES}


@given(st.sampled_from([RC, UC, UD]), st.sampled_from(list(S)), st.sampled_from(list(S)))
def test_state_by_state_either_a_row_or_an_error_that_names_the_moves(transport: QpType, old: S, new: S) -> None:
    if new in (S.IBV_QPS_RESET, S.IBV_QPS_ERR):
        assert check_modify(transport, old, M.IBV_QP_STATE, new) is new
        return
    rows = [case for case in CASES if case[:3] == (transport, old, new)]
    if rows:
        assert check_modify(transport, old, rows[0][3] | M.IBV_QP_STATE, new) is new
        return
    with pytest.raises(VerbsError, match=f"not a legal transition of {transport.name}") as caught:
        check_modify(transport, old, ~M(0) & ~M.IBV_QP_CUR_STATE, new)
    named = str(caught.value).split("it may go to ")[1].split(".")[0]
    legal = {case[2].name for case in CASES if case[:2] == (transport, old)} | {"IBV_QPS_ERR", "IBV_QPS_RESET"}
    assert set(named.split(", ")) == legal


def test_attributes_change_in_place_only_as_the_table_says() -> None:
    assert check_modify(UD, S.IBV_QPS_RTS, M.IBV_QP_QKEY, None) is S.IBV_QPS_RTS
    with pytest.raises(VerbsError, match="does not take IBV_QP_QKEY"):
        check_modify(RC, S.IBV_QPS_RTS, M.IBV_QP_QKEY, None)
    with pytest.raises(VerbsError, match="IBV_QPS_RTR to IBV_QPS_RTR is not a legal transition"):
        check_modify(UD, S.IBV_QPS_RTR, M.IBV_QP_QKEY, None)


def test_a_wrong_belief_about_the_state_is_refused() -> None:
    mask = M.IBV_QP_STATE | M.IBV_QP_CUR_STATE
    with pytest.raises(VerbsError, match="cur_qp_state says IBV_QPS_SQD"):
        check_modify(RC, S.IBV_QPS_RTS, mask, S.IBV_QPS_RTS, S.IBV_QPS_SQD)


@pytest.mark.parametrize(("number", "name"), [(8, "RAW_PACKET"), (9, "XRC_SEND"), (10, "XRC_RECV"), (255, "DRIVER")])
def test_types_this_device_has_not_are_named(number: int, name: str) -> None:
    with pytest.raises(VerbsError, match=f"no IBV_QPT_{name} queue pairs") as caught:
        check_type(number)
    assert caught.value.errno == errno.EOPNOTSUPP


def test_what_is_no_type_is_invalid() -> None:
    with pytest.raises(VerbsError, match="77 is not a queue pair type") as caught:
        check_type(77)
    assert caught.value.errno == errno.EINVAL
    assert [check_type(number) for number in (2, 3, 4)] == [RC, UC, UD]


@pytest.mark.parametrize(
    ("name", "value", "bit"),
    [("timeout", 32, M.IBV_QP_TIMEOUT), ("retry_cnt", 8, M.IBV_QP_RETRY_CNT), ("rnr_retry", -1, M.IBV_QP_RNR_RETRY),
     ("min_rnr_timer", 32, M.IBV_QP_MIN_RNR_TIMER), ("rq_psn", 1 << 24, M.IBV_QP_RQ_PSN),
     ("sq_psn", -1, M.IBV_QP_SQ_PSN), ("path_mtu", 0, M.IBV_QP_PATH_MTU), ("port_num", 2, M.IBV_QP_PORT),
     ("max_rd_atomic", 17, M.IBV_QP_MAX_QP_RD_ATOMIC), ("max_dest_rd_atomic", 17, M.IBV_QP_MAX_DEST_RD_ATOMIC),
     ("dest_qp_num", 1 << 24, M.IBV_QP_DEST_QPN), ("pkey_index", 1, M.IBV_QP_PKEY_INDEX),
     ("qkey", 1 << 32, M.IBV_QP_QKEY)],
)  # fmt: skip
def test_values_out_of_range_are_named_and_what_is_not_in_the_mask_is_not_looked_at(
    name: str, value: int, bit: M
) -> None:
    attr = QPAttr()
    setattr(attr, name, value)
    with pytest.raises(VerbsError, match=f"{name} is {value}"):
        attr.check_ranges(bit)
    attr.check_ranges(~bit)


def test_timers() -> None:
    assert ack_timeout_ns(0) == 0
    assert ack_timeout_ns(14) == 4096 * 2**14  # 67 ms
    assert RNR_TIMER_NS[0] == 655_360_000
    assert RNR_TIMER_NS[1] == 10_000
    assert RNR_TIMER_NS[12] == 640_000
    assert len(RNR_TIMER_NS) == 32
    assert list(RNR_TIMER_NS[1:]) == sorted(RNR_TIMER_NS[1:])
