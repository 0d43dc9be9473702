"""A queue pair as the engine sees it: its attributes and state, and what both halves share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fauxrdma.hca.srq import SharedReceiveQueue
from fauxrdma.hca.work_queue import RecvWqe, SendSource, WorkSource
from fauxrdma.ib.attributes import QPAttr, QPCap
from fauxrdma.ib.enums import Mtu, QpState, QpType
from fauxrdma.ib.enums import QpAttrMask as M
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, HcaProfile
from fauxrdma.memory.regions import ProtectionDomain

__all__ = ["QueuePair"]

_FIELDS: tuple[tuple[M, tuple[str, ...]], ...] = (
    (M.IBV_QP_ACCESS_FLAGS, ("qp_access_flags",)),
    (M.IBV_QP_PKEY_INDEX, ("pkey_index",)),
    (M.IBV_QP_PORT, ("port_num",)),
    (M.IBV_QP_QKEY, ("qkey",)),
    (M.IBV_QP_AV, ("ah_attr",)),
    (M.IBV_QP_PATH_MTU, ("path_mtu",)),
    (M.IBV_QP_TIMEOUT, ("timeout",)),
    (M.IBV_QP_RETRY_CNT, ("retry_cnt",)),
    (M.IBV_QP_RNR_RETRY, ("rnr_retry",)),
    (M.IBV_QP_RQ_PSN, ("rq_psn",)),
    (M.IBV_QP_MAX_QP_RD_ATOMIC, ("max_rd_atomic",)),
    (M.IBV_QP_MIN_RNR_TIMER, ("min_rnr_timer",)),
    (M.IBV_QP_SQ_PSN, ("sq_psn",)),
    (M.IBV_QP_MAX_DEST_RD_ATOMIC, ("max_dest_rd_atomic",)),
    (M.IBV_QP_DEST_QPN, ("dest_qp_num",)),
    (M.IBV_QP_EN_SQD_ASYNC_NOTIFY, ("en_sqd_async_notify",)),
)


@dataclass(slots=True, eq=False)
class QueuePair:
    """Attributes, state and queues of one queue pair. `attr` holds what modify_qp set.

    `mtu` (bytes), `mtu_code`, `dlid`, `dest_qpn` are copies out of `attr` for the hot path. `last_error` is the story
    of the first thing that went wrong, for a person.
    """

    qpn: int
    qp_type: QpType
    pd: ProtectionDomain
    send_cqn: int
    recv_cqn: int
    cap: QPCap
    sq_sig_all: bool
    sq: SendSource = field(repr=False)
    rq: WorkSource[RecvWqe] = field(repr=False)
    state: QpState = QpState.IBV_QPS_RESET
    attr: QPAttr = field(default_factory=QPAttr)
    mtu: int = 1024
    mtu_code: int = 3
    dlid: int = 0
    dest_qpn: int = 0
    wants_link: bool = False
    responded_last: bool = False  # the last burst was a READ response: it is the requester's turn
    tell_drained: bool = False  # in SQD: the application asked for IBV_EVENT_SQ_DRAINED
    last_error: str = ""
    profile: HcaProfile = PROFILES[DEFAULT_PROFILE]
    srq: SharedReceiveQueue | None = field(default=None, repr=False)
    told_last_wqe: bool = False  # IBV_EVENT_QP_LAST_WQE_REACHED has been raised
    told_established: bool = False  # IBV_EVENT_COMM_EST has been raised

    @property
    def recv_pd(self) -> ProtectionDomain:
        """The protection domain of the memory that receives name."""
        return self.pd if self.srq is None else self.srq.pd

    def apply(self, attr: QPAttr, mask: M) -> None:
        """Take over the attributes named in the mask (already checked)."""
        changes = {name: getattr(attr, name) for bit, names in _FIELDS if mask & bit for name in names}
        self.attr = replace(self.attr, **changes)
        self.mtu = Mtu(self.attr.path_mtu).nbytes
        self.mtu_code = int(self.attr.path_mtu)
        self.dlid = self.attr.ah_attr.dlid
        self.dest_qpn = self.attr.dest_qp_num

    def reset(self) -> None:
        """Forget all attributes, as in RESET."""
        self.attr = QPAttr()
        self.wants_link = False
        self.tell_drained = False
        self.last_error = ""
        self.told_last_wqe = False
        self.told_established = False
