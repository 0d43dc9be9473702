"""Protection domains, memory regions and the key table that guards them (IBTA vol. 1, 10.6).

Every access, local or remote, goes through :class:`KeyTable`: the key must exist, belong to the queue pair's protection
domain, cover the range and grant the access. What is refused is described by a :class:`Fault` that names the key, the
region and the range, so that the person who meets REM_ACCESS_ERR does not have to guess.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from dataclasses import dataclass, field

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags
from fauxrdma.memory.fault import Fault
from fauxrdma.memory.windows import WindowTable

__all__ = ["Fault", "KeyTable", "MemoryRegion", "ProtectionDomain"]

_KNOWN_FLAGS = 0
for _flag in AccessFlags:
    _KNOWN_FLAGS |= int(_flag)

# Plain ints for the data path: operations on IntFlag members take microseconds.
_LOCAL_WRITE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE)
_ZERO_BASED = int(AccessFlags.IBV_ACCESS_ZERO_BASED)

_QUARANTINE = 4096
"""How many freed keys are kept from reuse: a stale key must fail, not hit somebody else's region."""


@dataclass(slots=True, eq=False)
class ProtectionDomain:
    """A protection domain: regions and queue pairs meet only inside one. `children` counts what still uses it."""

    handle: int
    children: int = 0


@dataclass(slots=True, eq=False)
class MemoryRegion:
    """A registered range: `base` is the owner's virtual address, `view` the same bytes in this process."""

    handle: int
    pd: ProtectionDomain
    base: int
    length: int
    access: int
    view: memoryview = field(repr=False)
    lkey: int = 0
    rkey: int = 0
    windows: int = 0  # memory windows bound to it

    def __str__(self) -> str:
        return f"region [0x{self.base:x}, 0x{self.base + self.length:x}) of {self.length} B"


class KeyTable:
    """The memory protection table of one HCA: lkeys and rkeys to regions.

    Keys are random 32-bit numbers from `rng` (the daemon injects the system's, the simulator a seeded one): they cannot
    be guessed by counting, the two keys of a region differ, and freed ones are not reused soon.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._by_lkey: dict[int, MemoryRegion] = {}
        self._by_rkey: dict[int, MemoryRegion] = {}
        self._freed: deque[int] = deque(maxlen=_QUARANTINE)
        self.windows = WindowTable(rng, self._index_taken)

    def __len__(self) -> int:
        return len(self._by_lkey)

    def register(
        self, handle: int, pd: ProtectionDomain, base: int, length: int, access: int, view: memoryview
    ) -> MemoryRegion:
        """Enter a region and give it keys. Raises VerbsError(EINVAL) for flags or ranges no HCA accepts."""
        if access & ~_KNOWN_FLAGS:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: access 0x{access:x} has unknown bits")
        remote_writes = AccessFlags.IBV_ACCESS_REMOTE_WRITE | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
        if access & remote_writes and not access & AccessFlags.IBV_ACCESS_LOCAL_WRITE:
            raise VerbsError(
                errno.EINVAL,
                "Failed to register a MR: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too",
            )
        if length <= 0 or len(view) != length:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {length} is not that of the memory")
        region = MemoryRegion(handle, pd, base, length, int(access), view, self._new_key(), 0)
        self._by_lkey[region.lkey] = region
        region.rkey = self._new_key()
        self._by_rkey[region.rkey] = region
        pd.children += 1
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Take a region out: its keys fail from now on. Raises VerbsError(EBUSY) while memory windows are bound."""
        if region.windows:
            raise VerbsError(
                errno.EBUSY, f"Failed to deregister a MR: {region.windows} memory windows are bound to {region}"
            )
        if self._by_lkey.pop(region.lkey, None) is None:
            return
        del self._by_rkey[region.rkey]
        self._freed.extend((region.lkey, region.rkey))
        region.pd.children -= 1

    def by_lkey(self, lkey: int) -> MemoryRegion | None:
        """The region with this lkey, if there is one."""
        return self._by_lkey.get(lkey)

    def local(self, pd: ProtectionDomain, addr: int, length: int, lkey: int, writing: bool) -> memoryview | Fault:
        """The bytes an SGE names, or why not. `writing` asks for IBV_ACCESS_LOCAL_WRITE."""
        region = self._by_lkey.get(lkey)
        if region is None:
            return Fault(f"lkey 0x{lkey:x} is not registered on this device")
        need = _LOCAL_WRITE if writing else 0
        return self._check(region, pd, addr, length, need, f"lkey 0x{lkey:x}")

    def remote(
        self, pd: ProtectionDomain, va: int, length: int, rkey: int, need: int, qpn: int = 0
    ) -> memoryview | Fault:
        """The bytes a RETH names, or why not. `need` is the one remote access flag the operation asks for, `qpn` the
        queue pair that received it."""
        region = self._by_rkey.get(rkey)
        if region is None:
            return self.windows.resolve(pd, va, length, rkey, need, qpn)
        return self._check(region, pd, va, length, need, f"rkey 0x{rkey:x}")

    def _check(
        self, region: MemoryRegion, pd: ProtectionDomain, addr: int, length: int, need: int, key: str
    ) -> memoryview | Fault:
        if region.pd is not pd:
            return Fault(f"{key} belongs to another protection domain than the queue pair ({region})")
        offset = addr if region.access & _ZERO_BASED else addr - region.base
        if offset < 0 or offset + length > region.length:
            return Fault(f"{key}: the range [0x{addr:x}, 0x{addr + length:x}) of {length} B leaves {region}")
        if need & ~region.access:
            return Fault(f"{key}: {region} does not grant {AccessFlags(need).name} (access 0x{region.access:x})")
        return region.view[offset : offset + length]

    def _new_key(self) -> int:
        while True:
            key = self._rng.getrandbits(32)
            # 0 and all ones are what forgotten or poisoned fields hold; they must never be valid.
            if key in (0, 0xFFFFFFFF) or key in self._by_lkey or key in self._by_rkey or key in self._freed:
                continue
            if self.windows.has_index(key):
                continue
            return key

    def _index_taken(self, index: int) -> bool:
        """Whether a region's key has this 24-bit index."""
        return any(key in self._by_lkey or key in self._by_rkey for key in range(index << 8, (index + 1) << 8))
