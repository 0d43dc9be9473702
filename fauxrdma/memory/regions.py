"""Protection domains, memory regions and the key table that guards them (IBTA vol. 1, 10.6).

Every access, local or remote, goes through :class:`KeyTable`: the key must exist, belong to the queue pair's protection
domain, cover the range and grant the access. What is refused is described by a :class:`Fault` that names the key, the
region and the range, so that the person who meets REM_ACCESS_ERR does not have to guess.
"""

from __future__ import annotations

import errno
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags
from fauxrdma.memory.fault import Fault
from fauxrdma.memory.location import HOST_MEMORY, Extent
from fauxrdma.memory.spans import Piece, ProcessMemory, ProcessSpan
from fauxrdma.memory.windows import WindowTable

__all__ = ["Fault", "KeyTable", "MemoryRegion", "ProtectionDomain", "check_access", "check_range"]

_KNOWN_FLAGS = 0
for _flag in AccessFlags:
    _KNOWN_FLAGS |= int(_flag)

# Plain ints for the data path: operations on IntFlag members take microseconds.
_LOCAL_WRITE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE)
_ZERO_BASED = int(AccessFlags.IBV_ACCESS_ZERO_BASED)

_QUARANTINE = 65536
"""How many freed key indices are kept from reuse: a stale key must fail, not hit somebody else's region."""
_LAST_ADDRESS = (1 << 64) - 1


@dataclass(slots=True, eq=False)
class ProtectionDomain:
    """A protection domain: regions and queue pairs meet only inside one. `children` counts what still uses it."""

    handle: int
    children: int = 0


@dataclass(slots=True, eq=False)
class MemoryRegion:
    """A registered range: `base` is the owner's virtual address, `view` the same bytes as this process reaches them.

    `windows` counts the memory windows bound to it. `location` is the memory it stands for (fauxrdma.memory.location):
    the bytes are ordinary, the fabric charges them to the way from there to the HCA.
    """

    handle: int
    pd: ProtectionDomain
    base: int
    length: int
    access: int
    view: Piece = field(repr=False)
    lkey: int = 0
    rkey: int = 0
    windows: int = 0
    location: int = HOST_MEMORY

    @property
    def memory(self) -> object:
        """What every piece of this region, and of no other, has as its `obj`."""
        return self.view.obj

    def __str__(self) -> str:
        return f"region [0x{self.base:x}, 0x{self.base + self.length:x}) of {self.length} B"


def check_access(access: int) -> None:
    """Raise VerbsError(EINVAL) for access flags no HCA takes. On-demand regions are pinned like all others."""
    if access & ~_KNOWN_FLAGS:
        raise VerbsError(errno.EINVAL, f"Failed to register a MR: access 0x{access:x} has unknown bits")
    remote_writes = AccessFlags.IBV_ACCESS_REMOTE_WRITE | AccessFlags.IBV_ACCESS_REMOTE_ATOMIC
    if access & remote_writes and not access & AccessFlags.IBV_ACCESS_LOCAL_WRITE:
        raise VerbsError(errno.EINVAL, "Failed to register a MR: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too")


def check_range(base: int, length: int) -> None:
    """Raise VerbsError(EINVAL) for a range that is empty or leaves the address space."""
    if length <= 0 or base < 0 or base + length - 1 > _LAST_ADDRESS:
        raise VerbsError(
            errno.EINVAL, f"Failed to register a MR: 0x{base:x} + {length} B is no range of the address space"
        )


