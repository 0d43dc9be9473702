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
import os
import resource
import signal
import sys
from collections.abc import Sequence

from daemons.shell import add_process_options, announce, loop_factory, parse_address, prepare_process
from fauxrdma.errors import FauxrdmaError
from fauxrdma.ib.profiles import DEFAULT_PROFILE, PROFILES, parse_profile
from fauxrdma.runtime.hca_daemon import HcaDaemon

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop. Returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        prepare_process(options, f"fauxrdma-hca[{options.node}]")
        # Each region and queue of an application holds a descriptor here.
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        manager = parse_address(options.subnet_manager, "--subnet-manager")
        daemon = HcaDaemon(
            options.node,
            manager,
            options.socket,
            parse_address(options.listen),
            parse_profile(options.profile),
            trace=options.trace,
        )
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
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME[,FIELD=VALUE...]",
        help=f"limits and habits of the adapters: {', '.join(PROFILES)}; default %(default)s",
    )
    parser.add_argument("--trace", metavar="FILE", help="in virtual time: write what happens here, as lines of JSON")
    add_process_options(parser)
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
