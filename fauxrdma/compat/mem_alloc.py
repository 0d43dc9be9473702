"""Memory of this process by address (pyverbs.mem_alloc): thin wrappers of the C library."""

from __future__ import annotations

import ctypes
import mmap as _mmap
import os
from typing import Any

__all__ = [
    "free",
    "madvise",
    "malloc",
    "mmap",
    "munmap",
    "posix_memalign",
    "read",
    "read32",
    "read64",
    "readbe32",
    "readbe64",
    "write",
    "write32",
    "write64",
    "writebe32",
    "writebe64",
]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = _libc.mmap.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_libc.free.argtypes = (ctypes.c_void_p,)
_libc.free.restype = None
_libc.posix_memalign.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
)  # fmt: skip
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MAP_FAILED = ctypes.c_void_p(-1).value

PROT_EXEC_, PROT_READ_, PROT_WRITE_, PROT_NONE_ = _mmap.PROT_EXEC, _mmap.PROT_READ, _mmap.PROT_WRITE, 0
MAP_PRIVATE_, MAP_SHARED_, MAP_ANONYMOUS_ = _mmap.MAP_PRIVATE, _mmap.MAP_SHARED, _mmap.MAP_ANONYMOUS
MAP_STACK_, MAP_POPULATE_ = _mmap.MAP_STACK, _mmap.MAP_POPULATE
# Linux' values for what the mmap module of Python 3.11 lacks.
MAP_FIXED_, MAP_GROWSDOWN_, MAP_LOCKED_, MAP_NORESERVE_, MAP_HUGETLB_ = 0x10, 0x100, 0x2000, 0x4000, 0x40000
MADV_DONTNEED_, MADV_HUGEPAGE_, MADV_NOHUGEPAGE_ = _mmap.MADV_DONTNEED, _mmap.MADV_HUGEPAGE, _mmap.MADV_NOHUGEPAGE


def _failed(what: str) -> MemoryError:
    return MemoryError(f"Failed to {what} ({os.strerror(ctypes.get_errno())})")


def mmap(
    addr: int = 0,
    length: int = 100,
    prot: int = PROT_READ_ | PROT_WRITE_,
    flags: int = MAP_PRIVATE_ | MAP_ANONYMOUS_,
    fd: int = 0,
    offset: int = 0,
) -> int:
    """Map `length` bytes; the address. Raises MemoryError."""
    address = _libc.mmap(addr, length, prot, flags, fd, offset)
    if address == _MAP_FAILED:
        raise _failed("mmap memory")
    return int(address)


def munmap(addr: int, length: int) -> None:
    """Unmap it. Raises MemoryError."""
    if _libc.munmap(addr, length):
        raise _failed("munmap requested memory")


def madvise(addr: int, length: int, flags: int = MADV_DONTNEED_) -> None:
    """Tell the kernel how it will be used. Raises MemoryError."""
    if _libc.madvise(addr, length, flags):
        raise _failed("madvise requested memory")


def malloc(size: int) -> int:
    """The address of `size` bytes. Raises MemoryError."""
    address = _libc.malloc(size)
    if not address:
        raise MemoryError("Failed to allocate memory")
    return int(address)


def posix_memalign(size: int, alignment: int = 8) -> int:
    """The address of `size` zero bytes, a multiple of `alignment`. Raises MemoryError."""
    pointer = ctypes.c_void_p()
    code = _libc.posix_memalign(ctypes.byref(pointer), alignment, size)
    if code or pointer.value is None:
        raise MemoryError(f"Failed to allocate memory ({code})")
    ctypes.memset(pointer, 0, size)
    return pointer.value


def free(ptr: int) -> None:
    """Give back what `malloc` or `posix_memalign` gave."""
    _libc.free(ptr)


def writebe32(addr: int, val: int, offset: int = 0) -> None:
    """Store `val` as 32 bits in network order, `offset` words behind `addr`."""
    ctypes.memmove(addr + 4 * offset, val.to_bytes(4, "big"), 4)


def writebe64(addr: int, val: int, offset: int = 0) -> None:
    """Store `val` as 64 bits in network order, `offset` words of 8 bytes behind `addr`."""
    ctypes.memmove(addr + 8 * offset, val.to_bytes(8, "big"), 8)


def write32(addr: int, val: int, offset: int = 0) -> None:
    """Store `val` as 32 bits in host order, `offset` words behind `addr`."""
    ctypes.c_uint32.from_address(addr + 4 * offset).value = val


def write64(addr: int, val: int, offset: int = 0) -> None:
    """Store `val` as 64 bits in host order, `offset` words of 8 bytes behind `addr`."""
    ctypes.c_uint64.from_address(addr + 8 * offset).value = val


def write(addr: int, data: str | bytes, length: int, offset: int = 0) -> None:
    """Copy the first `length` bytes of `data` to `addr` + `offset`."""
    raw: Any = data.encode() if isinstance(data, str) else data
    ctypes.memmove(addr + offset, bytes(raw[:length]), length)


def read32(addr: int, offset: int = 0) -> int:
    """The 32 bits `offset` words behind `addr`, in host order."""
    return ctypes.c_uint32.from_address(addr + 4 * offset).value


def read64(addr: int, offset: int = 0) -> int:
    """The 64 bits `offset` words of 8 bytes behind `addr`, in host order."""
    return ctypes.c_uint64.from_address(addr + 8 * offset).value


def readbe32(addr: int, offset: int = 0) -> int:
    """The 32 bits in network order `offset` words behind `addr`."""
    return int.from_bytes(ctypes.string_at(addr + 4 * offset, 4), "big")


def readbe64(addr: int, offset: int = 0) -> int:
    """The 64 bits in network order `offset` words of 8 bytes behind `addr`."""
    return int.from_bytes(ctypes.string_at(addr + 8 * offset, 8), "big")


def read(addr: int, length: int, offset: int = 0) -> bytes:
    """A copy of `length` bytes from `addr` + `offset`."""
    return ctypes.string_at(addr + offset, length)
