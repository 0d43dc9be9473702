"""Protection domains and memory regions."""

from __future__ import annotations

import errno

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.device import Context

__all__ = ["MR", "PD"]


class PD:
    """A protection domain: regions and queue pairs work together only inside one."""

    CLOSE_ORDER = 3

    def __init__(self, context: Context) -> None:
        self.context = context
        self.handle: int = context._request(V.AllocPd(), V.Created).handle
        self._closed = False
        context._children.add(self)

    def close(self) -> None:
        """Free it. Idempotent. Raises VerbsError(EBUSY) while regions or queue pairs exist in it."""
        if not self._closed:
            self.context._destroy("pd", self.handle)
            self._closed = True

    def __enter__(self) -> PD:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MR:
    """A memory region of `length` bytes, allocated for it as shared memory that the HCA daemon maps too.

    `buf` is its virtual address, `view` its bytes, `lkey` and `rkey` its keys. `access` is an or of IBV_ACCESS_*.
    Raises VerbsError: EINVAL for a length or flags no HCA takes, ENOMEM at the device's limits.
    """

    CLOSE_ORDER = 2

    def __init__(self, pd: PD, length: int, access: int) -> None:
        if length <= 0:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {length} is not positive")
        self.pd = pd
        self.length = length
        self.access = int(access)
        try:
            memory = SharedMemory.create(length, "fauxrdma-mr")
        except OSError as error:
            raise VerbsError(errno.ENOMEM, f"Failed to register a MR of {length} B: {error.strerror}") from None
        try:
            keys, _ = pd.context._channel.request(
                V.RegMr(pd.handle, memory.address, length, self.access), V.MrKeys, fds=(memory.fd,)
            )
        finally:
            memory.close_fd()
        self.handle: int = keys.handle
        self.lkey: int = keys.lkey
        self.rkey: int = keys.rkey
        self.view: memoryview = memory.view
        self.buf: int = memory.address
        self._closed = False
        pd.context._children.add(self)

    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset`."""
        self._check(length, offset)
        return bytes(self.view[offset : offset + length])

    def write(self, data: bytes | bytearray | memoryview, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data` at `offset`."""
        self._check(length, offset)
        self.view[offset : offset + length] = memoryview(data)[:length]

    def _check(self, length: int, offset: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.length:
            raise VerbsError(errno.EINVAL, f"{length} B at offset {offset} leave the MR of {self.length} B")

    def close(self) -> None:
        """Deregister: the keys fail from now on. Idempotent. The memory lives while `view` is used."""
        if not self._closed:
            self.pd.context._destroy("mr", self.handle)
            self._closed = True

    def __enter__(self) -> MR:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
