"""Extended queue pairs: work requests built by calls between `wr_start` and `wr_complete` (ibv_wr_post(3))."""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from socket import htonl
from typing import Any, NoReturn

from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import QPAttr, QPCap
from fauxrdma.ib.enums import QpCreateSendOpsFlags, QpInitAttrMask, QpType, SendFlags, WrOpcode
from fauxrdma.ib.qp_states import check_type
from fauxrdma.ib.work import OPERATIONS, SGE, HasHandle, SendWR
from fauxrdma.verbs.completion import CQ
from fauxrdma.verbs.device import Context
from fauxrdma.verbs.memory import PD
from fauxrdma.verbs.memory_windows import MW, MWBindInfo
from fauxrdma.verbs.queue_pair import QP, QPInitAttr
from fauxrdma.verbs.shared_receive import SRQ

__all__ = ["DataBuffer", "QPEx", "QPInitAttrEx"]

_Op = QpCreateSendOpsFlags
_FLAG_OF = {
    WrOpcode.IBV_WR_RDMA_WRITE: _Op.IBV_QP_EX_WITH_RDMA_WRITE,
    WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM: _Op.IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
    WrOpcode.IBV_WR_SEND: _Op.IBV_QP_EX_WITH_SEND,
    WrOpcode.IBV_WR_SEND_WITH_IMM: _Op.IBV_QP_EX_WITH_SEND_WITH_IMM,
    WrOpcode.IBV_WR_RDMA_READ: _Op.IBV_QP_EX_WITH_RDMA_READ,
    WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP: _Op.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
    WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD: _Op.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    WrOpcode.IBV_WR_LOCAL_INV: _Op.IBV_QP_EX_WITH_LOCAL_INV,
    WrOpcode.IBV_WR_BIND_MW: _Op.IBV_QP_EX_WITH_BIND_MW,
    WrOpcode.IBV_WR_SEND_WITH_INV: _Op.IBV_QP_EX_WITH_SEND_WITH_INV,
}
_KNOWN_FIELDS = QpInitAttrMask.IBV_QP_INIT_ATTR_PD | QpInitAttrMask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS


@dataclass(slots=True)
class QPInitAttrEx:
    """What an extended queue pair is made of, with pyverbs' defaults: UD, and `sq_sig_all` is 0 here.

    `comp_mask` (QpInitAttrMask) says which of `pd` and `send_ops_flags` (QpCreateSendOpsFlags: what will be posted by
    wr_* calls) are given. XRC, creation flags, segmentation offload and receive hashing are not offered.
    """

    qp_type: int = QpType.IBV_QPT_UD
    qp_context: object = None
    scq: CQ | None = None
    rcq: CQ | None = None
    srq: SRQ | None = None
    cap: QPCap = field(default_factory=QPCap)
    sq_sig_all: int = 0
    comp_mask: int = 0
    pd: PD | None = None
    xrcd: object = None
    create_flags: int = 0
    max_tso_header: int = 0
    source_qpn: int = 0
    hash_conf: object = None
    ind_table: object = None
    send_ops_flags: int = 0

    def check(self) -> None:
        """Raise VerbsError(EOPNOTSUPP), naming it, for what this device does not offer."""
        unknown = int(self.comp_mask & ~_KNOWN_FIELDS)
        if unknown == QpInitAttrMask.IBV_QP_INIT_ATTR_CREATE_FLAGS and not self.create_flags:
            unknown = 0
        if unknown:
            _refuse(errno.EOPNOTSUPP, f"comp_mask has {QpInitAttrMask(unknown)!r}, of which this device knows nothing")
        if not self.comp_mask & QpInitAttrMask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS:
            return
        kind = check_type(self.qp_type)
        able = sum(_FLAG_OF[opcode] for opcode in OPERATIONS[kind])
        if lacking := self.send_ops_flags & ~able:
            _refuse(errno.EOPNOTSUPP, f"send_ops_flags has {_Op(lacking)!r}, which {kind.name} does not offer here")

    def plain(self, creator: PD | Context) -> tuple[PD, QPInitAttr]:
        """The PD to make it in, and the attributes that every queue pair has. Raises VerbsError: as `check`, and EINVAL
        when `creator` is a context and `comp_mask` names no PD."""
        self.check()
        pd = self.pd if self.comp_mask & QpInitAttrMask.IBV_QP_INIT_ATTR_PD else None
        if pd is None and isinstance(creator, PD):
            pd = creator
        if pd is None:
            _refuse(errno.EINVAL, "no PD: create it on one, or give pd and IBV_QP_INIT_ATTR_PD in comp_mask")
        return pd, QPInitAttr(
            self.qp_type, self.scq, self.rcq, self.cap, self.sq_sig_all, self.qp_context, self.srq
        )  # fmt: skip


