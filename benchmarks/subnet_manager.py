"""What the subnet manager costs with 128 HCAs at work: CPU time of its process for each second of wall time.

python benchmarks/subnet_manager.py [--fabric fat-tree] [--nodes 16] [--gpus 8] [--dilation auto] [--piece 1M]

The real process, and in this one a stand-in for each HCA daemon, which speaks as one does. Every HCA sends pieces to
the HCA of the same number on the next node, as a ring does with a large collective (the communicator's slots hold 2
MiB, and half of one is sent at a time): it says FlowStart, has the rate it is granted for as long as the piece takes at
the dilation, which the manager chooses by itself, says FlowStop, and begins again. The goal is half a core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from fauxrdma.lab.processes import Supervisor
from fauxrdma.units import parse_byte_count
from fauxrdma.wire.control import Message, MessageBuffer, pack_frame
from fauxrdma.wire.fabric_messages import (
    CONTROL_VERSION,
    FlowLanding,
    FlowStart,
    FlowStop,
    NodeHello,
    NodeWelcome,
    PathAnswer,
    PathQuery,
    RateGrant,
)

GOAL = 0.5


class Daemon(asyncio.Protocol):
    """A stand-in for one node's HCA daemon."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._buffer = MessageBuffer()
        self.welcome: asyncio.Future[NodeWelcome] = asyncio.get_running_loop().create_future()
        self.paths: dict[tuple[int, int], asyncio.Future[PathAnswer]] = {}
        self.rates: dict[int, int] = {}
        self.starts = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.send(NodeHello(CONTROL_VERSION, self._node, "127.0.0.1", 40_000 + self._node, "benchmark", os.getpid()))

    def data_received(self, data: bytes) -> None:
        self._buffer.feed(data)
        for message in self._buffer:
            if isinstance(message, RateGrant):
                self.rates.update(message.rates)
            elif isinstance(message, NodeWelcome):
                self.welcome.set_result(message)
            elif isinstance(message, PathAnswer):
                self.paths[message.slid, message.dlid].set_result(message)

    def send(self, message: Message) -> None:
        self._transport.write(pack_frame(message))  # type: ignore[attr-defined]

    async def path(self, slid: int, dlid: int) -> PathAnswer:
        answer = self.paths[slid, dlid] = asyncio.get_running_loop().create_future()
        self.send(PathQuery(slid, dlid))
        return await answer

    async def stream(self, flow: int, slid: int, dlid: int, gpu: int, nbytes: int, dilation: float) -> None:
        """Send pieces for ever."""
        path = await self.path(slid, dlid)
        self.rates[flow] = path.rate_bps
        await asyncio.sleep(flow * 0.001)  # ranks are not in step
        while True:
            self.send(FlowStart(flow, slid, dlid, 1.0, 0, True, gpu + 1, flow, 0))
            self.starts += 1
            await asyncio.sleep(nbytes * 8 / self.rates[flow] * dilation)
            self.send(FlowStop(flow))
            await asyncio.sleep(0.001)


async def load(address: tuple[str, int], nodes: int, gpus: int, nbytes: int, seconds: float, pid: int) -> None:
    """Run the daemons, and measure when they are under way."""
    loop = asyncio.get_running_loop()
    daemons = [(await loop.create_connection(lambda node=node: Daemon(node), *address))[1] for node in range(nodes)]
    welcomes = [await daemon.welcome for daemon in daemons]
    streams = []
    for node, daemon in enumerate(daemons):
        there = welcomes[(node + 1) % nodes]
        for gpu in range(gpus):
            slid, dlid = (welcome.hcas[gpu].lid for welcome in (welcomes[node], there))
            daemons[(node + 1) % nodes].send(FlowLanding(dlid, gpu, gpu + 1))
            streams.append(loop.create_task(daemon.stream(gpu, slid, dlid, gpu, nbytes, welcomes[0].dilation)))
    await asyncio.sleep(2.0)
    before, began, starts = cpu_s(pid), time.monotonic(), sum(daemon.starts for daemon in daemons)
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    share = (cpu_s(pid) - before) / took
    rate = (sum(daemon.starts for daemon in daemons) - starts) / took
    for stream in streams:
        stream.cancel()
    print(
        f"{len(streams)} HCAs at dilation {welcomes[0].dilation:g}: {rate:.0f} flows begin and end each second, "
        f"the subnet manager uses {share:.2f} of a core (goal: at most {GOAL:g})"
    )


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, in s."""
    return time.clock_gettime_ns(~pid << 3 | 2) / 1e9


def main() -> None:
    """Start the subnet manager, load it, print what it used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fabric", default="fat-tree")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--dilation", default="auto", help="default: as the manager chooses by itself")
    parser.add_argument("--piece", default="1M")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    size = ["--nodes", str(options.nodes), "--gpus", str(options.gpus), "--dilation", options.dilation]
    command = [sys.executable, "-m", "daemons.subnet_manager", options.fabric, *size, "--listen", "127.0.0.1:0"]
    with tempfile.TemporaryDirectory() as directory:
        supervisor = Supervisor()
        try:
            log = Path(directory) / "log"
            child = supervisor.start("subnet manager", command, log=log, ready_option="--ready-fd")
            supervisor.wait_ready(child, 60)
            assert child.ready is not None, log.read_text()
            address = str(child.ready["host"]), int(child.ready["port"])
            nbytes = parse_byte_count(options.piece)
            asyncio.run(load(address, options.nodes, options.gpus, nbytes, options.seconds, child.pid))
        finally:
            supervisor.close()


if __name__ == "__main__":
    main()
