"""Completion channels and queues (pyverbs.cq)."""

from __future__ import annotations

from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as, verb
from fauxrdma.compat.libibverbs_enums import ibv_create_cq_wc_flags, ibv_wc_flags
from fauxrdma.compat.utils import table
from fauxrdma.ib import strings, work

__all__ = [
    "CQ",
    "CQEX",
    "WC",
    "CompChannel",
    "CqInitAttrEx",
    "PollCqAttr",
    "WcTmInfo",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
    "create_wc_flags_to_str",
    "flags_to_str",
]

cqe_status_to_str = strings.cqe_status_to_str
cqe_opcode_to_str = strings.cqe_opcode_to_str


class CompChannel(Handle, verbs.CompChannel, PyverbsCM):
    """Where completion queues announce completions; `fd` becomes readable. Closing it closes its queues."""

    _CLOSING = "Failed to destroy a completion channel"

    def __init__(self, context: Any) -> None:
        with refused_as("Failed to create a completion channel"):
            verbs.CompChannel.__init__(self, context)
        adopt(context, self)

    get_cq_event = verb("Failed to get CQ event")(verbs.CompChannel.get_cq_event)


class WC(PyverbsObject, work.WC):
    """A work completion. `imm_data` is in network order."""

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
        pkey_index: int = 0,
        slid: int = 0,
        sl: int = 0,
        dlid_path_bits: int = 0,
    ) -> None:
        work.WC.__init__(
            self, wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl
        )
        self.dlid_path_bits = dlid_path_bits

    @classmethod
    def of(cls, wc: work.WC) -> WC:
        """The same in pyverbs' shape."""
        return cls(
            wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len, wc.qp_num, wc.src_qp, wc.imm_data, wc.wc_flags,
            wc.pkey_index, wc.slid, wc.sl,
        )  # fmt: skip

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "WR ID": self.wr_id,
            "status": cqe_status_to_str(self.status),
            "opcode": cqe_opcode_to_str(self.opcode),
            "vendor error": self.vendor_err,
            "byte length": self.byte_len,
            "QP num": self.qp_num,
            "source QP": self.src_qp,
            "WC flags": cqe_flags_to_str(self.wc_flags),
            "pkey index": self.pkey_index,
            "slid": self.slid,
            "sl": self.sl,
            "dlid path bits": self.dlid_path_bits,
        }
        return table(rows)


class _Queue(Handle):
    """What CQ and CQEX share: closing acknowledges what was not."""

    def close(self) -> None:
        """Destroy the queue pairs that use it, then itself. Idempotent."""
        events = self.__dict__.get("_events")
        if events is not None and events.unacked:
            events.acknowledge(events.unacked)
        super().close()


class CQ(_Queue, verbs.CQ, PyverbsCM):
    """A completion queue of `cqe` entries."""

    _CLOSING = "Failed to close CQ"

    def __init__(
        self,
        context: Any,
        cqe: int,
        cq_context: Any = None,
        channel: verbs.CompChannel | None = None,
        comp_vector: int = 0,
    ) -> None:
        with refused_as("Failed to create a CQ"):
            verbs.CQ.__init__(self, context, int(cqe), cq_context, channel, comp_vector)
        adopt(context, self)
        adopt(channel, self)

    @property
    def comp_channel(self) -> verbs.CompChannel | None:
        """Where it announces completions."""
        return self.channel

    @verb("Failed to poll CQ")
    def poll(self, num_entries: int = 1) -> tuple[int, list[WC]]:  # type: ignore[override]
        """Up to `num_entries` completions, oldest first: (how many, the completions)."""
        number, wcs = verbs.CQ.poll(self, num_entries)
        return number, [WC.of(wc) for wc in wcs]

    req_notify = verb("Request notify CQ")(verbs.CQ.req_notify)
    ack_events = verb("Failed to acknowledge CQ events")(verbs.CQ.ack_events)
    resize = verb("Failed to resize CQ")(verbs.CQ.resize)

    def __str__(self) -> str:
        return "CQ\n" + table({"Handle": self.handle, "CQEs": self.cqe})


