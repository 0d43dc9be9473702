"""Anonymous shared memory (memfd) that an application and its HCA daemon both map: no copy, no privilege, no name."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

__all__ = ["SharedMemory", "address_of"]


def address_of(view: memoryview) -> int:
    """The virtual address of a writable view's first byte in this process."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class SharedMemory:
    """A mapped memfd. Create one with :meth:`create` and pass `fd` on; map a received one with :meth:`attach`.

    The descriptor is closed by :meth:`close_fd` once it was passed; the mapping lives until the object and all views
    of it are gone, so a view handed out never dangles.
    """

    __slots__ = ("fd", "length", "view")

    def __init__(self, fd: int, length: int) -> None:
        self.fd = fd
        self.length = length
        # The mmap object is kept alive by the view; it unmaps when the last slice of the view is released.
        self.view = memoryview(mmap.mmap(fd, length))

    @classmethod
    def create(cls, length: int, name: str = "fauxrdma") -> SharedMemory:
        """New zeroed memory of `length` bytes. Raises OSError when the system is out of memory or descriptors."""
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, length)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            return cls(fd, length)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, length: int) -> SharedMemory:
        """Map memory received from another process; takes over `fd`.

        Raises ValueError when it is shorter than announced or could still be shrunk: touching pages that its owner
        took away would kill this process with SIGBUS.
        """
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("the memfd is not sealed against shrinking (F_SEAL_SHRINK)")
            if os.fstat(fd).st_size < length:
                raise ValueError(f"the memfd holds {os.fstat(fd).st_size} bytes, {length} were announced")
            return cls(fd, length)
        except BaseException:
            os.close(fd)
            raise

    @property
    def address(self) -> int:
        """Virtual address of the first byte in this process."""
        return address_of(self.view)

    def close_fd(self) -> None:
        """Close the descriptor; the mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
