"""Memory regions and windows (pyverbs.mr)."""

from __future__ import annotations

import ctypes
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as, verb
from fauxrdma.compat.pyverbs_error import PyverbsUserError
from fauxrdma.compat.utils import table
from fauxrdma.ib.enums import MwType, ReregMrFlags

__all__ = [
    "DMMR",
    "MR",
    "MW",
    "Buf",
    "BufMR",
    "DMAHandle",
    "DmaBufMR",
    "DmaHandleInitAttr",
    "MREx",
    "MWBind",
    "MWBindInfo",
    "mwtype2str",
]

HUGE_PAGE_SIZE = 0x200000
_HUGETLB = 1 << 7
"""IBV_ACCESS_HUGETLB says how the buffer is allocated; the device is not told."""


class MR(Handle, verbs.MR, PyverbsCM):
    """A region of `length` bytes: new memory, or what is at `address`. `implicit` and `handle` are EOPNOTSUPP."""

    _CLOSING = "Failed to dereg MR"

    def __init__(
        self,
        creator: Any,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        if implicit:
            not_offered("Failed to register a MR", "on-demand paging")
        if kwargs.get("handle") is not None:
            not_offered("Failed to import MR", "import of regions")
        with refused_as(f"Failed to register a MR. length: {length}, access flags: {access:d}"):
            verbs.MR.__init__(
                self, creator, int(length), int(access) & ~_HUGETLB, address or None, iova=kwargs.get("iova")
            )
        adopt(creator, self)

    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data`, text or bytes, at `offset`."""
        self._check_open(length, offset)
        with refused_as("Failed to write to the MR"):
            super().write(data.encode() if isinstance(data, str) else data, length, offset)

    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset`."""
        self._check_open(length, offset)
        with refused_as("Failed to read from the MR"):
            return super().read(length, offset)

    def _check_open(self, length: int, offset: int) -> None:
        if offset < 0:
            raise PyverbsUserError(f"Invalid offset {offset}")
        if self._closed or length < 0:
            raise PyverbsUserError(f"The MR buffer isn't allocated or length {length} is invalid")

    def rereg(self, flags: int, pd: Any = None, addr: Any = 0, length: int = 0, access: int = 0) -> None:
        """Change the region in place; both keys change. `flags` is an or of IBV_REREG_MR_CHANGE_*."""
        before = self.pd
        with refused_as("Failed to rereg MR"):
            super().rereg(flags, pd, addr, length, access)
        if flags & ReregMrFlags.IBV_REREG_MR_CHANGE_PD and isinstance(before, Handle):
            before.remove_ref(self)
            adopt(pd, self)

    def unimport(self) -> None:
        """Only what was imported can be."""
        not_offered("Failed to unimport MR", "import of regions")

    def __str__(self) -> str:
        rows: dict[str, object] = {name: getattr(self, name) for name in ("lkey", "rkey", "length", "buf", "handle")}
        return "MR\n" + table(rows)


class MREx(MR):
    """A region with what ibv_reg_mr_ex takes. With `iova` requests name its bytes from there on, not from `address`:
    for new memory, and for a dma-buf, which `fd` and `fd_offset` name. `dmah` is EOPNOTSUPP."""

    def __init__(
        self,
        creator: Any,
        length: int = 0,
        access: int = 0,
        address: int | None = None,
        implicit: bool = False,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("dmah") is not None:
            not_offered("Failed to register a MR", "DMA handles")
        if (buf := kwargs.get("buf")) is not None:
            address, length = buf.addr, length or buf.length
        iova, fd = kwargs.get("iova"), kwargs.get("fd")
        if fd is not None:
            with refused_as("Failed to register a dma-buf MR"):
                offset = kwargs.get("fd_offset") or 0
                verbs.DmaBufMR.__init__(self, creator, length, int(access), fd, offset, iova=iova)  # type: ignore[arg-type]
            adopt(creator, self)
            return
        super().__init__(creator, length, access, address, implicit, iova=None if iova == address else iova)


class DMMR(MR, verbs.DMMR):
    """A region over device memory; its addresses count from 0."""

    def __init__(self, pd: Any, length: int, access: int, dm: verbs.DM, offset: int) -> None:
        with refused_as(f"Failed to register a device MR. length: {length}, access flags: {access:d}"):
            verbs.DMMR.__init__(self, pd, int(length), int(access), dm, int(offset))
        adopt(pd, self)
        adopt(dm, self)

    @verb("Failed to copy to dm")
    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data`, text or bytes, at `offset`."""
        verbs.DMMR.write(self, data.encode() if isinstance(data, str) else data, length, offset)

    @verb("Failed to copy from dm")
    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset`."""
        return verbs.DMMR.read(self, length, offset)


class DmaBufMR(MR, verbs.DmaBufMR):
    """A region over a dma-buf: memory of an emulated GPU (pyverbs.dmabuf), or a descriptor. Requests name its bytes
    from `offset` on, as in pyverbs."""

    _CLOSING = "Failed to dereg dma-buf MR"

    def __init__(
        self, pd: Any, length: int, access: int, dmabuf: Any = None, offset: int = 0, gpu: int = 0, gtt: int = 0
    ) -> None:
        with refused_as(f"Failed to register a dma-buf MR. length: {length}, access flags: {access:d}"):
            self.dmabuf = verbs.DmaBuf(length + offset, gpu) if dmabuf is None else dmabuf
            self.offset = offset
            verbs.DmaBufMR.__init__(self, pd, length, int(access), self.dmabuf, offset, unit=gpu, iova=offset)
        adopt(pd, self)
        adopt(self.dmabuf, self)


class MWBindInfo(PyverbsCM, verbs.MWBindInfo):
    """What a window is bound to: [addr, addr + length) of a region, for these accesses."""

    def __str__(self) -> str:
        rows: dict[str, object] = {"Addr": self.addr, "Length": self.length, "MW access flags": self.mw_access_flags}
        return "MWBindInfo:\n" + table(rows)


class MWBind(PyverbsCM, verbs.MWBind):
    """A bind of a type 1 window. The arguments are in pyverbs' order."""

    def __init__(self, info: verbs.MWBindInfo, send_flags: int, wr_id: int = 0) -> None:
        verbs.MWBind.__init__(self, info, wr_id, int(send_flags))

    def __str__(self) -> str:
        return "MWBind:\n" + table({"WR id": self.wr_id, "Send flags": self.send_flags})


class MW(Handle, verbs.MW, PyverbsCM):
    """A memory window of type IBV_MW_TYPE_1 or IBV_MW_TYPE_2."""

    _CLOSING = "Failed to dealloc MW"

    def __init__(self, pd: Any, mw_type: int) -> None:
        with refused_as("Failed to allocate MW"):
            verbs.MW.__init__(self, pd, int(mw_type))
        adopt(pd, self)

    @property
    def type(self) -> int:
        """Its type."""
        return self.mw_type

    def __str__(self) -> str:
        rows: dict[str, object] = {"Rkey": self.rkey, "Handle": self.handle, "MW Type": mwtype2str(self.type)}
        return "MW:\n" + table(rows)


class Buf(PyverbsCM):
    """`length` bytes of plain memory at `addr`, zeroed."""

    def __init__(self, length: int, *_: Any, **__: Any) -> None:
        self.length = length
        self._memory = ctypes.create_string_buffer(length)
        self.addr = ctypes.addressof(self._memory)

    def write(self, data: Any, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data`, text or bytes, at `offset`."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        if not 0 <= offset <= self.length - length:
            raise PyverbsUserError(f"{length} B at offset {offset} leave the buffer of {self.length} B")
        ctypes.memmove(self.addr + offset, raw, min(length, len(raw)))

    def read(self, length: int, offset: int = 0) -> bytes:
        """A copy of `length` bytes from `offset`."""
        if not 0 <= offset <= self.length - length:
            raise PyverbsUserError(f"{length} B at offset {offset} leave the buffer of {self.length} B")
        return ctypes.string_at(self.addr + offset, length)


class BufMR(MR):
    """A region over a :class:`Buf`."""

    def __init__(self, creator: Any, buf: Buf, access: int, length: int | None = None, offset: int = 0) -> None:
        self.memory = buf
        super().__init__(creator, buf.length - offset if length is None else length, access, buf.addr + offset)


class DmaHandleInitAttr(PyverbsObject):
    """Hints for DMA: CPU and PCIe steering."""

    def __init__(self, comp_mask: int = 0, cpu_id: int = 0, ph: int = 0, tph_mem_type: int = 0) -> None:
        self.comp_mask = comp_mask
        self.cpu_id = cpu_id
        self.ph = ph
        self.tph_mem_type = tph_mem_type


class DMAHandle(PyverbsCM):
    """Not offered: PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, ctx: Any, attr: DmaHandleInitAttr | None = None) -> None:
        not_offered("Failed to allocate DMA handle", "DMA handles")


def mwtype2str(mw_type: int) -> str:
    """IBV_MW_TYPE_1 or IBV_MW_TYPE_2."""
    try:
        return MwType(mw_type).name
    except ValueError:
        return f"Unknown MW type ({mw_type})"
