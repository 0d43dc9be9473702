"""What stands behind a memory region in the application: one of three providers (docs/memory.md).

`memfd`: shared memory made for the region, which the daemon maps too. For memory that exists already, the daemon
reaches it with `process_vm_readv/writev` (`process_vm`) or, where that is not permitted, works on a copy in shared
memory that is kept equal to the buffer at every post and every completion (`staged`).
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AccessFlags
from fauxrdma.memory.shared import SharedMemory
from fauxrdma.verbs.buffers import Buffer, check_mapped, locate

if TYPE_CHECKING:
    from fauxrdma.verbs.device import Context

__all__ = ["PROVIDERS", "Backing", "Stage", "back"]

PROVIDERS = ("memfd", "process_vm", "staged")
_VARIABLE = "FAUXRDMA_MEMORY_PROVIDER"
_CHUNK = 1 << 20
_LOCAL_WRITE = int(AccessFlags.IBV_ACCESS_LOCAL_WRITE)


class Stage:
    """Keeps an application's buffer and its copy in shared memory equal.

    Both sides may write: the application its buffer, the HCA the copy. A third copy holds what both agreed on last;
    bytes that differ from it were written since, and are carried to the other side. So neither side's stores undo the
    other's, as long as they are to different bytes.
    """

    def __init__(self, buffer: Buffer, shared: memoryview) -> None:
        import numpy as np

        self._np = np
        self._buffer = buffer
        self._mine = np.frombuffer(buffer.view, np.uint8)
        self._theirs = np.frombuffer(shared, np.uint8)
        self._agreed = self._mine.copy()
        self._theirs[:] = self._mine
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Carry over what each side has written since the last call.

        Raises VerbsError(EFAULT) when the memory of a bare address is not mapped any more.
        """
        if self._buffer.owner is None:
            check_mapped(self._buffer.address, len(self._buffer.view))
        with self._lock:
            for at in range(0, len(self._mine), _CHUNK):
                self._sync_chunk(slice(at, at + _CHUNK))

    def _sync_chunk(self, chunk: slice) -> None:
        np = self._np
        mine, agreed = self._mine[chunk], self._agreed[chunk]
        # Looked at once: what the HCA writes from now on is for the next time.
        theirs = self._theirs[chunk].copy()
        if not np.array_equal(theirs, agreed):
            written = np.flatnonzero(theirs != agreed)
            mine[written] = theirs[written]
            agreed[written] = theirs[written]
        if not np.array_equal(mine, agreed):
            written = np.flatnonzero(mine != agreed)
            values = mine[written]
            self._theirs[chunk][written] = values
            agreed[written] = values


@dataclass(slots=True)
class Backing:
    """The memory of a region: `view` is what the application sees at `address`; `memory` is shared with the daemon
    (None for process_vm); `owner` keeps an existing buffer alive."""

    provider: str
    address: int
    view: memoryview
    memory: SharedMemory | None = None
    owner: object = None
    stage: Stage | None = None

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that go with the registration."""
        return () if self.memory is None else (self.memory.fd,)

    def registered(self) -> None:
        """The daemon has mapped it, or refused to: the descriptor is not needed any more."""
        if self.memory is not None:
            self.memory.close_fd()


def back(context: Context, source: Any, length: int | None, access: int, provider: str | None) -> Backing:
    """Memory for a region of `length` bytes: new if `source` is None, else what `source` names (`verbs.buffers`).

    `provider` (default $FAUXRDMA_MEMORY_PROVIDER) overrides the choice, for tests. Raises VerbsError as `locate`, and
    ENOMEM when the system has none.
    """
    provider = provider or os.environ.get(_VARIABLE) or None
    if provider not in (None, *PROVIDERS):
        raise VerbsError(
            errno.EINVAL, f"Failed to register a MR: {provider!r} is no memory provider ({', '.join(PROVIDERS)})"
        )
    if source is None:
        if length is None or length <= 0:
            raise VerbsError(errno.EINVAL, f"Failed to register a MR: length {length} is not positive")
        if provider in (None, "memfd"):
            memory = _shared(length)
            return Backing("memfd", memory.address, memory.view, memory)
        source = bytearray(length)
    elif provider == "memfd":
        raise VerbsError(
            errno.EINVAL, "Failed to register a MR: the provider memfd makes its own memory; it cannot take a buffer"
        )
    buffer = locate(source, length, bool(access & _LOCAL_WRITE))
    if provider != "staged" and context._daemon_reaches_us():
        return Backing("process_vm", buffer.address, buffer.view, owner=buffer.owner)
    if provider == "process_vm":
        raise VerbsError(
            errno.EPERM, "Failed to register a MR: the system forbids the daemon process_vm_readv on this process"
        )
    memory = _shared(len(buffer.view))
    stage = Stage(buffer, memory.view)
    return Backing("staged", buffer.address, buffer.view, memory, buffer.owner, stage)


def _shared(length: int) -> SharedMemory:
    try:
        return SharedMemory.create(length, "fauxrdma-mr")
    except OSError as error:
        raise VerbsError(errno.ENOMEM, f"Failed to register a MR of {length} B: {error.strerror}") from None
