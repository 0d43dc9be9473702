"""A lab's private directory under the system's temporary one, and the removal of those that killed labs left.

A live lab holds a lock on a file in its directory; the kernel drops it when the process ends, however it ends. A lock
that can be taken therefore marks a directory that nobody needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["LabDirectory", "live_directories"]

_PREFIX = "fauxrdma-"
_LOCK = "lock"
# A Unix socket path is limited to 107 bytes; a long TMPDIR would not leave room for the file name.
_MAX_BASE_CHARS = 80


class LabDirectory:
    """Created, with mode 0700, by the constructor in the folder `within` (default: the system's temporary one); removed
    by `remove`, which is idempotent."""

    def __init__(self, within: Path | None = None) -> None:
        base = _base()
        _remove_abandoned(base)
        base = within if within is not None else base
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        # Locked before it has its name: a directory is never seen with a lock that is free.
        unnamed = self.path / f"{_LOCK}.new"
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Delete it with all it holds."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def live_directories() -> list[Path]:
    """The directories of labs that run now, of this user, oldest first."""
    found = []
    for lock in _base().glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # someone else's, or gone in the meantime
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append((lock.stat().st_mtime, lock.parent))
            finally:
                os.close(fd)
    return [path for _, path in sorted(found)]


def _base() -> Path:
    base = tempfile.gettempdir()
    return Path(base if len(base) <= _MAX_BASE_CHARS else "/tmp")


def _remove_abandoned(base: Path) -> None:
    for lock in base.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError):  # someone else's, or gone in the meantime
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(fd)
