"""What an iWARP adapter (RNIC) lacks beside an InfiniBand or RoCE one, and with which errno it says so.

As the Linux drivers have it: `siw_create_qp` and cxgb4's `c4iw_create_qp` make reliable connections only (siw:
EOPNOTSUPP, "only RC QP's supported"), RNIC drivers have no address handles and no multicast (EOPNOTSUPP by the core),
`atomic_cap` is IBV_ATOMIC_NONE, and no work request has an atomic or a SEND with immediate data (EINVAL). RDMA WRITE
with immediate data is in RFC 7306 and in Chelsio's T6, and is here. A READ has one SGE (`max_sge_rd`).

What programs must do otherwise on RNICs and need not here: connect by the RDMA connection manager, whose part
`QP.connect` or RTR with an address plays; and give the memory that a READ lands in remote write access.
"""

from __future__ import annotations

import errno
from dataclasses import replace

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AtomicCap, QpType, WrOpcode
from fauxrdma.ib.profiles import HcaProfile
from fauxrdma.ib.work import OPERATIONS

__all__ = ["IWARP", "as_adapter_of", "check_offered", "operations_of"]

IWARP = "iwarp"
"""The transport, as fabrics name it."""

_LACKING = frozenset(
    (
        WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP,
        WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD,
        WrOpcode.IBV_WR_SEND_WITH_IMM,
    )
)


def as_adapter_of(transport: str, profile: HcaProfile) -> HcaProfile:
    """The profile with the limits that adapters of this transport have."""
    if transport != IWARP:
        return profile
    limits = replace(
        profile.attributes,
        atomic_caps=AtomicCap.IBV_ATOMIC_NONE,
        max_sge_rd=1,
        max_ah=0,
        max_mcast_grp=0,
        max_mcast_qp_attach=0,
        max_total_mcast_qp_attach=0,
    )
    return replace(profile, attributes=limits)


def operations_of(transport: str, qp_type: QpType) -> frozenset[WrOpcode]:
    """What may be posted to a queue pair of this type."""
    return OPERATIONS[qp_type] - _LACKING if transport == IWARP else OPERATIONS[qp_type]


def check_offered(transport: str, verb: str, what: str, *, reliable_connection: bool = False) -> None:
    """Raise VerbsError(EOPNOTSUPP) on iWARP for `what`, which is not of a reliable connection."""
    if transport == IWARP and not reliable_connection:
        raise VerbsError(errno.EOPNOTSUPP, f"{verb}: iWARP adapters have reliable connections (RC) only, no {what}")
