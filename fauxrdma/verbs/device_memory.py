"""Device memory: a little memory on the HCA itself, allocated, copied to and from, and registered (ibv_alloc_dm)."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags
from fauxrdma.verbs.backing import Backing
from fauxrdma.verbs.device import Context
from fauxrdma.verbs.memory import MR, PD

__all__ = ["DM", "DMMR", "AllocDmAttr"]

_ALIGNMENT = 4
_ZERO_BASED = int(AccessFlags.IBV_ACCESS_ZERO_BASED)


@dataclass(slots=True)
class AllocDmAttr:
    """What to allocate: bytes, the logarithm of the alignment, and a mask of extensions (none exist)."""

    length: int
    log_align_req: int = 0
    comp_mask: int = 0


class DM:
    """`attr.length` bytes of the device's memory, zeroed; DeviceAttr.max_dm_size is all a device has.

    Raises VerbsError: EINVAL for a length or an extension no device takes, ENOMEM when the device has not enough left.
    """

    CLOSE_ORDER = 3

    def __init__(self, context: Context, attr: AllocDmAttr) -> None:
        self.context = context
        self.length = attr.length
        self.handle: int = context._request(
            V.AllocDm(attr.length, attr.log_align_req, attr.comp_mask), V.Created
        ).handle
        self._closed = False
        context._children.add(self)

    def copy_to_dm(self, dm_offset: int, data: bytes | bytearray | memoryview, length: int) -> None:
        """Copy the first `length` bytes of `data` to `dm_offset`. Both multiples of 4, or VerbsError(EINVAL)."""
        self._check("to", dm_offset, length)
        self.context._request(V.CopyToDm(self.handle, dm_offset, bytes(memoryview(data)[:length])), V.Done)

    def copy_from_dm(self, dm_offset: int, length: int) -> bytes:
        """A copy of `length` bytes from `dm_offset`. Both multiples of 4, or VerbsError(EINVAL)."""
        self._check("from", dm_offset, length)
        data: bytes = self.context._request(V.CopyFromDm(self.handle, dm_offset, length), V.DmData).data
        return data

    def _check(self, direction: str, offset: int, length: int) -> None:
        if offset % _ALIGNMENT or length % _ALIGNMENT:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to copy {direction} dm: offset {offset} and length {length} must be multiples of {_ALIGNMENT}",
            )

    def close(self) -> None:
        """Free it. Idempotent. Raises VerbsError(EBUSY) while regions over it exist."""
        if not self._closed:
            self.context._destroy("dm", self.handle)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DMMR(MR):
    """A region over `length` bytes of device memory from `offset` on. It is zero-based: addresses in it count from 0,
    and `buf` is 0. It has no `view`, since the host cannot map it: use `read` and `write` (multiples of 4 bytes)."""

    def __init__(self, pd: PD, length: int, access: int, dm: DM, offset: int) -> None:
        access = int(access) | _ZERO_BASED
        keys: V.MrKeys = pd.context._request(V.RegDmMr(pd.handle, dm.handle, offset, length, access), V.MrKeys)
        self.dm = dm
        self.handle = keys.handle
        self.gpu = None
        self._offset = offset
        self._closed = False
        self._take(pd, Backing("device", 0, memoryview(b"")), access, keys)
        self.length = length

    def rereg(self, flags: int, pd: PD | None = None, addr: object = 0, length: int = 0, access: int = 0) -> None:
        """Device memory cannot be reregistered: VerbsError(EOPNOTSUPP), as by hardware's drivers."""
        raise VerbsError(errno.EOPNOTSUPP, "Failed to reregister MR: it is over device memory; register it anew")

    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset` of the region."""
        self._check(length, offset)
        return self.dm.copy_from_dm(self._offset + offset, length)

    def write(self, data: bytes | bytearray | memoryview, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data` at `offset` of the region."""
        self._check(length, offset)
        self.dm.copy_to_dm(self._offset + offset, data, length)
