"""What queue pairs are made of and told, with pyverbs' arguments and defaults (of pyverbs.qp)."""

from __future__ import annotations

from copy import copy
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.addr import AHAttr
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.pyverbs_error import PyverbsUserError
from fauxrdma.compat.utils import (
    access_flags_to_str,
    mig_state_to_str,
    mtu_to_str,
    qp_state_to_str,
    qp_type_to_str,
    table,
)
from fauxrdma.ib import attributes as ib
from fauxrdma.ib.enums import Mtu, QpState, QpType

__all__ = ["ECE", "DataBuffer", "QPAttr", "QPCap", "QPInitAttr", "QPInitAttrEx", "QPRateLimitAttr"]


class QPCap(PyverbsObject, verbs.QPCap):
    """Queue sizes: counts of work requests and of scatter/gather entries; inline in bytes."""

    @classmethod
    def of(cls, cap: ib.QPCap) -> QPCap:
        """The same in pyverbs' shape."""
        return cls(cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data)

    def __str__(self) -> str:
        return table(_cap_rows(self), 20)


def _cap_rows(cap: ib.QPCap) -> dict[str, object]:
    return {
        "max send wrs": cap.max_send_wr,
        "max recv wrs": cap.max_recv_wr,
        "max send sges": cap.max_send_sge,
        "max recv sges": cap.max_recv_sge,
        "max inline data": cap.max_inline_data,
    }


def _in_cap(name: str) -> Any:
    """An attribute of `cap`, reached from the object that has it."""

    def get(self: Any) -> int:
        return int(getattr(self.cap, name))

    def put(self: Any, value: int) -> None:
        setattr(self.cap, name, value)

    return property(get, put, doc=f"`cap.{name}`.")


class _Queues:
    """The names that pyverbs has for the completion queues and for what is in `cap`."""

    scq: Any
    rcq: Any
    max_send_wr = _in_cap("max_send_wr")
    max_recv_wr = _in_cap("max_recv_wr")
    max_send_sge = _in_cap("max_send_sge")
    max_recv_sge = _in_cap("max_recv_sge")
    max_inline_data = _in_cap("max_inline_data")

    @property
    def send_cq(self) -> Any:
        """Where sends complete."""
        return self.scq

    @send_cq.setter
    def send_cq(self, val: Any) -> None:
        self.scq = val

    @property
    def recv_cq(self) -> Any:
        """Where receives complete."""
        return self.rcq

    @recv_cq.setter
    def recv_cq(self, val: Any) -> None:
        self.rcq = val


def _check_cq(cq: Any) -> None:
    if cq is not None and not isinstance(cq, verbs.CQ):
        raise PyverbsUserError(f"Expected CQ/CQEX, got {type(cq)}")


class QPInitAttr(PyverbsObject, _Queues, verbs.QPInitAttr):
    """What a queue pair is made of: UD and every send signaled unless told otherwise."""

    def __init__(
        self,
        qp_type: int = QpType.IBV_QPT_UD,
        qp_context: Any = None,
        scq: Any = None,
        rcq: Any = None,
        srq: Any = None,
        cap: ib.QPCap | None = None,
        sq_sig_all: int = 1,
    ) -> None:
        _check_cq(scq)
        _check_cq(rcq)
        verbs.QPInitAttr.__init__(self, qp_type, scq, rcq, QPCap.of(cap or QPCap()), sq_sig_all, qp_context, srq)

    def __str__(self) -> str:
        rows: dict[str, object] = {"QP type": qp_type_to_str(self.qp_type), "SQ sig. all": self.sq_sig_all}
        return table(rows, 20) + "QP caps:\n" + table(_cap_rows(self.cap), 20, "    ")


class QPInitAttrEx(PyverbsObject, _Queues, verbs.QPInitAttrEx):
    """What an extended queue pair is made of: UD, and sends are signaled one by one. `comp_mask` says which of the
    fields behind it are given; XRC, creation flags, segmentation and receive hashing are EOPNOTSUPP."""

    def __init__(
        self,
        qp_type: int = QpType.IBV_QPT_UD,
        qp_context: Any = None,
        scq: Any = None,
        rcq: Any = None,
        srq: Any = None,
        cap: ib.QPCap | None = None,
        sq_sig_all: int = 0,
        comp_mask: int = 0,
        pd: Any = None,
        xrcd: Any = None,
        create_flags: int = 0,
        max_tso_header: int = 0,
        source_qpn: int = 0,
        hash_conf: Any = None,
        ind_table: Any = None,
        send_ops_flags: int = 0,
    ) -> None:
        _check_cq(scq)
        _check_cq(rcq)
        verbs.QPInitAttrEx.__init__(
            self, qp_type, qp_context, scq, rcq, srq, QPCap.of(cap or QPCap()), sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, source_qpn, hash_conf, ind_table, send_ops_flags,
        )  # fmt: skip

    def __str__(self) -> str:
        rows: dict[str, object] = {"QP type": qp_type_to_str(self.qp_type), "SQ sig. all": self.sq_sig_all}
        more: dict[str, object] = {
            "comp mask": hex(self.comp_mask),
            "create flags": hex(self.create_flags),
            "max TSO header": self.max_tso_header,
            "Source QPN": self.source_qpn,
        }
        return table(rows, 20) + "QP caps:\n" + table(_cap_rows(self.cap), 20, "  ") + table(more, 20)


