"""Memory windows: remote access to part of a region, granted and taken away by work requests (IBTA vol. 1, 10.6.7)."""

from __future__ import annotations

from typing import Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.ib.enums import MwType, SendFlags
from fauxrdma.verbs.memory import MR, PD

__all__ = ["MW", "MWBind", "MWBindInfo", "inc_rkey"]


def inc_rkey(rkey: int) -> int:
    """The next rkey of the same window: the low 8 bits count, the upper 24 stay (ibv_inc_rkey)."""
    return rkey & 0xFFFFFF00 | (rkey + 1) & 0xFF


class MW:
    """A memory window of type IBV_MW_TYPE_1 or IBV_MW_TYPE_2, not bound yet.

    A type 1 window is bound by :meth:`QP.bind_mw`, which gives it a new `rkey`. A type 2 window is bound by a posted
    IBV_WR_BIND_MW; the program then sets `rkey` to the key it chose. Raises VerbsError(EINVAL) for another type.
    """

    CLOSE_ORDER = 1

    def __init__(self, pd: PD, mw_type: int) -> None:
        self.pd = pd
        self.mw_type = int(mw_type)
        made: V.MwKey = pd.context._request(V.AllocMw(pd.handle, int(mw_type)), V.MwKey)
        self.handle = made.handle
        self.rkey = made.rkey
        self._closed = False
        pd.context._children.add(self)

    def close(self) -> None:
        """Free it, bound or not: its rkey fails from now on. Idempotent."""
        if not self._closed:
            self.pd.context._destroy("mw", self.handle)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"MW({MwType(self.mw_type).name}, rkey 0x{self.rkey:x})"


class MWBindInfo:
    """What a window is bound to: [`addr`, `addr` + `length`) of `mr`, for `mw_access_flags` (IBV_ACCESS_REMOTE_* and
    IBV_ACCESS_ZERO_BASED). The region needs IBV_ACCESS_MW_BIND, and IBV_ACCESS_LOCAL_WRITE for writes and atomics."""

    __slots__ = ("addr", "length", "mr", "mw_access_flags")

    def __init__(self, mr: MR, addr: int, length: int, mw_access_flags: int) -> None:
        self.mr = mr
        self.addr = addr
        self.length = length
        self.mw_access_flags = int(mw_access_flags)


class MWBind:
    """A bind of a type 1 window, for :meth:`QP.bind_mw`: to what, with which wr_id and send flags."""

    __slots__ = ("info", "send_flags", "wr_id")

    def __init__(self, info: MWBindInfo, wr_id: int = 0, send_flags: int = int(SendFlags.IBV_SEND_SIGNALED)) -> None:
        self.info = info
        self.wr_id = wr_id
        self.send_flags = send_flags
