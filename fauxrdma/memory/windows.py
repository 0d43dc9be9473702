"""Memory windows: remote access to part of a region, given and taken without touching the region (IBTA vol. 1, 10.6.7).

A window has a 24-bit index of its own, the upper bits of all its rkeys; the low 8 bits change with each bind. Type 1 is
bound by `ibv_bind_mw`, again and again, and a bind of length zero takes the access away. Type 2 (2B: it belongs to the
queue pair it was bound on) is bound by a posted BIND_MW, must not be bound when it is, and is taken away by LOCAL_INV
or by the peer's SEND_WITH_INV.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags, MwType
from fauxrdma.memory.fault import Fault
from fauxrdma.memory.spans import Piece

if TYPE_CHECKING:
    from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain

__all__ = ["MemoryWindow", "WindowTable"]

_LOCAL_WRITE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE)
_MW_BIND = int(AccessFlags.IBV_ACCESS_MW_BIND)
_ZERO_BASED = int(AccessFlags.IBV_ACCESS_ZERO_BASED)
_WRITES = int(AccessFlags.IBV_ACCESS_REMOTE_WRITE | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC)
_GRANTABLE = _WRITES | int(AccessFlags.IBV_ACCESS_REMOTE_READ) | _ZERO_BASED


@dataclass(slots=True, eq=False)
class MemoryWindow:
    """A window. Bound: `region` is set, and [`base`, `base` + `length`) of it is granted to holders of `rkey`.

    `offset` is where the range begins in the region; `qpn` is the queue pair of a bound type 2 window, else 0.
    """

    handle: int
    pd: ProtectionDomain
    mw_type: MwType
    rkey: int
    region: MemoryRegion | None = field(default=None, repr=False)
    base: int = 0
    length: int = 0
    access: int = 0
    offset: int = 0
    qpn: int = 0

    def __str__(self) -> str:
        if self.region is None:
            return "a memory window that is not bound"
        return f"memory window [0x{self.base:x}, 0x{self.base + self.length:x}) of {self.length} B in {self.region}"


class WindowTable:
    """The windows of one HCA. `new_key` and `free_key` are the key table's: no key shares its index with another's."""

    def __init__(self, new_key: Callable[[], int], free_key: Callable[[int], None]) -> None:
        self._new_key = new_key
        self._free_key = free_key
        self._by_index: dict[int, MemoryWindow] = {}
        self._by_handle: dict[int, MemoryWindow] = {}

    def __len__(self) -> int:
        return len(self._by_index)

    def allocate(self, handle: int, pd: ProtectionDomain, mw_type: int) -> MemoryWindow:
        """A new window, not bound. Raises VerbsError(EINVAL) for an unknown type."""
        try:
            kind = MwType(mw_type)
        except ValueError:
            raise VerbsError(errno.EINVAL, f"Failed to allocate a MW: {mw_type} is not a window type (1, 2)") from None
        window = MemoryWindow(handle, pd, kind, self._new_key())
        self._by_index[window.rkey >> 8] = window
        self._by_handle[handle] = window
        pd.children += 1
        return window

    def free(self, window: MemoryWindow) -> None:
        """Take a window out, bound or not: its rkey fails from now on."""
        if self._by_handle.pop(window.handle, None) is None:
            return
        self._unbind(window)
        del self._by_index[window.rkey >> 8]
        self._free_key(window.rkey)
        window.pd.children -= 1

    def bind(
        self,
        handle: int,
        pd: ProtectionDomain,
        qpn: int,
        rkey: int,
        region: MemoryRegion | None,
        addr: int,
        length: int,
        access: int,
    ) -> Fault | None:
        """Bind a window to [`addr`, `addr` + `length`) of `region` under a new rkey; why not, when it is refused (and
        nothing has changed). `pd` and `qpn` are those of the queue pair that executes the bind."""
        window = self._by_handle.get(handle)
        if window is None or window.pd is not pd:
            return Fault(f"there is no memory window {handle} in the queue pair's protection domain")
        if rkey >> 8 != window.rkey >> 8:
            return Fault(f"rkey 0x{rkey:x} is not one of this window: its keys are 0x{window.rkey >> 8:06x}xx")
        if window.mw_type == MwType.IBV_MW_TYPE_2:
            if window.region is not None:
                return Fault(f"rkey 0x{window.rkey:x}: {window} is bound already: invalidate it first")
            if length == 0:
                return Fault("a type 2 window cannot be bound to zero bytes: invalidate it instead")
        elif length == 0:
            self._unbind(window)
            window.rkey = rkey
            return None
        if region is None:
            return Fault("the lkey of the bind is not registered on this device")
        if region.pd is not pd:
            return Fault(f"{region} belongs to another protection domain than the queue pair")
        if not region.access & _MW_BIND:
            return Fault(f"{region} does not grant IBV_ACCESS_MW_BIND (access 0x{region.access:x})")
        access &= ~_LOCAL_WRITE  # a window says nothing of local access, and adapters take no offence
        if access & ~_GRANTABLE:
            return Fault(f"access 0x{access:x} is not one a window can grant: REMOTE_* and ZERO_BASED are")
        if access & _WRITES and not region.access & _LOCAL_WRITE:
            return Fault(f"REMOTE_WRITE and REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE on {region}")
        offset = addr if region.access & _ZERO_BASED else addr - region.base
        if offset < 0 or offset + length > region.length:
            return Fault(f"the range [0x{addr:x}, 0x{addr + length:x}) of {length} B leaves {region}")
        self._unbind(window)
        region.windows += 1
        window.region, window.rkey = region, rkey
        window.base, window.length, window.access, window.offset = addr, length, access, offset
        window.qpn = qpn if window.mw_type == MwType.IBV_MW_TYPE_2 else 0
        return None

    def resolve(self, pd: ProtectionDomain, va: int, length: int, rkey: int, need: int, qpn: int) -> Piece | Fault:
        """The bytes a remote request names through a window, or why not; as KeyTable.remote."""
        window = self._by_index.get(rkey >> 8)
        if window is None or window.rkey != rkey:
            return Fault(f"rkey 0x{rkey:x} is not registered on this device (range 0x{va:x} + {length} B)")
        region = window.region
        if region is None:
            return Fault(f"rkey 0x{rkey:x} is that of {window} (range 0x{va:x} + {length} B)")
        if window.pd is not pd:
            return Fault(f"rkey 0x{rkey:x} belongs to another protection domain than the queue pair ({window})")
        if window.qpn not in (0, qpn):
            return Fault(f"rkey 0x{rkey:x}: {window} belongs to QP 0x{window.qpn:x}, the request came to QP 0x{qpn:x}")
        offset = va if window.access & _ZERO_BASED else va - window.base
        if offset < 0 or offset + length > window.length:
            return Fault(f"rkey 0x{rkey:x}: the range [0x{va:x}, 0x{va + length:x}) of {length} B leaves {window}")
        if need & ~window.access:
            return Fault(
                f"rkey 0x{rkey:x}: {window} does not grant {AccessFlags(need).name} (access 0x{window.access:x})"
            )
        begin = window.offset + offset
        return region.view[begin : begin + length]

    def check_invalidate(self, pd: ProtectionDomain, qpn: int, rkey: int) -> Fault | None:
        """Why queue pair `qpn` may not invalidate `rkey`; None if it may: a type 2 window that is bound on it."""
        window = self._by_index.get(rkey >> 8)
        if window is None or window.rkey != rkey or window.mw_type != MwType.IBV_MW_TYPE_2:
            return Fault(f"rkey 0x{rkey:x} is not that of a type 2 memory window: only those can be invalidated")
        if window.region is None:
            return Fault(f"rkey 0x{rkey:x} is that of {window}")
        if window.pd is not pd or window.qpn != qpn:
            return Fault(f"rkey 0x{rkey:x}: {window} belongs to QP 0x{window.qpn:x}, not to QP 0x{qpn:x}")
        return None

    def invalidate(self, rkey: int) -> None:
        """Take the access away; checked before."""
        self._unbind(self._by_index[rkey >> 8])

    def queue_pair_gone(self, qpn: int) -> None:
        """A queue pair was destroyed: its type 2 windows must not become those of the next with its number."""
        for window in self._by_index.values():
            if window.region is not None and window.qpn == qpn:
                self._unbind(window)

    def _unbind(self, window: MemoryWindow) -> None:
        if window.region is not None:
            window.region.windows -= 1
            window.region = None
            window.qpn = 0