class CqInitAttrEx(PyverbsObject, verbs.CqInitAttrEx):
    """What an extended completion queue is made of."""

    def __init__(
        self,
        cqe: int = 100,
        channel: verbs.CompChannel | None = None,
        comp_vector: int = 0,
        wc_flags: int = 0,
        comp_mask: int = 0,
        flags: int = 0,
        parent_domain: Any = None,
    ) -> None:
        if parent_domain is not None:
            not_offered("Failed to create extended CQ", "parent domains")
        verbs.CqInitAttrEx.__init__(self, int(cqe), channel, comp_vector, int(wc_flags), comp_mask, flags)

    @property
    def comp_channel(self) -> verbs.CompChannel | None:
        """pyverbs' name for `channel`."""
        return self.channel

    @comp_channel.setter
    def comp_channel(self, val: verbs.CompChannel | None) -> None:
        self.channel = val

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "Number of CQEs": self.cqe,
            "WC flags": create_wc_flags_to_str(self.wc_flags),
            "comp mask": self.comp_mask,
            "flags": self.flags,
        }
        return table(rows)


class PollCqAttr(PyverbsObject, verbs.PollCqAttr):
    """For extensions of start_poll; there are none."""


class WcTmInfo(PyverbsObject):
    """What tag matching would say."""

    def __init__(self, tag: int = 0, priv: int = 0) -> None:
        self.tag = tag
        self.priv = priv


class CQEX(_Queue, verbs.CQEX, PyverbsCM):
    """An extended completion queue: `start_poll`, `poll_next`, `end_poll`, and reading field by field."""

    _CLOSING = "Failed to destroy CQEX"

    def __init__(self, context: Any, init_attr: verbs.CqInitAttrEx | None = None) -> None:
        with refused_as("Failed to create extended CQ"):
            verbs.CQEX.__init__(self, context, init_attr)
        adopt(context, self)
        adopt(self.channel, self)

    start_poll = verb("Failed to poll CQ")(verbs.CQEX.start_poll)
    poll_next = verb("Failed to poll CQ")(verbs.CQEX.poll_next)
    end_poll = verb("Failed to poll CQ")(verbs.CQEX.end_poll)
    req_notify = verb("Request notify CQ")(verbs.CQEX.req_notify)
    ack_events = verb("Failed to acknowledge CQ events")(verbs.CQEX.ack_events)
    resize = verb("Failed to resize CQ")(verbs.CQEX.resize)
    read_opcode = verb("Failed to read")(verbs.CQEX.read_opcode)
    read_vendor_err = verb("Failed to read")(verbs.CQEX.read_vendor_err)
    read_wc_flags = verb("Failed to read")(verbs.CQEX.read_wc_flags)
    read_byte_len = verb("Failed to read")(verbs.CQEX.read_byte_len)
    read_imm_data = verb("Failed to read")(verbs.CQEX.read_imm_data)
    read_qp_num = verb("Failed to read")(verbs.CQEX.read_qp_num)
    read_src_qp = verb("Failed to read")(verbs.CQEX.read_src_qp)
    read_slid = verb("Failed to read")(verbs.CQEX.read_slid)
    read_sl = verb("Failed to read")(verbs.CQEX.read_sl)
    read_dlid_path_bits = verb("Failed to read")(verbs.CQEX.read_dlid_path_bits)
    read_timestamp = verb("Failed to read")(verbs.CQEX.read_timestamp)
    read_completion_wallclock_ns = verb("Failed to read")(verbs.CQEX.read_completion_wallclock_ns)

    def read_cvlan(self) -> int:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to read cvlan", "VLANs")

    def read_flow_tag(self) -> int:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to read flow tag", "flow steering")

    def read_tm_info(self) -> WcTmInfo:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to read TM info", "tag matching")

    def __str__(self) -> str:
        return "Extended CQ:\n" + table({"Handle": self.handle, "CQEs": self.cqe})


def flags_to_str(flags: int, dictionary: dict[int, str]) -> str:
    """The names of the bits that are set."""
    return "".join(f"{name} " for bit, name in dictionary.items() if flags & bit)


def cqe_flags_to_str(flags: int) -> str:
    """The names of a completion's flags."""
    return flags_to_str(flags, {int(flag): flag.name for flag in ibv_wc_flags})


def create_wc_flags_to_str(flags: int) -> str:
    """The names of the fields an extended queue was made for."""
    return flags_to_str(flags, {int(flag): flag.name for flag in ibv_create_cq_wc_flags})