class KeyTable:
    """The memory protection table of one HCA: lkeys and rkeys to regions.

    A key is a 24-bit index and an 8-bit tag, as on hardware; both are random, from `rng` (the daemon injects the
    system's, the simulator a seeded one): they cannot be guessed by counting. The two keys of a region have different
    indices, and a freed index is not used again soon.

    `indirect` counts the regions that are not mapped here: while it is 0 every piece is a memoryview.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._by_lkey: dict[int, MemoryRegion] = {}
        self._by_rkey: dict[int, MemoryRegion] = {}
        self._indices: set[int] = set()  # in use or freed lately
        self._freed: deque[int] = deque()
        self._located: dict[int, int] = {}  # by id() of their memory, the regions that are not in host memory
        self.indirect = 0
        self.windows = WindowTable(self.new_key, self.free_key)

    def __len__(self) -> int:
        return len(self._by_lkey)

    def register(
        self,
        handle: int,
        pd: ProtectionDomain,
        base: int,
        length: int,
        access: int,
        view: Piece,
        location: int = HOST_MEMORY,
    ) -> MemoryRegion:
        """Enter a region and give it keys. `view` must not share its `obj` with another region's.

        Raises VerbsError(EINVAL) for flags or ranges no HCA accepts.
        """
        check_access(access)
        check_range(base, length)
        if len(view) != length:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {length}, the memory has {len(view)} B")
        keys = self.new_key(), self.new_key()
        region = MemoryRegion(handle, pd, base, length, int(access), view, *keys, location=location)
        if location != HOST_MEMORY:
            self._located[id(region.memory)] = location
        self._by_lkey[region.lkey] = region
        self._by_rkey[region.rkey] = region
        self.indirect += isinstance(view, ProcessSpan)
        pd.children += 1
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Take a region out: its keys fail from now on. Idempotent. Raises VerbsError(EBUSY) with windows bound to it.

        Pieces that were handed out before are the engine's to take back (:meth:`HcaEngine.deregister`); those of
        another process's memory move nothing any more.
        """
        if self._by_lkey.get(region.lkey) is not region:
            return
        if region.windows:
            raise VerbsError(
                errno.EBUSY, f"Failed to deregister MR {region.handle}: {region.windows} memory windows are bound to it"
            )
        del self._by_lkey[region.lkey]
        del self._by_rkey[region.rkey]
        self.free_key(region.lkey)
        self.free_key(region.rkey)
        memory = region.memory
        self._located.pop(id(memory), None)
        if isinstance(memory, ProcessMemory):
            memory.revoked = True
            self.indirect -= 1
        region.pd.children -= 1

    def local(self, pd: ProtectionDomain, addr: int, length: int, lkey: int, writing: bool) -> Piece | Fault:
        """The bytes an SGE names, or why not. `writing` asks for IBV_ACCESS_LOCAL_WRITE."""
        region = self._by_lkey.get(lkey)
        if region is None:
            return Fault(f"lkey 0x{lkey:x} is not registered on this device")
        need = _LOCAL_WRITE if writing else 0
        return self._check(region, pd, addr, length, need, f"lkey 0x{lkey:x}")

    def by_lkey(self, lkey: int) -> MemoryRegion | None:
        """The region with this lkey, if there is one."""
        return self._by_lkey.get(lkey)

    def remote(self, pd: ProtectionDomain, va: int, length: int, rkey: int, need: int, qpn: int = 0) -> Piece | Fault:
        """The bytes a RETH names, or why not. `need` is the one remote access flag the operation asks for, `qpn` the
        queue pair that received it."""
        region = self._by_rkey.get(rkey)
        if region is None:
            return self.windows.resolve(pd, va, length, rkey, need, qpn)
        return self._check(region, pd, va, length, need, f"rkey 0x{rkey:x}")

    def _check(
        self, region: MemoryRegion, pd: ProtectionDomain, addr: int, length: int, need: int, key: str
    ) -> Piece | Fault:
        if region.pd is not pd:
            return Fault(f"{key} belongs to another protection domain than the queue pair ({region})")
        offset = addr if region.access & _ZERO_BASED else addr - region.base
        if offset < 0 or offset + length > region.length:
            return Fault(f"{key}: the range [0x{addr:x}, 0x{addr + length:x}) of {length} B leaves {region}")
        if need & ~region.access:
            return Fault(f"{key}: {region} does not grant {AccessFlags(need).name} (access 0x{region.access:x})")
        return region.view[offset : offset + length]

    def location(self, piece: Piece) -> int:
        """Which memory a piece of a region is in. What belongs to no region, as inline data, is in host memory."""
        return self._located.get(id(piece.obj), HOST_MEMORY) if self._located else HOST_MEMORY

    def extents(self, pieces: Sequence[Piece], nbytes: int) -> tuple[Extent, ...]:
        """How the `nbytes` of these pieces are spread over the node's memories, in the order of the pieces."""
        if not nbytes:
            return ()
        if not self._located or len(pieces) == 1:
            return ((self.location(pieces[0]), nbytes),)
        sums: dict[int, int] = {}
        for piece in pieces:
            where = self.location(piece)
            sums[where] = sums.get(where, 0) + len(piece)
        return tuple(sums.items())

    def new_key(self) -> int:
        """A key whose index is neither in use nor was lately; its tag is random, too."""
        while True:
            key = self._rng.getrandbits(32)
            index = key >> 8
            # Indices 0 and all ones are what forgotten or poisoned fields hold; they must never be valid.
            if index not in (0, 0xFFFFFF) and index not in self._indices:
                self._indices.add(index)
                return key

    def free_key(self, key: int) -> None:
        """Give the index of a key back, to be used again much later."""
        self._freed.append(key >> 8)
        if len(self._freed) > _QUARANTINE:
            self._indices.discard(self._freed.popleft())
