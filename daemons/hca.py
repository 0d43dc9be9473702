"""The HCA daemon process of one node: arguments, signals, readiness, exit codes. The work is in fauxrdma.runtime.

    fauxrdma-hca --node 0 --subnet-manager 127.0.0.1:7471 --socket /tmp/node0.sock

When it serves it writes one JSON line, {"node": ..., "socket": ..., "port": ..., "pid": ...}, to --ready-fd or standard
output. It ends with 0 on SIGTERM or SIGINT; 2 is a mistake in what it was given, 3 an address it cannot have or no
subnet manager, 4 a refusal by the manager.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence

from daemons.shell import announce, loop_factory, parse_address
from fauxrdma.errors import FauxrdmaError
from fauxrdma.runtime.hca_daemon import HcaDaemon
from fauxrdma.runtime.latency_hint import prefer_low_latency
from fauxrdma.runtime.parent_death import die_with_parent

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        if options.die_with_parent:
            die_with_parent()
        prefer_low_latency()
        # Each region and queue of an application holds a descriptor here.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        logging.basicConfig(
            level=logging.INFO if options.verbose else logging.WARNING,
            format=f"fauxrdma-hca[{options.node}]: %(message)s",
        )
        manager = parse_address(options.subnet_manager, "--subnet-manager")
        daemon = HcaDaemon(options.node, manager, options.socket, parse_address(options.listen))
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(daemon, options.ready_fd))
    except FauxrdmaError as error:
        print(f"fauxrdma-hca: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fauxrdma-hca", description="Emulates the HCAs of one node of a fauxrdma fabric."
    )
    parser.add_argument("--node", type=int, required=True, help="which node of the fabric this is, from 0")
    parser.add_argument("--subnet-manager", required=True, metavar="HOST:PORT", help="where the subnet manager listens")
    parser.add_argument("--socket", required=True, metavar="PATH", help="Unix socket for applications (mode 0600)")
    parser.add_argument("--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default %(default)s (any port)")
    parser.add_argument("--ready-fd", type=int, metavar="FD", help="write the ready line here, not on standard output")
    parser.add_argument("--die-with-parent", action="store_true", help="end when the process that started this ends")
    parser.add_argument("--verbose", action="store_true", help="say on standard error what happens")
    return parser


async def _serve(daemon: HcaDaemon, ready_fd: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    try:
        await daemon.start()
        # What exists now stays; scanning it again and again would only add pauses to the data path.
        gc.freeze()
        announce({"node": daemon.node, "socket": daemon.socket_path, "port": daemon.port, "pid": os.getpid()}, ready_fd)
        await stop.wait()
    finally:
        await daemon.stop()


if __name__ == "__main__":
    sys.exit(main())
