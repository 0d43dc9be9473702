"""A test between two processes, each at its own HCA, as perftest's client and server are."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from fauxrdma.errors import FabricUnhealthy, FauxrdmaError
from fauxrdma.perf.bandwidth import measure_bandwidth
from fauxrdma.perf.end import End
from fauxrdma.perf.figures import BandwidthFigures, LatencyFigures, latency_figures
from fauxrdma.perf.latency import measure_latency
from fauxrdma.perf.spec import PerfSpec
from fauxrdma.runtime.parent_death import die_with_parent

__all__ = ["Row", "measure"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result: what was sent, how it went in fabric time, and how long it took on the wall."""

    size: int
    iterations: int
    figures: LatencyFigures | BandwidthFigures
    wall_s: float


def measure(spec: PerfSpec) -> Iterator[dict[str, Any] | Row]:
    """Run the test: first the two ends' addresses as `{"local": card, "remote": card}`, then a Row for each size.

    Raises FabricUnhealthy, naming the side, when one fails; both processes are gone when this ends, however it ends.
    """
    spawn = multiprocessing.get_context("spawn")
    to_client, to_server = spawn.Pipe()
    channels: list[Connection] = []
    processes = []
    try:
        for number, peer in enumerate((to_client, to_server)):
            ours, theirs = spawn.Pipe()
            channels.append(ours)
            process = spawn.Process(target=_side, args=(spec, number, peer, theirs), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            peer.close()
        client, server = channels
        (local, _), (remote, _) = _both(client, server)
        yield {"local": local, "remote": remote}
        for size, iterations in spec.steps:
            (mine, wall_s), (other, _) = _both(client, server)
            figures = mine + other if isinstance(mine, BandwidthFigures) and other is not None else mine
            yield Row(size, iterations, figures, wall_s)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for channel in channels:
            channel.close()


def _both(client: Connection, server: Connection) -> tuple[Any, Any]:
    """The next message of either side, whoever is first. Raises FabricUnhealthy for one that has failed."""
    waiting = {client: "client", server: "server"}
    said: dict[Connection, Any] = {}
    while waiting:
        for channel in wait(list(waiting)):
            assert isinstance(channel, Connection)
            name = waiting.pop(channel)
            try:
                message = channel.recv()
            except EOFError:
                raise FabricUnhealthy(f"the process of the {name} has ended before the test") from None
            if isinstance(message, str):
                raise FabricUnhealthy(f"{name}: {message}")
            said[channel] = message
    return said[client], said[server]


def _side(spec: PerfSpec, number: int, peer: Connection, report: Connection) -> None:
    """A process's work. It is ended by a signal when the test is over or the parent is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with contextlib.suppress(FauxrdmaError):  # where the system has no such thing, the pipe's end ends it
        die_with_parent()
    try:
        _take_part(spec, number, peer, report)
    except (EOFError, ConnectionError):
        pass  # the other side has failed, and says why
    except FauxrdmaError as error:
        report.send(str(error))


def _take_part(spec: PerfSpec, number: int, peer: Connection, report: Connection) -> None:
    def barrier() -> None:
        peer.send(None)
        peer.recv()

    is_client = number == 0
    end = End(spec, number)
    try:
        card = end.card()
        peer.send(card)
        end.connect(peer.recv())
        report.send((card, 0.0))
        for size, iterations in spec.steps:
            began = time.monotonic()
            figures: LatencyFigures | BandwidthFigures | None = None
            if spec.test.is_latency:
                posted = measure_latency(end, size, iterations, is_client, barrier)
                figures = latency_figures(posted, spec.test.halved) if is_client else None
            else:
                figures = measure_bandwidth(end, size, iterations, is_client, barrier)
            barrier()
            report.send((figures, time.monotonic() - began))
    finally:
        end.close()
