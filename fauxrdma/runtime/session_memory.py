"""The memory verbs of one application: protection domains and memory regions."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import ReregMrFlags
from fauxrdma.memory.location import gpu_memory
from fauxrdma.memory.regions import MemoryRegion, ProtectionDomain, check_access, check_range
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.memory.spans import Piece, ProcessMemory, ProcessSpan, Unreachable
from fauxrdma.wire.control import Message

if TYPE_CHECKING:
    from fauxrdma.runtime.app_session import AppSession

__all__ = ["MemoryVerbs"]

_LONGEST_TOKEN = 64
_REREG_FLAGS = 7


class MemoryVerbs:
    """Serves the verbs in `handlers`, destroys the kinds in `destroyers` (by handle), owns what it made."""

    def __init__(self, session: AppSession) -> None:
        self._session = session
        self.pds: dict[int, ProtectionDomain] = {}
        self.mrs: dict[int, MemoryRegion] = {}
        self._reaches = False  # process_vm works on the application
        self.handlers: dict[type[Message], Callable[[Any], None]] = {
            V.AllocPd: self._alloc_pd,
            V.ProbeMemory: self._probe,
            V.RegMr: self._reg_mr,
            V.ReregMr: self._rereg_mr,
        }
        self.destroyers: dict[str, Callable[[int], None]] = {"pd": self._dealloc_pd, "mr": self._dereg_mr}

    def _alloc_pd(self, msg: V.AllocPd) -> None:
        hca = self._session.hca
        if hca.pds >= hca.attributes.max_pd:
            raise VerbsError(errno.ENOMEM, f"Failed to allocate a PD: the device has max_pd = {hca.attributes.max_pd}")
        hca.pds += 1
        handle = self._session.hca.new_handle()
        self.pds[handle] = ProtectionDomain(handle)
        self._session.reply(V.Created(handle))

    def pd(self, handle: int) -> ProtectionDomain:
        pd = self.pds.get(handle)
        if pd is None:
            raise VerbsError(errno.EINVAL, f"there is no protection domain {handle} in this context")
        return pd

    # ---- memory regions ------------------------------------------------------------------------------------------

    def _probe(self, msg: V.ProbeMemory) -> None:
        if not 8 <= len(msg.token) <= _LONGEST_TOKEN:
            raise VerbsError(errno.EINVAL, f"Failed to probe memory: a token has 8 to {_LONGEST_TOKEN} B")
        span = ProcessSpan(ProcessMemory(self._session.peer_pid), msg.addr, len(msg.token))
        try:
            found = bytes(span.read())
            if found != msg.token:
                raise Unreachable(f"process {self._session.peer_pid} has something else at 0x{msg.addr:x}")
            span.write(memoryview(bytearray(reversed(found))))
        except Unreachable as error:
            raise VerbsError(errno.EPERM, f"the daemon cannot reach the application's memory: {error}") from None
        self._reaches = True
        self._session.reply(V.Done())

    def _reg_mr(self, msg: V.RegMr) -> None:
        pd = self.pd(msg.pd)
        self.check_room(msg.length)
        check_access(msg.access)
        check_range(msg.addr, msg.length)
        memory = self._reach(msg.provider, msg.addr, msg.length, msg.offset)
        self.enter(pd, msg.addr, msg.length, msg.access, memory, self._location(msg.gpu))

    def _location(self, gpu: int | None) -> int:
        gpus = self._session.gpus
        if gpu is not None and not 0 <= gpu < gpus:
            have = f"GPUs 0 to {gpus - 1}" if gpus else "no GPUs"
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: there is no GPU {gpu}: the node has {have}")
        return gpu_memory(gpu)

    def check_room(self, length: int, instead_of: int = 0) -> None:
        """Raise VerbsError unless `length` more bytes may be registered: ENOMEM at the device's limits, EINVAL for a
        length it never takes."""
        hca = self._session.hca
        limits = hca.attributes
        if not instead_of and len(hca.engine.keys) >= limits.max_mr:
            raise VerbsError(errno.ENOMEM, f"Failed to register a MR: the device has max_mr = {limits.max_mr}")
        if not 0 < length <= limits.max_mr_size:
            raise VerbsError(
                errno.EINVAL, f"Failed to register a MR: length {length} is not 1 to max_mr_size = {limits.max_mr_size}"
            )
        memlock, registered = hca.profile.memlock_bytes, hca.registered_bytes - instead_of
        if memlock and registered + length > memlock:
            raise VerbsError(
                errno.ENOMEM,
                f"Failed to register a MR: {length} B and the {registered} B registered already exceed the profile's "
                f"memlock_bytes {memlock}",
            )

    def _reach(self, provider: str, addr: int, length: int, offset: int = 0) -> Piece:
        """The memory of a registration, in the shape the engine takes it."""
        if provider == "process_vm":
            if not self._reaches:
                raise VerbsError(errno.EPERM, "Failed to register a MR: process_vm needs ProbeMemory first")
            span = ProcessSpan(ProcessMemory(self._session.peer_pid), addr, length)
            try:
                for end in (span[:1], span[length - 1 :]):
                    end.read()
            except Unreachable as error:
                raise VerbsError(errno.EFAULT, f"Failed to register a MR: {error}") from None
            return span
        if provider not in ("memfd", "staged"):
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: {provider!r} is no memory provider")
        if offset < 0:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: offset {offset} is negative")
        try:
            memory = SharedMemory.attach(self._session.take_fd(), offset + length)
        except ValueError as error:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: {error}") from None
        memory.close_fd()
        return memory.view[offset : offset + length]

    def enter(
        self, pd: ProtectionDomain, addr: int, length: int, access: int, memory: Piece, location: int, handle: int = 0
    ) -> MemoryRegion:
        """Enter a region in the key table and answer with its keys. `location` as in fauxrdma.memory.location."""
        hca = self._session.hca
        handle = handle or hca.new_handle()
        region = hca.engine.keys.register(handle, pd, addr, length, access, memory, location)
        self.mrs[handle] = region
        hca.registered_bytes += length
        self._session.reply(V.MrKeys(handle, region.lkey, region.rkey))
        return region

    def _rereg_mr(self, msg: V.ReregMr) -> None:
        old = self.mrs.get(msg.handle)
        if old is None:
            raise VerbsError(errno.EINVAL, f"there is no mr {msg.handle} in this context")
        if not msg.flags or msg.flags & ~_REREG_FLAGS:
            raise VerbsError(
                errno.EINVAL, f"Failed to reregister MR: flags 0x{msg.flags:x} are not an or of IBV_REREG_MR_CHANGE_*"
            )
        pd = self.pd(msg.pd) if msg.flags & ReregMrFlags.IBV_REREG_MR_CHANGE_PD else old.pd
        access = msg.access if msg.flags & ReregMrFlags.IBV_REREG_MR_CHANGE_ACCESS else old.access
        check_access(access)
        base, length, memory = old.base, old.length, old.view
        if msg.flags & ReregMrFlags.IBV_REREG_MR_CHANGE_TRANSLATION:
            base, length = msg.addr, msg.length
            self.check_room(length, instead_of=old.length)
            check_range(base, length)
            memory = self._reach(msg.provider, base, length)
        elif isinstance(memory, ProcessSpan):
            memory = ProcessSpan(ProcessMemory(memory.obj.pid), base, length)  # the old right ends with the old keys
        self._session.data_path.deregister(self._session.hca, old)
        self._session.hca.registered_bytes -= old.length
        self.enter(pd, base, length, access, memory, old.location, msg.handle)

    def _dereg_mr(self, handle: int) -> None:
        region = self.mrs.get(handle)
        if region is None:
            raise VerbsError(errno.EINVAL, f"there is no mr {handle} in this context")
        self._session.data_path.deregister(self._session.hca, region)
        del self.mrs[handle]
        self._session.hca.registered_bytes -= region.length

    def _dealloc_pd(self, handle: int) -> None:
        if self.pd(handle).children:
            raise VerbsError(errno.EBUSY, f"Failed to dealloc PD {handle}: regions, windows or queues still use it")
        del self.pds[handle]
        self._session.hca.pds -= 1

    def close(self) -> None:
        """Deregister everything. Queue pairs and windows are gone already."""
        for region in self.mrs.values():
            self._session.hca.registered_bytes -= region.length
            self._session.hca.engine.keys.deregister(region)
            self._session.data_path.let_go(region)
        self._session.hca.pds -= len(self.pds)
        self.mrs.clear()
        self.pds.clear()
