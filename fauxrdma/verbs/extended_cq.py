"""Extended completion queues: completions read field by field (man ibv_create_cq_ex)."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import CreateCqAttrFlags, CreateCqWcFlags, WcStatus
from fauxrdma.ib.work import WC
from fauxrdma.verbs.completion import CQ, CompChannel
from fauxrdma.verbs.device import Context

__all__ = ["CQEX", "CqInitAttrEx", "PollCqAttr"]

_F = CreateCqWcFlags
_FLAGS_ARE_GIVEN = 1
"""IBV_CQ_INIT_ATTR_MASK_FLAGS; the other bit, for a parent domain, is not offered."""
_UNSUPPORTED = _F.IBV_WC_EX_WITH_CVLAN | _F.IBV_WC_EX_WITH_FLOW_TAG | _F.IBV_WC_EX_WITH_TM_INFO


@dataclass(slots=True)
class CqInitAttrEx:
    """What an extended completion queue is made of, with pyverbs' defaults.

    `wc_flags` (IBV_WC_EX_WITH_*) are the fields that can be read besides opcode, vendor_err and wc_flags; `flags` are
    IBV_CREATE_CQ_ATTR_*.
    """

    cqe: int = 100
    channel: CompChannel | None = None
    comp_vector: int = 0
    wc_flags: int = 0
    comp_mask: int = 0
    flags: int = 0
    cq_context: object = None


@dataclass(slots=True)
class PollCqAttr:
    """For extensions of start_poll; there are none."""

    comp_mask: int = 0


class CQEX(CQ):
    """A completion queue that is read in place::

        if cq.start_poll() == 0:
            while True:
                print(cq.wr_id, cq.status, cq.read_opcode())
                if cq.poll_next():
                    break
            cq.end_poll()

    Also an ordinary CQ, as ibv_cq_ex_to_cq gives. Raises VerbsError(EOPNOTSUPP) for fields and flags this device lacks.
    """

    def __init__(self, context: Context, init_attr: CqInitAttrEx | None = None) -> None:
        attr = init_attr or CqInitAttrEx()
        if attr.wc_flags & _UNSUPPORTED or attr.wc_flags >> 12:
            raise VerbsError(
                errno.EOPNOTSUPP,
                f"Failed to create extended CQ: there is not all of wc_flags 0x{attr.wc_flags:x}",
            )
        if attr.flags & ~CreateCqAttrFlags.IBV_CREATE_CQ_ATTR_SINGLE_THREADED:
            raise VerbsError(
                errno.EOPNOTSUPP, f"Failed to create extended CQ: flags 0x{attr.flags:x}, only SINGLE_THREADED is known"
            )
        if attr.comp_mask & ~_FLAGS_ARE_GIVEN:
            raise VerbsError(errno.EOPNOTSUPP, f"Failed to create extended CQ: comp_mask 0x{attr.comp_mask:x} is not 0")
        super().__init__(context, attr.cqe, attr.cq_context, attr.channel, attr.comp_vector)
        self._wc_flags = attr.wc_flags
        self._polling = False
        self._current: WC | None = None

    def start_poll(self, attr: PollCqAttr | None = None) -> int:
        """Begin a batch: 0, and the first completion can be read, or ENOENT (2) when there is none. After 0 call
        `end_poll` in the end. Raises VerbsError(EINVAL) inside a batch."""
        if attr is not None and attr.comp_mask:
            raise VerbsError(errno.EINVAL, f"Failed to poll CQ {self.handle}: comp_mask 0x{attr.comp_mask:x} is not 0")
        if self._polling:
            raise VerbsError(errno.EINVAL, f"Failed to poll CQ {self.handle}: start_poll before end_poll")
        self._polling = self._advance() == 0
        return 0 if self._polling else errno.ENOENT

    def poll_next(self) -> int:
        """Go to the next completion: 0, or ENOENT (2) when there is none."""
        if not self._polling:
            raise VerbsError(errno.EINVAL, f"Failed to poll CQ {self.handle}: poll_next without start_poll")
        return self._advance()

    def _advance(self) -> int:
        _, wcs = self.poll(1)
        if not wcs:
            return errno.ENOENT
        self._current = wcs[0]
        return 0

    def end_poll(self) -> None:
        """End the batch: nothing can be read any more."""
        if not self._polling:
            raise VerbsError(errno.EINVAL, f"Failed to poll CQ {self.handle}: end_poll without start_poll")
        self._polling = False
        self._current = None

    @property
    def _wc(self) -> WC:
        if self._current is None:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} has no completion to read: start_poll first")
        return self._current

    def _read(self, field: str, flag: CreateCqWcFlags) -> int:
        if not self._wc_flags & flag:
            raise VerbsError(errno.EINVAL, f"CQ {self.handle} was created without {flag.name}: {field} cannot be read")
        value: int = getattr(self._wc, field)
        return value

    @property
    def wr_id(self) -> int:
        """Of the current completion."""
        return self._wc.wr_id

    @property
    def status(self) -> WcStatus:
        """Of the current completion."""
        return WcStatus(self._wc.status)

    def read_opcode(self) -> int:
        """IBV_WC_*; of no meaning after an error."""
        return self._wc.opcode

    def read_vendor_err(self) -> int:
        """The vendor's code for an error."""
        return self._wc.vendor_err

    def read_wc_flags(self) -> int:
        """IBV_WC_GRH, IBV_WC_WITH_IMM, IBV_WC_WITH_INV."""
        return self._wc.wc_flags

    def read_byte_len(self) -> int:
        """Bytes transferred."""
        return self._read("byte_len", _F.IBV_WC_EX_WITH_BYTE_LEN)

    def read_imm_data(self) -> int:
        """The sender's 32 bits, untouched."""
        return self._read("imm_data", _F.IBV_WC_EX_WITH_IMM)

    def read_invalidated_rkey(self) -> int:
        """The key that a SEND_WITH_INV invalidated."""
        return self._read("imm_data", _F.IBV_WC_EX_WITH_IMM)

    def read_qp_num(self) -> int:
        """The local queue pair."""
        return self._read("qp_num", _F.IBV_WC_EX_WITH_QP_NUM)

    def read_src_qp(self) -> int:
        """The sender's queue pair."""
        return self._read("src_qp", _F.IBV_WC_EX_WITH_SRC_QP)

    def read_slid(self) -> int:
        """The sender's LID."""
        return self._read("slid", _F.IBV_WC_EX_WITH_SLID)

    def read_sl(self) -> int:
        """The service level."""
        return self._read("sl", _F.IBV_WC_EX_WITH_SL)

    def read_dlid_path_bits(self) -> int:
        """The low bits of the LID it was sent to: 0, since a port here has one LID (LMC 0)."""
        self._read("sl", _F.IBV_WC_EX_WITH_DLID_PATH_BITS)
        return 0

    def read_timestamp(self) -> int:
        """When it completed, in ns of fabric time."""
        return self._read("timestamp_ns", _F.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)

    def read_completion_wallclock_ns(self) -> int:
        """When it completed, in ns since 1970 by this machine's clock."""
        fabric_ns = self._read("timestamp_ns", _F.IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        return self.context._wallclock_ns(fabric_ns)
