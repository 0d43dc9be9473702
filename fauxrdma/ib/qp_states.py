"""The queue-pair state table: which transitions exist and which attributes each needs (IBTA vol. 1, 10.3.1; the
`ibv_modify_qp` man page).

A queue pair is brought up RESET -> INIT -> RTR -> RTS. It may receive from RTR on and send from RTS on. Any state may
go to ERR or RESET. :func:`check_modify` applies the rule that makes `modify_qp` predictable: an attribute that is
missing or not allowed means EINVAL and *nothing* is changed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import QpAttrMask as M
from fauxrdma.ib.enums import QpState as S
from fauxrdma.ib.enums import QpType

__all__ = ["TRANSITIONS", "Transition", "check_modify"]


_NONE = M(0)


@dataclass(frozen=True, slots=True)
class Transition:
    """Attributes of one transition: all of `required` must be in the mask, and nothing outside `required | optional`
    (IBV_QP_STATE and IBV_QP_CUR_STATE apart)."""

    required: M
    optional: M = _NONE


_INIT_OPT = M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS
_RTS_OPT = M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_ALT_PATH | M.IBV_QP_PATH_MIG_STATE | M.IBV_QP_MIN_RNR_TIMER

_RC: dict[tuple[S, S], Transition] = {
    (S.IBV_QPS_RESET, S.IBV_QPS_INIT): Transition(M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS),
    (S.IBV_QPS_INIT, S.IBV_QPS_INIT): Transition(_NONE, _INIT_OPT),
    (S.IBV_QPS_INIT, S.IBV_QPS_RTR): Transition(
        M.IBV_QP_AV
        | M.IBV_QP_PATH_MTU
        | M.IBV_QP_DEST_QPN
        | M.IBV_QP_RQ_PSN
        | M.IBV_QP_MAX_DEST_RD_ATOMIC
        | M.IBV_QP_MIN_RNR_TIMER,
        M.IBV_QP_ALT_PATH | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX,
    ),
    (S.IBV_QPS_RTR, S.IBV_QPS_RTS): Transition(
        M.IBV_QP_SQ_PSN
        | M.IBV_QP_TIMEOUT
        | M.IBV_QP_RETRY_CNT
        | M.IBV_QP_RNR_RETRY
        | M.IBV_QP_MAX_QP_RD_ATOMIC,
        _RTS_OPT,
    ),
    (S.IBV_QPS_RTS, S.IBV_QPS_RTS): Transition(_NONE, _RTS_OPT),
    (S.IBV_QPS_RTS, S.IBV_QPS_SQD): Transition(_NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY),
    (S.IBV_QPS_SQD, S.IBV_QPS_RTS): Transition(_NONE, _RTS_OPT),
}  # fmt: skip

TRANSITIONS: dict[QpType, dict[tuple[S, S], Transition]] = {QpType.IBV_QPT_RC: _RC}
"""Every legal transition by transport. To ERR and to RESET are legal from every state and need only IBV_QP_STATE."""


def check_modify(qp_type: QpType, current: S, mask: M, target: S | None, cur_state: S | None = None) -> S:
    """The state `modify_qp` leads to. Raises VerbsError(EINVAL), naming the attributes, when it is not allowed.

    `target` is the requested state when IBV_QP_STATE is in `mask`, else None (a change of attributes in place).
    `cur_state` is what the caller believes the state to be, when IBV_QP_CUR_STATE is in `mask`.
    """
    if mask & M.IBV_QP_CUR_STATE and cur_state is not None and cur_state != current:
        raise VerbsError(
            errno.EINVAL, f"Failed to modify QP: it is in {current.name}, cur_qp_state says {cur_state.name}"
        )
    new = current if target is None else target
    given = mask & ~(M.IBV_QP_STATE | M.IBV_QP_CUR_STATE)
    if new in (S.IBV_QPS_RESET, S.IBV_QPS_ERR):
        transition = Transition(_NONE)
    else:
        found = TRANSITIONS[qp_type].get((current, new))
        if found is None:
            raise VerbsError(
                errno.EINVAL, f"Failed to modify QP: {current.name} to {new.name} is not a legal transition"
            )
        transition = found
    missing = transition.required & ~given
    if missing:
        raise VerbsError(
            errno.EINVAL, f"Failed to modify QP: {current.name} to {new.name} also needs {_names(missing)}"
        )
    extra = given & ~(transition.required | transition.optional)
    if extra:
        raise VerbsError(
            errno.EINVAL, f"Failed to modify QP: {current.name} to {new.name} does not take {_names(extra)}"
        )
    return new


def _names(mask: M) -> str:
    return ", ".join(member.name or "" for member in M if member & mask)
