"""What the process shells share: options, signals from the parent, the event loop, the ready line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Callable

from fauxrdma.errors import ConfigError, SetupError
from fauxrdma.runtime.latency_hint import prefer_low_latency
from fauxrdma.runtime.parent_death import die_with_parent

__all__ = ["add_process_options", "announce", "loop_factory", "parse_address", "prepare_process"]


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """The options every daemon has: where it listens, who hears that it is ready, when it ends, what it says."""
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default %(default)s (any port)")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="write the ready line here, not on standard output")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started this ends")
    parser.add_argument("--verbose", action="store_true", help="say on standard error who comes, goes and is refused")


def prepare_process(options: argparse.Namespace, name: str) -> None:
    """Act on those options, and ask for a short time slice; `name` begins each line of the log."""
    if options.die_with_parent:
        die_with_parent()
    prefer_low_latency()
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format=f"{name}: %(message)s")


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
