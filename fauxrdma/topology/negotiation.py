"""A cable between two ports runs at the rate of the slower one."""

from __future__ import annotations

from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.units import Rate

__all__ = ["with_hca_rate"]


def with_hca_rate(topology: Topology, rate: Rate) -> Topology:
    """`topology` with HCAs whose ports signal at no more than `rate`: faster cables of theirs run at it, both ways."""
    hcas = {node.name for node in topology.nodes.values() if node.kind is NodeKind.HCA}
    data = topology.to_dict()
    for link in data["links"]:
        if link["kind"] == "cable" and (link["src"] in hcas or link["dst"] in hcas):
            link["rate_bps"] = min(link["rate_bps"], rate.bits_per_s)
    slower = Topology.from_dict(data)
    slower.events = topology.events
    return slower
