"""Protection domains and memory regions: over new memory, existing buffers, and GPU memory handed over as a dma-buf."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import IBV_ACCESS_LOCAL_WRITE, ReregMrFlags
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.backing import Backing, back
from fauxrdma.verbs.device import Context

__all__ = ["MR", "PD", "DmaBuf", "DmaBufMR"]


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MR:
    """A memory region of `length` bytes: new memory, or with `address` what is there already (as in pyverbs).
    :meth:`over` registers a buffer. `access` is an or of IBV_ACCESS_*.

    `buf` is its virtual address, `view` its bytes, `lkey` and `rkey` its keys, which differ. `provider` says how the
    HCA reaches it: "memfd", "process_vm" or "staged" (docs/memory.md); as an argument it overrides the choice. With
    `gpu` the region stands for memory of that emulated GPU: ordinary bytes, charged to its links. With `iova` requests
    name its bytes from that address on, which is `buf` then (ibv_reg_mr_iova): for new memory only.

    Raises VerbsError: EINVAL for a length or flags no HCA takes, EFAULT for memory that is not mapped or read-only,
    ENOMEM at the device's limits.
    """

    CLOSE_ORDER = 2

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int,
        address: int | None = None,
        *,
        gpu: int | None = None,
        provider: str | None = None,
        iova: int | None = None,
    ) -> None:
        self._register(pd, back(pd.context, address, length, int(access), provider), int(access), gpu, iova=iova)

    @classmethod
    def over(
        cls,
        pd: PD,
        buffer: Any,
        access: int,
        *,
        length: int | None = None,
        gpu: int | None = None,
        provider: str | None = None,
    ) -> MR:
        """A region over an existing buffer: a numpy array, a torch CPU tensor, a bytearray, mmap, ctypes object,
        anything contiguous with the buffer protocol, or an address with `length`. It is kept alive."""
        region = cls.__new__(cls)
        region._register(pd, back(pd.context, buffer, length, int(access), provider), int(access), gpu)
        return region

    def _register(
        self, pd: PD, backing: Backing, access: int, gpu: int | None, offset: int = 0, iova: int | None = None
    ) -> None:
        length = len(backing.view)
        if iova is not None:
            if backing.provider == "process_vm":
                raise VerbsError(errno.EOPNOTSUPP, "Failed to register a MR: an iova of its own needs shared memory")
            backing.address = iova
        message = V.RegMr(pd.handle, backing.address, length, access, backing.provider, offset, gpu)
        try:
            keys, _ = pd.context._channel.request(message, V.MrKeys, fds=backing.fds)
        finally:
            backing.registered()
        self.handle: int = keys.handle
        self.gpu = gpu
        self._closed = False
        self._take(pd, backing, access, keys)

    def _take(self, pd: PD, backing: Backing, access: int, keys: V.MrKeys) -> None:
        self.pd = pd
        self.access = access
        self.lkey: int = keys.lkey
        self.rkey: int = keys.rkey
        self._backing = backing
        self.buf: int = backing.address
        self.view: memoryview = backing.view
        self.length = len(backing.view)
        pd.context._children.add(self)
        if backing.stage is not None:
            pd.context._staged.add(self)

    @property
    def provider(self) -> str:
        """How the HCA reaches the memory: "memfd", "process_vm" or "staged"."""
        return self._backing.provider

    def rereg(self, flags: int, pd: PD | None = None, addr: Any = 0, length: int = 0, access: int = 0) -> None:
        """Change the region in place (ibv_rereg_mr): `flags` is an or of IBV_REREG_MR_CHANGE_TRANSLATION (`addr`, an
        address or a buffer, and `length`), _CHANGE_PD (`pd`) and _CHANGE_ACCESS (`access`).

        Both keys change; work under way with the old ones fails as after deregistration. Raises VerbsError, and
        nothing has changed: EINVAL for flags or arguments, EBUSY with memory windows bound.
        """
        if flags & ReregMrFlags.IBV_REREG_MR_CHANGE_PD and (pd is None or pd.context is not self.pd.context):
            raise VerbsError(errno.EINVAL, "Failed to reregister MR: IBV_REREG_MR_CHANGE_PD needs a PD of this context")
        new_pd = pd if pd is not None and flags & ReregMrFlags.IBV_REREG_MR_CHANGE_PD else self.pd
        new_access = int(access) if flags & ReregMrFlags.IBV_REREG_MR_CHANGE_ACCESS else self.access
        backing = self._backing
        fds: tuple[int, ...] = ()
        if flags & ReregMrFlags.IBV_REREG_MR_CHANGE_TRANSLATION:
            size = length if isinstance(addr, int) else length or None
            backing = back(self.pd.context, addr, size, new_access, None)
            fds = backing.fds
        elif new_access & IBV_ACCESS_LOCAL_WRITE and self.view.readonly:
            raise VerbsError(errno.EFAULT, "Failed to reregister MR: IBV_ACCESS_LOCAL_WRITE for a read-only buffer")
        message = V.ReregMr(
            self.handle, int(flags), new_pd.handle, backing.address, len(backing.view), new_access, backing.provider
        )
        try:
            keys, _ = self.pd.context._channel.request(message, V.MrKeys, fds=fds)
        finally:
            if backing is not self._backing:
                backing.registered()
        self.sync()
        self.pd.context._staged.discard(self)
        self._take(new_pd, backing, new_access, keys)

    def sync(self) -> None:
        """Staged regions: make the buffer and what the HCA sees equal, both ways. Posting sends and polling completions
        do it; call it to see what a peer wrote, or to show a peer what to read, without either. Others: nothing to do.

        Raises VerbsError(EFAULT) when the region's memory is not mapped any more.
        """
        if self._backing.stage is not None:
            self._backing.stage.sync()

    def read(self, length: int, offset: int) -> bytes:
        """A copy of `length` bytes from `offset`."""
        self._check(length, offset)
        self.sync()
        return bytes(self.view[offset : offset + length])

    def write(self, data: bytes | bytearray | memoryview, length: int, offset: int = 0) -> None:
        """Put the first `length` bytes of `data` at `offset`."""
        self._check(length, offset)
        self.view[offset : offset + length] = memoryview(data)[:length]
        self.sync()

    def _check(self, length: int, offset: int) -> None:
        if offset < 0 or length < 0 or offset + length > self.length:
            raise VerbsError(errno.EINVAL, f"{length} B at offset {offset} leave the MR of {self.length} B")

    def close(self) -> None:
        """Deregister: the keys fail from now on, and no byte moves after this returns. Idempotent. The memory lives
        while `view` is used. Raises VerbsError(EBUSY) with memory windows bound."""
        if not self._closed:
            self.pd.context._destroy("mr", self.handle)
            self._closed = True
            with contextlib.suppress(VerbsError):  # its buffer may be gone before it
                self.sync()
            self.pd.context._staged.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DmaBuf:
    """Memory of emulated GPU number `unit` that can be handed to an HCA by its descriptor `fd`, as a dma-buf is."""

    def __init__(self, size: int, unit: int = 0) -> None:
        try:
            self._memory = SharedMemory.create(size, "fauxrdma-dmabuf")
        except (OSError, ValueError) as error:
            raise VerbsError(errno.ENOMEM, f"Failed to allocate a dma-buf of {size} B: {error}") from None
        self.size = size
        self.unit = unit

    @property
    def fd(self) -> int:
        """Its descriptor; -1 once it is closed."""
        return self._memory.fd

    def close(self) -> None:
        """Close the descriptor. Regions over it stay. Idempotent."""
        self._memory.close_fd()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DmaBufMR(MR):
    """A region over `length` bytes of a :class:`DmaBuf` from `offset` on. A plain descriptor will do as `dmabuf`: that
    of a memfd sealed against shrinking, with the GPU's number as `unit`. With `iova` requests name its bytes from that
    address on."""

    def __init__(
        self,
        pd: PD,
        length: int,
        access: int,
        dmabuf: DmaBuf | int,
        offset: int = 0,
        *,
        unit: int = 0,
        iova: int | None = None,
    ) -> None:
        fd, unit = (dmabuf.fd, dmabuf.unit) if isinstance(dmabuf, DmaBuf) else (dmabuf, unit)
        if length <= 0 or offset < 0:
            raise VerbsError(errno.EINVAL, f"Failed to register a dma-buf MR: {length} B at offset {offset}")
        try:
            memory = SharedMemory.attach(os.dup(fd), offset + length)
        except (OSError, ValueError) as error:
            raise VerbsError(errno.EINVAL, f"Failed to register a dma-buf MR: {error}") from None
        backing = Backing("memfd", memory.address + offset, memory.view[offset:], memory)
        self._register(pd, backing, int(access), unit, offset, iova)
