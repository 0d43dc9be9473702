"""How long a step of the queue model takes for 256 flows, and a recomputation of the flow model for 1,024.

python benchmarks/queues.py [--flows 256]
"""

from __future__ import annotations

import argparse
import time
import timeit

import numpy as np

from fauxrdma.fabric.model import FabricModel
from fauxrdma.fabric.queues.layout import Layout, Way
from fauxrdma.fabric.queues.settings import QueueSettings
from fauxrdma.fabric.queues.step import QueueModel
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import TRANSPORTS
from fauxrdma.topology.loading import load_topology

STEP_MS = 0.25
RECOMPUTE_MS = 2.0
NODES = 16
"""Of eight HCAs."""


def pairs(manager: SubnetManager, count: int) -> list[tuple[int, int]]:
    """`count` pairs of different HCAs (LIDs), each sender as often as every other."""
    lids = [manager.lid(hca.name) for hca in manager.topology.hcas()]
    random = np.random.default_rng(0)
    found = []
    for n in range(count):
        source = lids[n % len(lids)]
        target = source
        while target == source:
            target = lids[int(random.integers(len(lids)))]
        found.append((source, target))
    return found


def step_ms(transport: str, flows: int) -> float:
    """Milliseconds of processor time of one step with `flows` busy flows on 128 HCAs: the median of ten times 200."""
    manager = SubnetManager(load_topology(f"fat-tree,storage_hcas=0,transport={transport}", NODES))
    topology = manager.topology
    paths = [manager.path(source, target) for source, target in pairs(manager, flows)]
    layout = Layout(
        topology,
        [manager.payload_rate(link.id) for link in topology.links],
        [Way(path.links, 0, float(path.latency_ns)) for path in paths],
    )
    settings = QueueSettings.of(TRANSPORTS[transport])
    model = QueueModel(layout, [1e12] * flows, settings, topology.mtu, np.random.default_rng(0))
    for flow in range(flows):
        model.start(flow)
    for _ in range(400):
        model.step()
    return float(np.median(timeit.repeat(model.step, number=200, repeat=10, timer=time.process_time))) / 200 * 1e3


def recompute_ms(flows: int) -> float:
    """Milliseconds of processor time until all rates are known again after one of `flows` moved: the median of 20."""
    manager = SubnetManager(load_topology("fat-tree,storage_hcas=0", NODES))
    model: FabricModel[int] = FabricModel.of(manager)
    paths = [manager.path(source, target) for source, target in pairs(manager, flows)]
    for number, path in enumerate(paths):
        model.start(number, path)
    model.changes()
    times = []
    for number in range(20):
        model.stop(number)
        model.start(number, paths[number])
        times.append(timeit.timeit(model.changes, number=1, timer=time.process_time))
    return float(np.median(times)) * 1e3


def main() -> None:
    """Print a line for each, with its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flows", type=int, default=256)
    options = parser.parse_args()
    print(f"{'what':<52}{'target':>10}{'measured':>10}")
    for transport in TRANSPORTS:
        figure = step_ms(transport, options.flows)
        print(f"{f'tier 1 step, {options.flows} flows on 128 HCAs, {transport}':<52}{STEP_MS:>7} ms{figure:>7.3f} ms")
    print(f"{'tier 0 recompute, 1024 flows on 128 HCAs':<52}{RECOMPUTE_MS:>7} ms{recompute_ms(1024):>7.3f} ms")


if __name__ == "__main__":
    main()
