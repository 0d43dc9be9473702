"""How a rank that sleeps is woken by the ranks beside it.

Each rank has one bell: a word in shared memory that says whether it sleeps, and a pipe. Who has put something in shared
memory looks at the word and writes a byte into the pipe only if it must. Announce, then look; set the word, then look
again: so no wake-up is lost.
"""

from __future__ import annotations

import mmap
import os

from fauxrdma.communicator.shared_inbox import fence, open_descriptor_of

__all__ = ["Bell", "BellRope"]

_LENGTH = 4096


class Bell:
    """The sleeper's side. `description` goes to the peers; `fd` is readable once somebody rang."""

    def __init__(self) -> None:
        self._memory_fd = os.memfd_create("fauxrdma-bell", os.MFD_CLOEXEC)
        os.ftruncate(self._memory_fd, _LENGTH)
        self._map = mmap.mmap(self._memory_fd, _LENGTH)
        self._words = memoryview(self._map).cast("Q")
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    @property
    def description(self) -> dict[str, int]:
        """What a peer needs to ring."""
        return {"pid": os.getpid(), "memory": self._memory_fd, "pipe": self._write_fd}

    def about_to_sleep(self) -> None:
        """From here on peers ring. Look once more at what you wait for before you sleep."""
        self._words[0] = 1
        fence()

    def awake(self) -> None:
        """Peers need not ring any more; what they rang is silenced."""
        self._words[0] = 0
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Free everything. Idempotent."""
        if self._memory_fd < 0:
            return
        for fd in (self._memory_fd, self.fd, self._write_fd):
            os.close(fd)
        self._memory_fd = self.fd = self._write_fd = -1
        self._words.release()
        self._map.close()


class BellRope:
    """The ringer's side of a peer's bell. Raises OSError when the system does not let us have it."""

    def __init__(self, description: dict[str, int]) -> None:
        pid = description["pid"]
        memory = open_descriptor_of(pid, description["memory"], os.O_RDWR)
        try:
            self._map = mmap.mmap(memory, _LENGTH)
        finally:
            os.close(memory)
        self._words = memoryview(self._map).cast("Q")
        try:
            self._fd = open_descriptor_of(pid, description["pipe"], os.O_WRONLY | os.O_NONBLOCK)
        except BaseException:
            self.close()
            raise

    def ring(self) -> None:
        """Wake the peer if it sleeps. Call after what it is to see has been written."""
        fence()
        if self._words[0]:
            try:
                os.write(self._fd, b"!")
            except (BlockingIOError, BrokenPipeError):
                pass  # full: it has been rung often enough; broken: nobody is there

    _fd = -1

    def close(self) -> None:
        """Let go. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if not self._map.closed:
            self._words.release()
            self._map.close()
