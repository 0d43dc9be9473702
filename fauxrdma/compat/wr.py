"""Work requests (pyverbs.wr)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fauxrdma.compat.base import PyverbsCM
from fauxrdma.compat.handles import not_offered
from fauxrdma.compat.pyverbs_error import PyverbsUserError
from fauxrdma.compat.utils import table
from fauxrdma.ib import work
from fauxrdma.ib.enums import SendFlags, WrOpcode

__all__ = ["SGE", "RecvWR", "SendWR", "send_flags_to_str"]

_WITHOUT_DATA = (WrOpcode.IBV_WR_LOCAL_INV, WrOpcode.IBV_WR_BIND_MW, WrOpcode.IBV_WR_SEND_WITH_INV)


class SGE(PyverbsCM, work.SGE):
    """One piece of local memory: address, length in bytes, local key."""

    def __str__(self) -> str:
        return table({"Address": hex(self.addr), "Length": self.length, "Key": hex(self.lkey)})


def _copies(num_sge: int, sg: Sequence[work.SGE] | None) -> list[work.SGE]:
    """The first `num_sge` pieces as they are now: a request does not change with the SGEs it was made of."""
    return [work.SGE(each.addr, each.length, each.lkey) for each in (sg or ())[:num_sge]]


class RecvWR(PyverbsCM, work.RecvWR):
    """A receive request. Raises PyverbsUserError without an SGE."""

    def __init__(
        self,
        wr_id: int = 0,
        num_sge: int = 0,
        sg: Sequence[work.SGE] | None = None,
        next_wr: work.RecvWR | None = None,
    ) -> None:
        if num_sge < 1 or sg is None:
            raise PyverbsUserError("A WR needs at least one SGE")
        work.RecvWR.__init__(self, wr_id, _copies(num_sge, sg), next_wr)

    @property
    def num_sge(self) -> int:
        """Number of scatter/gather entries."""
        return len(self.sg)

    def __str__(self) -> str:
        return table({"WR ID": self.wr_id, "Num SGE": self.num_sge})


class SendWR(PyverbsCM, work.SendWR):
    """A send request, with pyverbs' arguments. `imm_data` is in network order. Raises PyverbsUserError without an SGE,
    unless the operation carries no data."""

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = WrOpcode.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        sg: Sequence[work.SGE] | None = None,
        send_flags: int = SendFlags.IBV_SEND_SIGNALED,
        next_wr: work.SendWR | None = None,
    ) -> None:
        if opcode not in _WITHOUT_DATA and (num_sge < 1 or sg is None):
            raise PyverbsUserError("A WR needs at least one SGE")
        work.SendWR.__init__(self, wr_id, opcode, _copies(num_sge, sg), imm_data, int(send_flags), next_wr=next_wr)

    @property
    def sg_list(self) -> Sequence[work.SGE]:
        """The pieces of memory; set it to one SGE."""
        return self.sg

    @sg_list.setter
    def sg_list(self, val: work.SGE) -> None:
        self.sg = [val]

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""
        not_offered("Failed to set the remote SRQ", "XRC queue pairs")

    def __str__(self) -> str:
        rows: dict[str, Any] = {
            "WR ID": self.wr_id,
            "Num SGE": self.num_sge,
            "Opcode": int(self.opcode),
            "Send flags": send_flags_to_str(self.send_flags),
            "Imm Data": self.imm_data,
        }
        return table(rows)


def send_flags_to_str(flags: int) -> str:
    """`IBV_SEND_SIGNALED IBV_SEND_FENCE ` for the bits of a mask."""
    return "".join(f"{flag.name} " for flag in SendFlags if flags & flag)
