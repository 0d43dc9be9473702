"""Fabrics on which routing engines differ: rings, three tiers, trees that are no fat-trees; and the presets."""

from __future__ import annotations

from fauxrdma.errors import ConfigError
from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from fauxrdma.units import Rate


def cabled(name: str, switches: dict[str, int], trunks: list[tuple[str, str]], hosts_on: list[str]) -> Topology:
    """Switches (name to tier) joined by `trunks`; one host with one HCA for every switch named in `hosts_on`."""
    builder = TopologyBuilder(HostShape(gpus=1, gpus_per_pcie_switch=1, storage_hcas=0))
    for switch, tier in switches.items():
        builder.add_switch(switch, tier=tier, radix=36)
    for host, switch in enumerate(hosts_on):
        builder.add_host(host)
        builder.connect(f"n{host}.hca1", switch, Rate.gbps(200), 3.0)
    for a, b in trunks:
        builder.connect(a, b, Rate.gbps(200), 10.0)
    return builder.build(name=name, description=name, hosts=len(hosts_on))


def ring(switches: int, hosts_each: int = 2) -> Topology:
    names = [f"leaf{n}" for n in range(1, switches + 1)]
    trunks = [(names[n], names[(n + 1) % switches]) for n in range(switches)]
    return cabled(f"ring{switches}", dict.fromkeys(names, 0), trunks, names * hosts_each)


def three_tier(pods: int, half: int, hosts_per_leaf: int) -> Topology:
    """k-ary: `half` leaves and `half` spines in each pod, `half` x `half` cores."""
    switches: dict[str, int] = {}
    trunks = []
    hosts = []
    for pod in range(pods):
        for at in range(half):
            switches[f"leaf{pod * half + at + 1}"] = 0
    for pod in range(pods):
        for at in range(half):
            switches[f"spine{pod * half + at + 1}"] = 1
    for core in range(half * half):
        switches[f"core{core + 1}"] = 2
    for pod in range(pods):
        for leaf in range(half):
            hosts += [f"leaf{pod * half + leaf + 1}"] * hosts_per_leaf
            trunks += [(f"leaf{pod * half + leaf + 1}", f"spine{pod * half + spine + 1}") for spine in range(half)]
        for spine in range(half):
            trunks += [(f"spine{pod * half + spine + 1}", f"core{spine * half + n + 1}") for n in range(half)]
    return cabled(f"three-tier-{pods}-{half}-{hosts_per_leaf}", switches, trunks, hosts)


def lopsided() -> Topology:
    """A tree whose leaves have different numbers of cables up and of hosts: not a fat-tree to OpenSM."""
    switches = {"leaf1": 0, "leaf2": 0, "leaf3": 0, "spine1": 1, "spine2": 1}
    trunks = [("leaf1", "spine1"), ("leaf1", "spine2"), ("leaf2", "spine1"), ("leaf2", "spine2"), ("leaf3", "spine1")]
    return cabled("lopsided", switches, trunks, ["leaf1", "leaf1", "leaf1", "leaf2", "leaf3", "leaf3"])


def preset(name: str, nodes: int) -> Topology | None:
    """A preset in its usual shape; None if it cannot hold so many."""
    try:
        return load_topology(name, nodes)
    except ConfigError:
        return None


FABRICS: dict[str, Topology] = {
    **{f"{name}-5": topology for name in PRESETS if (topology := preset(name, 5))},
    "single-switch": load_topology("single-switch", 2),
    "fat-tree-12": load_topology("fat-tree", 12),
    "ring3": ring(3),
    "ring4": ring(4),
    "ring5": ring(5),
    "ring8": ring(8),
    "three-tier": three_tier(4, 2, 2),
    "three-tier-wide": three_tier(6, 3, 3),
    "three-tier-thin": three_tier(5, 3, 1),
    "lopsided": lopsided(),
}
