"""A made-up but consistent run: traffic routed over a real preset's links, and the records its ranks would leave."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fauxrdma.report.building import RunInputs, build_run
from fauxrdma.report.results import RunResult
from fauxrdma.topology.graph import Link, NodeKind, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.wire.fabric_messages import FabricReport, LinkReport, PairReport

RunMaker = Callable[..., tuple[RunResult, Topology]]


def shortest_path(topology: Topology, source: str, target: str) -> list[Link]:
    """Links of a shortest path, breadth first."""
    came: dict[str, Link | None] = {source: None}
    queue = deque([source])
    while queue and target not in came:
        for link in topology.links_from(queue.popleft()):
            if link.dst not in came:
                came[link.dst] = link
                queue.append(link.dst)
    path: list[Link] = []
    step = came[target]
    while step is not None:
        path.insert(0, step)
        step = came[step.src]
    return path


def write_records(directory: Path, durations_ns: list[int], nbytes: int, ranks: int, step_ns: int = 200_000) -> None:
    """rank{R}.json files of a job that calls one all-reduce per step. Rank r enters r ns late; all return together."""
    directory.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        operations = [
            {
                "op": "all_reduce",
                "nbytes": nbytes,
                "start_ns": i * step_ns + rank,
                "end_ns": i * step_ns + ranks - 1 + duration,
                "wall_ns": duration * 1000,
                "algorithm": "ring",
            }
            for i, duration in enumerate(durations_ns)
        ]
        record = {
            "rank": rank,
            "world_size": ranks,
            "hca": f"hca{rank + 1}",
            "clock": "paced",
            "dilation": 1000.0,
            "operations": operations,
            "dropped": 0,
        }
        (directory / f"rank{rank}.json").write_text(json.dumps(record))


def fabric_report(topology: Topology, gpus: int, nbytes: int, clock: str, debt: tuple[float, float]) -> FabricReport:
    """Ring traffic between the GPUs in use, over shortest paths."""
    devices = [topology.gpu(host, gpu).name for host in range(topology.hosts) for gpu in range(gpus)]
    carried: dict[str, int] = {}
    pairs = []
    for src, dst in itertools.pairwise([*devices, devices[0]]):
        path = shortest_path(topology, src, dst)
        for link in path:
            carried[link.name] = carried.get(link.name, 0) + nbytes
        switches = sum(1 for link in path if topology.nodes[link.dst].kind is NodeKind.SWITCH)
        pairs.append(PairReport(src, dst, nbytes, 10, switches, 800 + 130 * switches))
    links = [
        LinkReport(
            link.name,
            link.src,
            link.dst,
            link.kind,
            link.rate.bits_per_s,
            carried.get(link.name, 0),
            0.0 if clock == "none" else min(1.0, carried.get(link.name, 0) / nbytes * 0.45),
        )
        for link in topology.links
    ]
    dilation = 1000.0 if clock == "paced" else 1.0
    return FabricReport(topology.name, clock, dilation, 10**9, links, pairs, *debt, 220, 0, [])


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    """``make_run(fabric, mean_ns=..., nodes=..., gpus=..., clock=..., debt_p99=...) -> (RunResult, Topology)``."""
    serial = itertools.count()

    def make(
        fabric: str = "fat-tree",
        *,
        mean_ns: int = 14_000,
        nodes: int = 2,
        gpus: int = 2,
        clock: str = "paced",
        debt_p50: float = 0.6,
        debt_p99: float = 2.1,
        values: dict[str, str] | None = None,
        nbytes: int = 68_000,
    ) -> tuple[RunResult, Topology]:
        topology = load_topology(fabric, nodes=nodes, gpus=gpus)
        draw = np.random.default_rng(1)
        durations = [int(mean_ns * (1 + 0.02 * draw.standard_normal() + 0.05 * draw.exponential())) for _ in range(55)]
        directory = tmp_path / f"stats{next(serial)}"
        write_records(directory, durations, nbytes, nodes * gpus)
        if values is None:
            values = {"loss": "0.1234", "accuracy": "0.9722", "steps": "55", "params_sha256": "0f3c" * 16}
        inputs = RunInputs(fabric, topology, nodes, gpus, 0, ["examples/train_digits.py"], values, 12.5)
        return build_run(
            inputs, fabric_report(topology, gpus, 1_200_000, clock, (debt_p50, debt_p99)), directory
        ), topology

    return make