def _refuse(code: int, reason: str) -> NoReturn:
    raise VerbsError(code, f"Failed to create QP: {reason}")


@dataclass(slots=True)
class DataBuffer:
    """A piece of plain memory, for `wr_set_inline_data_list`: address and length in bytes."""

    addr: int
    length: int


class QPEx(QP):
    """A queue pair that is also posted to by calls::

        qp.wr_start()
        qp.wr_id, qp.wr_flags = 1, IBV_SEND_SIGNALED
        qp.wr_rdma_write(rkey, remote_addr)
        qp.wr_set_sge(SGE(mr.buf, 64, mr.lkey))
        qp.wr_complete()

    Each builder takes the present `wr_id` and `wr_flags` and begins a request, the setters after it complete it.
    Nothing is posted before `wr_complete`, which posts all or, with the first thing that was wrong, raises and posts
    none. From `wr_start` to `wr_complete` or `wr_abort` other threads that call `wr_start` wait. `creator` is a PD, or
    a Context when `init_attr` names the PD, as in pyverbs. `post_send` works, too. Raises VerbsError as `QP`, and
    EOPNOTSUPP for what QPInitAttrEx says is not offered.
    """

    def __init__(self, creator: PD | Context, init_attr: QPInitAttrEx, attr: QPAttr | None = None) -> None:
        super().__init__(*init_attr.plain(creator), attr)
        by_calls = init_attr.comp_mask & QpInitAttrMask.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        self._operations = init_attr.send_ops_flags if by_calls else 0
        self._init_attr_ex = replace(init_attr)
        self.wr_id = 0
        self.wr_flags = 0
        self._region = threading.Lock()
        self._builder: int | None = None  # the thread between wr_start and wr_complete
        self._building: list[SendWR] = []
        self._inlined: list[Any] = []  # copies that requests point to until they are posted
        self._wrong: VerbsError | None = None

    # ---- the critical region -------------------------------------------------------------------------------------

    def wr_start(self) -> None:
        """Begin a batch. Raises VerbsError(EINVAL) inside one of this thread's."""
        if self._builder == threading.get_ident():
            raise VerbsError(errno.EINVAL, f"Failed to start: QP 0x{self.qp_num:x} has a batch begun by this thread")
        self._region.acquire()
        self._builder = threading.get_ident()

    def wr_complete(self) -> None:
        """Post the batch, with one doorbell. Raises VerbsError, and nothing of it is posted: as `post_send`, EINVAL for
        calls that do not belong together or for an operation that was not in `send_ops_flags`."""
        self._check_inside("wr_complete")
        try:
            if self._wrong is not None:
                raise self._wrong
            self._post_send(self._building, all_or_none=True)
        finally:
            self._leave()

    def wr_abort(self) -> None:
        """Drop the batch. Raises VerbsError(EINVAL) outside one."""
        self._check_inside("wr_abort")
        self._leave()

    def _leave(self) -> None:
        self._building, self._inlined, self._wrong, self._builder = [], [], None, None
        self._region.release()

    def _check_inside(self, call: str) -> None:
        if self._builder != threading.get_ident():
            raise VerbsError(errno.EINVAL, f"Failed to post send: {call} without wr_start on QP 0x{self.qp_num:x}")

    def _fail(self, reason: str) -> None:
        if self._wrong is None:
            self._wrong = VerbsError(errno.EINVAL, f"Failed to complete work requests: {reason}")

    # ---- builders ------------------------------------------------------------------------------------------------

    def wr_rdma_write(self, rkey: int, remote_addr: int) -> None:
        """Begin an RDMA WRITE."""
        self._begin(WrOpcode.IBV_WR_RDMA_WRITE).set_wr_rdma(rkey, remote_addr)

    def wr_rdma_write_imm(self, rkey: int, remote_addr: int, data: int) -> None:
        """Begin an RDMA WRITE with immediate; `data` in host order, as in pyverbs (SendWR.imm_data is in network
        order)."""
        wr = self._begin(WrOpcode.IBV_WR_RDMA_WRITE_WITH_IMM)
        wr.set_wr_rdma(rkey, remote_addr)
        wr.imm_data = htonl(data)

    def wr_rdma_read(self, rkey: int, remote_addr: int) -> None:
        """Begin an RDMA READ."""
        self._begin(WrOpcode.IBV_WR_RDMA_READ).set_wr_rdma(rkey, remote_addr)

    def wr_send(self) -> None:
        """Begin a SEND."""
        self._begin(WrOpcode.IBV_WR_SEND)

    def wr_send_imm(self, data: int) -> None:
        """Begin a SEND with immediate; `data` in host order."""
        self._begin(WrOpcode.IBV_WR_SEND_WITH_IMM).imm_data = htonl(data)

    def wr_send_inv(self, invalidate_rkey: int) -> None:
        """Begin a SEND that invalidates a key at the receiver."""
        self._begin(WrOpcode.IBV_WR_SEND_WITH_INV).invalidate_rkey = invalidate_rkey

    def wr_atomic_cmp_swp(self, rkey: int, remote_addr: int, compare: int, swap: int) -> None:
        """Begin a compare-and-swap of 8 bytes."""
        self._begin(WrOpcode.IBV_WR_ATOMIC_CMP_AND_SWP).set_wr_atomic(rkey, remote_addr, compare, swap)

    def wr_atomic_fetch_add(self, rkey: int, remote_addr: int, add: int) -> None:
        """Begin a fetch-and-add of 8 bytes."""
        self._begin(WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD).set_wr_atomic(rkey, remote_addr, add)

    def wr_local_inv(self, invalidate_rkey: int) -> None:
        """Begin the invalidation of a type 2 window of this side."""
        self._begin(WrOpcode.IBV_WR_LOCAL_INV).invalidate_rkey = invalidate_rkey

    def wr_bind_mw(self, mw: MW, rkey: int, bind_info: MWBindInfo) -> None:
        """Begin the bind of a type 2 window, whose key becomes `rkey` (inc_rkey(mw.rkey))."""
        wr = self._begin(WrOpcode.IBV_WR_BIND_MW)
        wr.set_bind_wr(mw, bind_info)
        wr.rkey = rkey

    def wr_send_tso(self, hdr: int, hdr_sz: int, mss: int) -> NoReturn:
        """Not offered: this device has no segmentation offload. Raises VerbsError(EOPNOTSUPP)."""
        raise VerbsError(errno.EOPNOTSUPP, "Failed to post send: this device has no TCP segmentation offload")

    def _begin(self, opcode: WrOpcode) -> SendWR:
        self._check_inside(opcode.name)
        if not self._operations & _FLAG_OF[opcode]:
            self._fail(f"{_FLAG_OF[opcode].name} is not in the send_ops_flags that QP 0x{self.qp_num:x} was made with")
        wr = SendWR(self.wr_id, opcode, send_flags=self.wr_flags)
        self._building.append(wr)
        return wr

    # ---- setters -------------------------------------------------------------------------------------------------

    def wr_set_sge(self, sge: SGE) -> None:
        """The data of the last request: one piece."""
        self.wr_set_sge_list(1, [sge])

    def wr_set_sge_list(self, num_sge: int, sg_list: Sequence[SGE]) -> None:
        """The data of the last request: the first `num_sge` pieces of the list."""
        wr = self._last("wr_set_sge_list")
        if wr is not None:
            wr.sg = list(sg_list[:num_sge])

    def wr_set_inline_data(self, addr: int, length: int) -> None:
        """The data of the last request: copied now from plain memory, which may be used again at once."""
        self.wr_set_inline_data_list(1, [DataBuffer(addr, length)])

    def wr_set_inline_data_list(self, num_buf: int, buf_list: Sequence[DataBuffer]) -> None:
        """The same from several places, one after the other."""
        wr = self._last("wr_set_inline_data_list")
        if wr is None:
            return
        data = b"".join(ctypes.string_at(each.addr, each.length) for each in buf_list[:num_buf])
        copy = ctypes.create_string_buffer(data, max(1, len(data)))
        self._inlined.append(copy)
        wr.sg = [SGE(ctypes.addressof(copy), len(data), 0)]
        wr.send_flags |= SendFlags.IBV_SEND_INLINE

    def wr_set_ud_addr(self, ah: HasHandle, remote_qpn: int, remote_qkey: int) -> None:
        """Where the last request goes, on UD."""
        wr = self._last("wr_set_ud_addr")
        if wr is not None:
            wr.set_wr_ud(ah, remote_qpn, remote_qkey)

    def wr_set_xrc_srqn(self, remote_srqn: int) -> NoReturn:
        """Not offered: there are no XRC queue pairs here. Raises VerbsError(EOPNOTSUPP)."""
        raise VerbsError(errno.EOPNOTSUPP, "Failed to post send: this device has no XRC queue pairs")

    def _last(self, setter: str) -> SendWR | None:
        self._check_inside(setter)
        if not self._building:
            self._fail(f"{setter} before any builder (wr_send, wr_rdma_write, ...)")
            return None
        return self._building[-1]
