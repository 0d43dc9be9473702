"""The subnet manager process: arguments, signals, readiness, exit codes. The work is in fauxrdma.runtime.

    fauxrdma-subnet-manager seed-rail8 --nodes 4 --gpus 2 --listen 127.0.0.1:7471

When it listens it writes one JSON line, {"host": ..., "port": ..., "pid": ...}, to --ready-fd or standard output.
It ends with 0 on SIGTERM or SIGINT; 2 is a mistake in what it was given, 3 a port it cannot have.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import signal
import sys
from collections.abc import Sequence

from daemons.shell import add_process_options, announce, loop_factory, parse_address, prepare_process
from fauxrdma.errors import ConfigError, FabricUnhealthy, FauxrdmaError
from fauxrdma.ib.profiles import DEFAULT_PROFILE, parse_profile
from fauxrdma.runtime.subnet_manager import CLOCKS, SubnetManagerService
from fauxrdma.topology.loading import load_topology

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop. Returns the exit code."""
    try:
        options = _parser().parse_args(argv)
        prepare_process(options, "fauxrdma-subnet-manager")
        hca_rate = parse_profile(options.profile).port_rate
        topology = load_topology(options.fabric, options.nodes, options.gpus, hca_rate).with_routing(options.routing)
        if options.events is not None:
            from fauxrdma.topology.events_file import load_events  # its parser takes long to import

            topology.events = [*topology.events, *load_events(options.events, topology)]
        host, port = parse_address(options.listen)
        service = SubnetManagerService(
            topology,
            clock=options.clock,
            dilation=_dilation(options.dilation),
            seed=options.seed,
            nodes_in_use=options.nodes_in_use,
        )
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(service, host, port, options.ready_fd))
    except FauxrdmaError as error:
        print(f"fauxrdma-subnet-manager: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fauxrdma-subnet-manager",
        description="Routes an emulated fabric, grants rates to its flows and reports what it carried.",
    )
    parser.add_argument("fabric", help="preset (seed-rail8, fat-tree, seed-two-switch:ndr, ...) or path of a YAML file")
    parser.add_argument("--nodes", type=int, help="nodes in the fabric (default: 2, or all hosts of the YAML file)")
    parser.add_argument("--gpus", type=int, help="GPUs used per node, for the automatic dilation (default: all)")
    parser.add_argument("--nodes-in-use", type=int, help="nodes that have ranks, for the same (default: all)")
    parser.add_argument("--clock", choices=CLOCKS, default="paced", help="default %(default)s; none shapes nothing")
    parser.add_argument(
        "--dilation", default="auto", metavar="auto|K", help="fabric time runs K times slower than wall"
    )
    parser.add_argument("--seed", type=int, default=0, help="for every random choice (default %(default)s)")
    parser.add_argument("--routing", metavar="ENGINE", help="as in fauxrdma run (default: the fabric's)")
    parser.add_argument("--events", metavar="FILE", help="faults to come, as in fauxrdma run")
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        metavar="NAME[,FIELD=VALUE...]",
        help="kind of HCA, for the rate of its port; give the HCA daemons the same (default %(default)s)",
    )
    add_process_options(parser)
    return parser


def _dilation(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--dilation {text!r} is neither 'auto' nor a number") from None


async def _serve(service: SubnetManagerService, host: str, port: int, ready_fd: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    try:
        bound_host, bound_port = await service.start(host, port)
        # What exists now stays: scanning a large topology again and again would delay grants.
        gc.freeze()
        announce({"host": bound_host, "port": bound_port, "pid": os.getpid()}, ready_fd)
        deadlock = loop.create_task(service.deadlock.wait())
        await asyncio.wait((loop.create_task(stop.wait()), deadlock), return_when=asyncio.FIRST_COMPLETED)
        if service.verdict:
            raise FabricUnhealthy(service.verdict)
    finally:
        await service.close()


if __name__ == "__main__":
    sys.exit(main())
