"""The RC state table, row by row, and the all-or-nothing rule of modify_qp."""

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
from fauxrdma.ib.qp_states import TRANSITIONS, check_modify

RC = QpType.IBV_QPT_RC
CASES = [(old, new, t) for (old, new), t in TRANSITIONS[RC].items()]
BITS = [bit for bit in M if bit not in (M.IBV_QP_STATE, M.IBV_QP_CUR_STATE)]


@pytest.mark.parametrize(("old", "new", "transition"), CASES)
def test_required_attributes_suffice(old: S, new: S, transition: object) -> None:
    required = TRANSITIONS[RC][old, new].required
    assert check_modify(RC, old, required | M.IBV_QP_STATE, new) is new


@pytest.mark.parametrize(("old", "new", "transition"), CASES)
def test_each_missing_attribute_is_named(old: S, new: S, transition: object) -> None:
    required = TRANSITIONS[RC][old, new].required
    for bit in BITS:
        if bit & required:
            with pytest.raises(VerbsError, match=str(bit.name)) as caught:
                check_modify(RC, old, (required & ~bit) | M.IBV_QP_STATE, new)
            assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(("old", "new", "transition"), CASES)
def test_each_foreign_attribute_is_refused(old: S, new: S, transition: object) -> None:
    allowed = TRANSITIONS[RC][old, new].required | TRANSITIONS[RC][old, new].optional
    for bit in BITS:
        if not bit & allowed:
            with pytest.raises(VerbsError, match="does not take"):
                check_modify(RC, old, TRANSITIONS[RC][old, new].required | bit | M.IBV_QP_STATE, new)


@given(st.sampled_from(list(S)), st.sampled_from(list(S)))
def test_only_the_transitions_of_the_table_exist(old: S, new: S) -> None:
    everything = M(0)
    for bit in BITS:
        everything |= bit
    if new in (S.IBV_QPS_RESET, S.IBV_QPS_ERR):
        assert check_modify(RC, old, M.IBV_QP_STATE, new) is new
    elif (old, new) not in TRANSITIONS[RC]:
        with pytest.raises(VerbsError, match="not a legal transition"):
            check_modify(RC, old, everything | M.IBV_QP_STATE, new)


def test_a_wrong_belief_about_the_state_is_refused() -> None:
    mask = M.IBV_QP_STATE | M.IBV_QP_CUR_STATE
    with pytest.raises(VerbsError, match="cur_qp_state says IBV_QPS_SQD"):
        check_modify(RC, S.IBV_QPS_RTS, mask, S.IBV_QPS_RTS, S.IBV_QPS_SQD)


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", 32), ("retry_cnt", 8), ("rnr_retry", -1), ("min_rnr_timer", 32), ("rq_psn", 1 << 24), ("path_mtu", 0),
     ("port_num", 2), ("max_rd_atomic", 17), ("dest_qp_num", 1 << 24), ("pkey_index", 1)],
)  # fmt: skip
def test_values_out_of_range_are_named(name: str, value: int) -> None:
    attr = QPAttr()
    setattr(attr, name, value)
    with pytest.raises(VerbsError, match=f"{name} is {value}"):
        attr.check_ranges()


def test_timers() -> None:
    assert ack_timeout_ns(0) == 0
    assert ack_timeout_ns(14) == 4096 * 2**14  # 67 ms
    assert RNR_TIMER_NS[0] == 655_360_000
    assert RNR_TIMER_NS[1] == 10_000
    assert RNR_TIMER_NS[12] == 640_000
    assert len(RNR_TIMER_NS) == 32
    assert list(RNR_TIMER_NS[1:]) == sorted(RNR_TIMER_NS[1:])
