"""Rails and planes: which HCAs meet on the same leaves, and which switches hang together.

A fabric has *rails* when every HCA index keeps to leaves of its own: HCA 1 of all hosts on these leaves, HCA 2 on
those. A *plane* is a part of the fabric that no cable joins to the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from fauxrdma.topology.graph import Topology, reachable_switches

__all__ = ["planes_of", "rails_by_leaves", "rails_of"]


def rails_of(topology: Topology) -> dict[str, int]:
    """The rail (from 0) of every HCA that serves GPUs, by name; empty for a fabric without rails."""
    leaves: dict[int, set[str]] = {}
    compute = [hca for hca in topology.hcas() if hca.index <= topology.shape.compute_hcas]
    for hca in compute:
        leaves.setdefault(hca.index, set()).add(topology.fabric_link(hca).dst)
    rail_of = rails_by_leaves(leaves)
    return {hca.name: rail_of[hca.index] for hca in compute} if rail_of else {}


def rails_by_leaves(leaves: Mapping[int, Set[str]]) -> dict[int, int]:
    """The rail (from 0) of every HCA index, given the leaves that HCAs of that index are on; empty when they do not
    keep apart, or are all on one rail."""
    rails: list[Set[str]] = []
    rail_of: dict[int, int] = {}
    for index, own in sorted(leaves.items()):
        meets = [number for number, rail in enumerate(rails) if rail & own]
        if not meets:
            rail_of[index] = len(rails)
            rails.append(own)
        elif len(meets) == 1 and rails[meets[0]] == own:
            rail_of[index] = meets[0]
        else:
            return {}
    return rail_of if len(rails) > 1 else {}


def planes_of(topology: Topology) -> dict[str, int]:
    """The plane (from 0) of every switch, by name; empty for a fabric that hangs together."""
    planes: dict[str, int] = {}
    count = 0
    for switch in topology.switches():
        if switch.name not in planes:
            planes.update(dict.fromkeys(reachable_switches(switch.name, topology.nodes, topology.links), count))
            count += 1
    return planes if count > 1 else {}