_NUMBERS = (
    "qkey", "rq_psn", "sq_psn", "dest_qp_num", "qp_access_flags", "pkey_index", "en_sqd_async_notify", "max_rd_atomic",
    "max_dest_rd_atomic", "min_rnr_timer", "timeout", "retry_cnt", "rnr_retry",
)  # fmt: skip


class QPAttr(PyverbsObject, ib.QPAttr):
    """Attributes for `QP.modify`, all 0 unless they are set: a program says every value itself, as on hardware.

    Alternate paths and rate limits are kept and told to nobody: EINVAL when `modify` is asked for them.
    """

    def __init__(
        self,
        qp_state: int = QpState.IBV_QPS_INIT,
        cur_qp_state: int = QpState.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = Mtu.IBV_MTU_1024,
    ) -> None:
        ib.QPAttr.__init__(self, qp_state, cur_qp_state, path_mtu, port_num=port_num, ah_attr=AHAttr())
        for name in _NUMBERS:
            setattr(self, name, 0)
        self.alt_ah_attr = AHAttr()
        self.cap = QPCap(0, 0, 0, 0, 0)
        self.path_mig_state = 0
        self.alt_pkey_index = 0
        self.alt_port_num = 0
        self.alt_timeout = 0
        self.sq_draining = 0
        self.rate_limit = 0

    def __setattr__(self, name: str, value: Any) -> None:
        # An address vector is copied into the struct: it does not change with what it was set to.
        super().__setattr__(name, copy(value) if name in ("ah_attr", "alt_ah_attr") else value)

    @classmethod
    def of(cls, attr: ib.QPAttr, cap: ib.QPCap) -> QPAttr:
        """The same in pyverbs' shape."""
        made = cls()
        for name in ib.QPAttr.__dataclass_fields__:
            setattr(made, name, getattr(attr, name))
        made.ah_attr = AHAttr.of(attr.ah_attr)
        made.cap = QPCap.of(cap)
        return made

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "QP state": qp_state_to_str(self.qp_state),
            "QP current state": qp_state_to_str(self.cur_qp_state),
            "Path MTU": mtu_to_str(self.path_mtu),
            "Path mig. state": mig_state_to_str(self.path_mig_state),
            "QKey": self.qkey,
            "RQ PSN": self.rq_psn,
            "SQ PSN": self.sq_psn,
            "Dest QP number": self.dest_qp_num,
            "QP access flags": access_flags_to_str(self.qp_access_flags),
        }
        more: dict[str, object] = {
            "PKey index": self.pkey_index,
            "En. SQD async notify": self.en_sqd_async_notify,
            "SQ draining": self.sq_draining,
            "Max RD atomic": self.max_rd_atomic,
            "Max dest. RD atomic": self.max_dest_rd_atomic,
            "Min RNR timer": self.min_rnr_timer,
            "Port number": self.port_num,
            "Timeout": self.timeout,
            "Retry counter": self.retry_cnt,
            "RNR retry": self.rnr_retry,
            "Rate limit": self.rate_limit,
        }
        caps = "QP caps:\n" + table(_cap_rows(self.cap), 22, "  ")
        return table(rows) + caps + f"AH Attr:\n{self.ah_attr}" + table(more)


class ECE(PyverbsCM):
    """Enhanced connection establishment: a vendor's options."""

    def __init__(self, vendor_id: int = 0, options: int = 0, comp_mask: int = 0) -> None:
        self.vendor_id = vendor_id
        self.options = options
        self.comp_mask = comp_mask

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "Vendor ID": hex(self.vendor_id),
            "Options": hex(self.options),
            "Comp Mask": hex(self.comp_mask),
        }
        return "ECE:\n" + table(rows)


class QPRateLimitAttr(PyverbsObject):
    """A rate limit of one queue pair: kbit/s, bytes of a burst, bytes of a typical packet."""

    def __init__(self, rate_limit: int = 0, max_burst_sz: int = 0, typical_pkt_sz: int = 0, comp_mask: int = 0) -> None:
        self.rate_limit = rate_limit
        self.max_burst_sz = max_burst_sz
        self.typical_pkt_sz = typical_pkt_sz
        self.comp_mask = comp_mask


class DataBuffer(PyverbsCM, verbs.DataBuffer):
    """A piece of plain memory, for `wr_set_inline_data_list`: address and length in bytes."""
