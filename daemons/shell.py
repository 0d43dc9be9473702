"""What the process shells share: addresses on the command line, the event loop, the ready line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable

from fauxrdma.errors import ConfigError, SetupError

__all__ = ["announce", "loop_factory", "parse_address"]


def parse_address(text: str, option: str = "--listen") -> tuple[str, int]:
    """HOST:PORT of a command-line option. Raises ConfigError, naming the option."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{option} {text!r} is not HOST:PORT, such as 127.0.0.1:7471 or [::1]:0")
    return host.removeprefix("[").removesuffix("]"), int(port)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where it is installed, else None (asyncio's own)."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def announce(ready: dict[str, object], fd: int | None) -> None:
    """Write the ready line, one JSON object, to `fd` (which is closed) or standard output.

    Raises SetupError when nobody can read it.
    """
    line = json.dumps(ready) + "\n"
    try:
        if fd is None:
            print(line, end="", flush=True)
        else:
            with contextlib.closing(os.fdopen(fd, "w")) as pipe:
                pipe.write(line)
    except OSError as error:
        raise SetupError(f"cannot write the ready line to file descriptor {fd}: {error.strerror}") from None
