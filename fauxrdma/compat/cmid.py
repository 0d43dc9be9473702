"""The connection manager (pyverbs.cmid): not offered yet. Attribute classes can be made."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered

__all__ = ["CMID", "AddrInfo", "CMEvent", "CMEventChannel", "ConnParam", "JoinMCAttrEx", "UDParam"]

_WHAT = "connection manager"


class ConnParam(PyverbsObject):
    """Parameters of a connection, with pyverbs' defaults."""

    def __init__(
        self,
        resources: int = 1,
        depth: int = 1,
        flow_control: int = 0,
        retry: int = 5,
        rnr_retry: int = 5,
        srq: int = 0,
        qp_num: int = 0,
        data_len: int = 0,
    ) -> None:
        self.responder_resources = resources
        self.initiator_depth = depth
        self.flow_control = flow_control
        self.retry_count = retry
        self.rnr_retry_count = rnr_retry
        self.srq = srq
        self.qp_num = qp_num
        self.private_data_len = data_len


class UDParam(PyverbsObject):
    """Parameters of a datagram peer."""

    def __init__(self, *_: Any, **__: Any) -> None:
        not_offered("Failed to get UD parameters", _WHAT)


class JoinMCAttrEx(PyverbsObject):
    """How to join a multicast group."""

    def __init__(self, addr: Any = None, comp_mask: int = 0, join_flags: int = 0) -> None:
        self.addr = addr
        self.comp_mask = comp_mask
        self.join_flags = join_flags


class AddrInfo(PyverbsObject):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, *_: Any, **__: Any) -> None:
        not_offered("Failed to get Address Info", _WHAT)


class CMEventChannel(PyverbsObject):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self) -> None:
        not_offered("Failed to create CM Event Channel", _WHAT)


class CMEvent(PyverbsObject):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, *_: Any) -> None:
        not_offered("Failed to get CM Event", _WHAT)


class CMID(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, *_: Any, **__: Any) -> None:
        not_offered("Failed to create CM ID", _WHAT)
