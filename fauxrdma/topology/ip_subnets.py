"""Where an Ethernet fabric is cut into IP subnets: at the switches that route.

`Topology.routed` names the lowest tier of switches that are IP routers; those below only bridge. HCAs that reach each
other without crossing a router are in one subnet. ``routed: spine`` is the usual leaf-spine fabric with a subnet for
each leaf, ``routed: core`` makes each pod of a three-tier fabric one.
"""

from __future__ import annotations

from fauxrdma.topology.graph import TIER_NAMES, Topology, reachable_switches

__all__ = ["ip_subnets", "links_into_routers", "routers"]


def routers(topology: Topology) -> frozenset[str]:
    """Names of the switches that route; none in a fabric that is one subnet."""
    if topology.routed is None:
        return frozenset()
    lowest = TIER_NAMES.index(topology.routed)
    return frozenset(node.name for node in topology.switches() if (node.tier or 0) >= lowest)


def links_into_routers(topology: Topology) -> frozenset[int]:
    """Ids of the cables that lead to a router, in that direction: where what has no IP header ends."""
    routing = routers(topology)
    return frozenset(link.id for link in topology.links if link.dst in routing)


def ip_subnets(topology: Topology) -> dict[str, int]:
    """The number of each HCA's IP subnet, from 0 in the order of the HCAs. One on a router has a subnet of its own."""
    routing = routers(topology)
    bridges = {node.name for node in topology.switches()} - routing
    bridged = [link for link in topology.links if link.src in bridges and link.dst in bridges]
    subnets: dict[str, int] = {}
    of_switch: dict[str, int] = {}
    count = 0
    for hca in topology.hcas():
        leaf = topology.fabric_link(hca).dst
        if leaf in of_switch:
            subnets[hca.name] = of_switch[leaf]
            continue
        subnets[hca.name] = count
        if leaf not in routing:
            switches = reachable_switches(leaf, topology.nodes, bridged)
            of_switch |= dict.fromkeys(switches, count)
        count += 1
    return subnets
