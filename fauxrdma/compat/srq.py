"""Shared receive queues (pyverbs.srq)."""

from __future__ import annotations

import errno
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as, verb
from fauxrdma.compat.pyverbs_error import PyverbsRDMAError
from fauxrdma.compat.wr import RecvWR
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import SrqType

__all__ = ["SRQ", "OpsWr", "SrqAttr", "SrqInitAttr", "SrqInitAttrEx"]

_ADD_TAG = 0
_OPS_SIGNALED = 1


class SrqAttr(PyverbsObject, verbs.SrqAttr):
    """Receives, SGEs of each, and the armed limit."""


class SrqInitAttr(PyverbsObject, verbs.SrqInitAttr):
    """What a shared receive queue is made of."""

    def __init__(self, attr: verbs.SrqAttr | None = None, srq_context: Any = None) -> None:
        verbs.SrqInitAttr.__init__(self, attr or verbs.SrqAttr(), srq_context)

    @property
    def srq_limit(self) -> int:
        """The limit to arm."""
        return self.attr.srq_limit


class SrqInitAttrEx(SrqInitAttr):
    """The same with `srq_type`, `pd`, `cq`, `xrcd` and tag matching; only IBV_SRQT_BASIC queues can be made."""

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        super().__init__(verbs.SrqAttr(max_wr, max_sge, srq_limit))
        self.comp_mask = 0
        self.srq_type = int(SrqType.IBV_SRQT_BASIC)
        self.pd: Any = None
        self.xrcd: Any = None
        self.cq: Any = None
        self.max_num_tags = 0
        self.max_ops = 0


class OpsWr(PyverbsCM):
    """A request of tag matching."""

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = _ADD_TAG,
        flags: int = _OPS_SIGNALED,
        next_wr: OpsWr | None = None,
        unexpected_cnt: int = 0,
        recv_wr_id: int = 0,
        num_sge: int | None = None,
        tag: int = 0,
        mask: int = 0,
        sg_list: Any = None,
    ) -> None:
        self.wr_id = wr_id
        self.opcode = opcode
        self.flags = flags
        self.next_wr = next_wr
        self.unexpected_cnt = unexpected_cnt
        self.recv_wr_id = recv_wr_id
        self.num_sge = num_sge
        self.tag = tag
        self.mask = mask
        self.sg_list = sg_list
        self.handle = 0


class SRQ(Handle, verbs.SRQ, PyverbsCM):
    """A shared receive queue, of a PD and a SrqInitAttr or of a context and a SrqInitAttrEx that names the PD."""

    _CLOSING = "Failed to destroy SRQ"

    def __init__(self, creator: Any, attr: verbs.SrqInitAttr) -> None:
        pd = creator
        if isinstance(creator, verbs.Context):
            if getattr(attr, "srq_type", SrqType.IBV_SRQT_BASIC) != SrqType.IBV_SRQT_BASIC:
                not_offered("Failed to create SRQ", "shared receive queues for XRC or tag matching")
            pd = getattr(attr, "pd", None)
        if not isinstance(pd, verbs.PD):
            raise PyverbsRDMAError("Srq needs either Context or PD for creation", errno.EINVAL)
        with refused_as("Failed to create SRQ"):
            verbs.SRQ.__init__(self, pd, attr)
        adopt(pd, self)

    def post_recv(self, wr: RecvWR, bad_wr: RecvWR | None = None) -> None:  # type: ignore[override]
        """Post a receive and the chain behind it; `bad_wr` becomes a copy of the one that was refused."""
        with refused_as("Failed to post receive to SRQ."):
            try:
                verbs.SRQ.post_recv(self, wr)
            except VerbsError as error:
                copy_bad_wr(error, bad_wr)
                raise

    modify = verb("Failed to modify SRQ")(verbs.SRQ.modify)

    @verb("Failed to query SRQ")
    def query(self) -> SrqAttr:
        """Its size, and the limit as long as it is armed."""
        attr = verbs.SRQ.query(self)
        return SrqAttr(attr.max_wr, attr.max_sge, attr.srq_limit)

    def post_srq_ops(self, wr: OpsWr, bad_wr: OpsWr | None = None) -> None:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("post SRQ ops failed.", "tag matching")


def copy_bad_wr(error: VerbsError, bad_wr: Any) -> None:
    """Make `bad_wr`, if given, a copy of the request that was refused."""
    refused = error.bad_wr
    if bad_wr is None or refused is None:
        return
    for name in type(refused).__dataclass_fields__:  # type: ignore[attr-defined]
        setattr(bad_wr, name, getattr(refused, name))
