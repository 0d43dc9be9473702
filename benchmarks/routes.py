"""How long each routing engine takes for a three-tier fat-tree of 1,024 hosts with nine HCAs each.

python benchmarks/routes.py [--hosts 1024] [--engines minhop,ftree]
"""

from __future__ import annotations

import argparse
import time

from fauxrdma.fabric.routing import ENGINES, SwitchGraph, compute_routes
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

HALF = 24
"""Ports down, and as many up, of every switch but the cores."""


def three_tiers(hosts: int) -> Topology:
    """As many full leaves and pods as the hosts' HCAs need, under HALF x HALF cores."""
    builder = TopologyBuilder(HostShape())
    hdr = Rate.gbps(200)
    leaves = -(-hosts * builder.shape.hcas // HALF)
    pods = -(-leaves // HALF)
    for tier, (name, count) in enumerate((("leaf", leaves), ("spine", pods * HALF), ("core", HALF * HALF))):
        for at in range(count):
            builder.add_switch(f"{name}{at}", tier, 2 * HALF)
    for host in range(hosts):
        builder.add_host(host)
        for i in range(1, builder.shape.hcas + 1):
            builder.connect(f"n{host}.hca{i}", f"leaf{(host * builder.shape.hcas + i - 1) // HALF}", hdr, 3.0)
    for leaf in range(leaves):
        for spine in range(HALF):
            builder.connect(f"leaf{leaf}", f"spine{leaf // HALF * HALF + spine}", hdr, 20.0)
    for spine in range(pods * HALF):
        for at in range(HALF):
            builder.connect(f"spine{spine}", f"core{spine % HALF * HALF + at}", hdr, 50.0)
    return builder.build(name="three-tiers", description="", hosts=hosts)


def main() -> None:
    """Print a line for each engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1024)
    parser.add_argument("--engines", default=",".join(ENGINES))
    options = parser.parse_args()
    graph = SwitchGraph.of(three_tiers(options.hosts))
    print(f"{len(graph.endpoints)} HCAs, {len(graph.switches)} switches; seconds of processor time")
    for engine in options.engines.split(","):
        before = time.process_time()
        routes = compute_routes(graph, engine)
        print(f"{engine:<10}{time.process_time() - before:6.1f}   {routes.engine}")


if __name__ == "__main__":
    main()
