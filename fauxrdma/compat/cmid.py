"""The connection manager (pyverbs.cmid)."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.cq import WC
from fauxrdma.compat.device import Context
from fauxrdma.compat.handles import not_offered, refused_as, verb
from fauxrdma.compat.mr import MR
from fauxrdma.compat.pd import PD
from fauxrdma.compat.qp_attributes import QPAttr, QPInitAttr
from fauxrdma.verbs import cm

__all__ = ["CMID", "AddrInfo", "CMEvent", "CMEventChannel", "ConnParam", "JoinMCAttrEx", "UDParam"]


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
        self.private_data = b""

    def set_private_data(self, data: bytes) -> None:
        """What the peer is to read."""
        self.private_data, self.private_data_len = bytes(data), len(data)

    @property
    def plain(self) -> cm.ConnParam:
        """The native form."""
        return cm.ConnParam(
            self.responder_resources, self.initiator_depth, self.flow_control, self.retry_count, self.rnr_retry_count,
            self.srq, self.qp_num, private_data=self.private_data,
        )  # fmt: skip


class JoinMCAttrEx(PyverbsObject):
    """How to join a multicast group."""

    def __init__(self, addr: Any = None, comp_mask: int = 0, join_flags: int = 0) -> None:
        self.addr = addr
        self.comp_mask = comp_mask
        self.join_flags = join_flags


class AddrInfo(cm.AddrInfo, PyverbsObject):
    """Where to connect to, or with RAI_PASSIVE where to listen. Addresses are GIDs and, on Ethernet, IPv4 addresses."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with refused_as("Failed to get Address Info"):
            super().__init__(*arguments, **options)


class CMEventChannel(cm.CMEventChannel, PyverbsObject):
    """Where the events of CMIDs wait."""


class CMEvent(cm.CMEvent, PyverbsObject):
    """The next event of a channel."""

    def __init__(self, channel: CMEventChannel) -> None:
        with refused_as("Failed to get CM event"):
            super().__init__(channel)


class UDParam(cm.UDParam, PyverbsObject):
    """Where a datagram service is."""

    def __init__(self, event: cm.CMEvent) -> None:
        with refused_as("Failed to get UD parameters"):
            super().__init__(event)


def _plain(param: Any) -> Any:
    return param.plain if isinstance(param, ConnParam) else param


class CMID(cm.CMID, PyverbsCM):
    """One end of a connection, or a listener."""

    _CONTEXT, _PD, _MR = Context, PD, MR

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with refused_as("Failed to create CM ID"):
            super().__init__(*arguments, **options)

    @verb("Failed to Connect")
    def connect(self, param: Any = None, timeout_s: float | None = None) -> None:
        """Ask the peer."""
        super().connect(_plain(param), timeout_s)

    @verb("Failed to Accept Connection")
    def accept(self, param: Any = None, timeout_s: float | None = None) -> None:
        """Accept a request."""
        super().accept(_plain(param), timeout_s)

    @verb("Failed to listen")
    def listen(self, backlog: int = 0) -> None:
        """Hear requests."""
        super().listen(backlog or 16)

    @property
    def event_channel(self) -> Any:
        """The channel it was made with."""
        return self.channel

    bind_addr = verb("Failed to Bind ID")(cm.CMID.bind_addr)
    resolve_addr = verb("Failed to Resolve Address")(cm.CMID.resolve_addr)
    resolve_route = verb("Failed to Resolve Route")(cm.CMID.resolve_route)
    create_qp = verb("Failed to create QP")(cm.CMID.create_qp)
    reject = verb("Failed to Reject")(cm.CMID.reject)
    establish = verb("Failed to Complete an active connection request")(cm.CMID.establish)
    disconnect = verb("Failed to Disconnect")(cm.CMID.disconnect)
    post_recv = verb("Failed to Post Receive")(cm.CMID.post_recv)
    post_send = verb("Failed to Post Send")(cm.CMID.post_send)
    post_read = verb("Failed to Post Read")(cm.CMID.post_read)
    post_write = verb("Failed to Post Write")(cm.CMID.post_write)
    post_ud_send = verb("Failed to Post Send")(cm.CMID.post_ud_send)

    def query_qp(self, attr_mask: int) -> Any:
        """Attributes of the queue pair."""
        with refused_as("Failed to query QP"):
            attr, init = self._queue().query(attr_mask)
        made = QPInitAttr(init.qp_type, init.qp_context, init.scq, init.rcq, init.srq, init.cap, init.sq_sig_all)
        return QPAttr.of(attr, init.cap), made

    @verb("Failed to get send completion")
    def get_send_comp(self, timeout_s: float | None = None) -> WC | None:
        """Wait for the completion of a send."""
        wc = super().get_send_comp(timeout_s)
        return None if wc is None else WC.of(wc)

    @verb("Failed to get recv completion")
    def get_recv_comp(self, timeout_s: float | None = None) -> WC | None:
        """Wait for the completion of a receive."""
        wc = super().get_recv_comp(timeout_s)
        return None if wc is None else WC.of(wc)

    def init_qp_attr(self, qp_state: int) -> Any:
        """Not offered: the queue pair is moved by the CMID."""
        not_offered("Failed to Init QP Attr", "attributes of other queue pairs' connections")

    def join_multicast(self, *_: Any, **__: Any) -> None:
        """Not offered: QP.attach_mcast joins."""
        not_offered("Failed to Join Multicast", "multicast through the connection manager")

    leave_multicast = join_multicast

    def set_option(self, *_: Any, **__: Any) -> None:
        """Not offered."""
        not_offered("Failed to set option", "options of connections")

    set_local_ece = resolve_addrinfo = query_addrinfo = set_option
