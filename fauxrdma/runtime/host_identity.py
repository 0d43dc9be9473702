"""Who is on the same machine? An identity that is equal exactly when memory can be shared."""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["host_identity"]


def host_identity() -> str:
    """Host name, boot id and the IPC and PID namespaces: containers on one kernel differ, processes beside each other
    do not."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = "/".join(os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "pid"))
    except OSError:
        boot, spaces = "", ""
    return f"{socket.gethostname()}:{boot}:{spaces}"
