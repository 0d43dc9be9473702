"""What the model of the fabric alone says about a ring all-reduce: no host, no scheduling, no computation.

It is the yardstick beside the measured time: the part of the difference that no fabric explains is the emulating
machine's.
"""

from __future__ import annotations

from collections import Counter

from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Topology

__all__ = ["ring_all_reduce_ns"]


def ring_all_reduce_ns(topology: Topology, nodes: int, gpus: int, nbytes: int) -> float:
    """Fabric ns of a ring all-reduce of `nbytes` per rank, ranks in blocks (rank = node x gpus + gpu).

    The alpha-beta formula 2(n-1) (alpha + nbytes / n / beta): alpha is the mean latency of the paths between
    neighbours, beta the payload rate of the narrowest, a link shared by several of these flows divided evenly.
    """
    manager = SubnetManager(topology)
    hcas = [topology.hca_of(topology.gpu(node, gpu)).name for node in range(nodes) for gpu in range(gpus)]
    n = len(hcas)
    if n < 2:
        return 0.0
    lids = [manager.lid(name) for name in hcas]
    paths = [manager.path(lid, lids[(rank + 1) % n]) for rank, lid in enumerate(lids)]
    flows = Counter(link for path in paths for link in path.links)
    alpha_ns = sum(path.latency_ns for path in paths) / n
    bytes_per_ns = min(manager.payload_rate(link).bytes_per_ns / flows[link] for path in paths for link in path.links)
    return 2 * (n - 1) * (alpha_ns + nbytes / n / bytes_per_ns)
