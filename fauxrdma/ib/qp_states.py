"""The queue-pair state table: which transitions exist and which attributes each needs (IBTA vol. 1, 10.3.1; the
`ibv_modify_qp` man page; Linux' `ib_modify_qp_is_ok`).

A queue pair is brought up RESET -> INIT -> RTR -> RTS. It may receive from RTR on and send from RTS on. SQD drains the
send queue and comes back to RTS. A local error of a send takes an unreliable queue pair (UC, UD) only to SQE, where it
still receives and from where RTS is one step; a reliable one goes to ERR. Any state may go to ERR or RESET.
:func:`check_modify` applies the rule that makes `modify_qp` predictable: an attribute that is missing or not allowed
means EINVAL and *nothing* is changed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import QpAttrMask as M
from fauxrdma.ib.enums import QpState as S
from fauxrdma.ib.enums import QpType

__all__ = ["TRANSITIONS", "Transition", "check_modify", "check_type"]


_NONE = M(0)


@dataclass(frozen=True, slots=True)
class Transition:
    """Attributes of one transition: all of `required` must be in the mask, and nothing outside `required | optional`
    (IBV_QP_STATE apart)."""

    required: M
    optional: M = _NONE


_RESET, _INIT, _RTR, _RTS, _SQD, _SQE = (
    S.IBV_QPS_RESET, S.IBV_QPS_INIT, S.IBV_QPS_RTR, S.IBV_QPS_RTS, S.IBV_QPS_SQD, S.IBV_QPS_SQE,
)  # fmt: skip
_Table = dict[tuple[S, S], Transition]

_DRAIN = Transition(_NONE, M.IBV_QP_EN_SQD_ASYNC_NOTIFY)
_CONNECTED_INIT = M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_ACCESS_FLAGS
_DATAGRAM_INIT = M.IBV_QP_PKEY_INDEX | M.IBV_QP_PORT | M.IBV_QP_QKEY
_PATH = M.IBV_QP_AV | M.IBV_QP_PATH_MTU | M.IBV_QP_DEST_QPN | M.IBV_QP_RQ_PSN
_CONNECTED_RTR_OPT = M.IBV_QP_ALT_PATH | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX
_UC_RTS_OPT = M.IBV_QP_CUR_STATE | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_ALT_PATH | M.IBV_QP_PATH_MIG_STATE
_RC_RTS_OPT = _UC_RTS_OPT | M.IBV_QP_MIN_RNR_TIMER
_UD_RTS_OPT = M.IBV_QP_CUR_STATE | M.IBV_QP_QKEY
_UC_SQD_OPT = M.IBV_QP_AV | M.IBV_QP_ALT_PATH | M.IBV_QP_ACCESS_FLAGS | M.IBV_QP_PKEY_INDEX | M.IBV_QP_PATH_MIG_STATE
_RC_SQD_OPT = (
    _UC_SQD_OPT
    | M.IBV_QP_PORT
    | M.IBV_QP_TIMEOUT
    | M.IBV_QP_RETRY_CNT
    | M.IBV_QP_RNR_RETRY
    | M.IBV_QP_MAX_QP_RD_ATOMIC
    | M.IBV_QP_MAX_DEST_RD_ATOMIC
    | M.IBV_QP_MIN_RNR_TIMER
)

_RC: _Table = {
    (_RESET, _INIT): Transition(_CONNECTED_INIT),
    (_INIT, _INIT): Transition(_NONE, _CONNECTED_INIT),
    (_INIT, _RTR): Transition(
        _PATH | M.IBV_QP_MAX_DEST_RD_ATOMIC | M.IBV_QP_MIN_RNR_TIMER, _CONNECTED_RTR_OPT
    ),
    (_RTR, _RTS): Transition(
        M.IBV_QP_SQ_PSN
        | M.IBV_QP_TIMEOUT
        | M.IBV_QP_RETRY_CNT
        | M.IBV_QP_RNR_RETRY
        | M.IBV_QP_MAX_QP_RD_ATOMIC,
        _RC_RTS_OPT,
    ),
    (_RTS, _RTS): Transition(_NONE, _RC_RTS_OPT),
    (_RTS, _SQD): _DRAIN,
    (_SQD, _SQD): Transition(_NONE, _RC_SQD_OPT),
    (_SQD, _RTS): Transition(_NONE, _RC_RTS_OPT),
}  # fmt: skip

_UC: _Table = {
    (_RESET, _INIT): Transition(_CONNECTED_INIT),
    (_INIT, _INIT): Transition(_NONE, _CONNECTED_INIT),
    (_INIT, _RTR): Transition(_PATH, _CONNECTED_RTR_OPT),
    (_RTR, _RTS): Transition(M.IBV_QP_SQ_PSN, _UC_RTS_OPT),
    (_RTS, _RTS): Transition(_NONE, _UC_RTS_OPT),
    (_RTS, _SQD): _DRAIN,
    (_SQD, _SQD): Transition(_NONE, _UC_SQD_OPT),
    (_SQD, _RTS): Transition(_NONE, _UC_RTS_OPT),
    (_SQE, _RTS): Transition(_NONE, M.IBV_QP_CUR_STATE | M.IBV_QP_ACCESS_FLAGS),
}

_UD: _Table = {
    (_RESET, _INIT): Transition(_DATAGRAM_INIT),
    (_INIT, _INIT): Transition(_NONE, _DATAGRAM_INIT),
    (_INIT, _RTR): Transition(_NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_QKEY),
    (_RTR, _RTS): Transition(M.IBV_QP_SQ_PSN, _UD_RTS_OPT),
    (_RTS, _RTS): Transition(_NONE, _UD_RTS_OPT),
    (_RTS, _SQD): _DRAIN,
    (_SQD, _SQD): Transition(_NONE, M.IBV_QP_PKEY_INDEX | M.IBV_QP_QKEY),
    (_SQD, _RTS): Transition(_NONE, _UD_RTS_OPT),
    (_SQE, _RTS): Transition(_NONE, _UD_RTS_OPT),
}

TRANSITIONS: dict[QpType, _Table] = {QpType.IBV_QPT_RC: _RC, QpType.IBV_QPT_UC: _UC, QpType.IBV_QPT_UD: _UD}
"""Every legal transition by transport. To ERR and to RESET are legal from every state and need only IBV_QP_STATE."""

_OTHER_TYPES = {8: "IBV_QPT_RAW_PACKET", 9: "IBV_QPT_XRC_SEND", 10: "IBV_QPT_XRC_RECV", 0xFF: "IBV_QPT_DRIVER"}


def check_type(qp_type: int) -> QpType:
    """The queue pair type. Raises VerbsError: EOPNOTSUPP for types libibverbs knows and no emulated HCA has (XRC, raw
    packet, driver), EINVAL for numbers that are no type."""
    try:
        return QpType(qp_type)
    except ValueError:
        pass
    have = ", ".join(known.name for known in QpType)
    other = _OTHER_TYPES.get(qp_type)
    if other is not None:
        raise VerbsError(errno.EOPNOTSUPP, f"Failed to create QP: this device has no {other} queue pairs, use {have}")
    raise VerbsError(errno.EINVAL, f"Failed to create QP: {qp_type} is not a queue pair type, use {have}")


_KNOWN = sum(int(member) for member in M)


def check_modify(qp_type: QpType, current: S, mask: M, target: S | None, cur_state: S | None = None) -> S:
    """The state `modify_qp` leads to. Raises VerbsError(EINVAL), naming the attributes, when it is not allowed.

    `target` is the requested state when IBV_QP_STATE is in `mask`, else None (a change of attributes in place).
    `cur_state` is what the caller believes the state to be, when IBV_QP_CUR_STATE is in `mask`.
    """
    if mask & M.IBV_QP_CUR_STATE and cur_state is not None and cur_state != current:
        raise VerbsError(
            errno.EINVAL, f"Failed to modify QP: it is in {current.name}, cur_qp_state says {cur_state.name}"
        )
    unknown = int(mask) & ~_KNOWN
    if unknown:
        raise VerbsError(errno.EINVAL, f"Failed to modify QP: attr_mask has unknown bits 0x{unknown:x}")
    new = current if target is None else target
    given = mask & ~M.IBV_QP_STATE
    if new in (S.IBV_QPS_RESET, S.IBV_QPS_ERR):
        transition = Transition(_NONE)
    else:
        found = TRANSITIONS[qp_type].get((current, new))
        if found is None:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to modify QP: {current.name} to {new.name} is not a legal transition of {qp_type.name}; "
                f"from {current.name} it may go to {_moves(qp_type, current)}",
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


def _moves(qp_type: QpType, current: S) -> str:
    targets = [new for old, new in TRANSITIONS[qp_type] if old == current]
    return ", ".join(state.name for state in (*targets, S.IBV_QPS_ERR, S.IBV_QPS_RESET))


def _names(mask: M) -> str:
    return ", ".join(member.name or "" for member in M if member & mask)
