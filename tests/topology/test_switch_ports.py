"""The validator's report: what is plugged into each switch, and how many cables of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.switch_ports import cable_kinds, cable_lines, switch_lines, switch_ports
from fauxrdma.units import Rate

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "fabrics" / "two-leaf.yaml")


def test_ports_of_a_small_fabric() -> None:
    topology = load_topology(EXAMPLE)
    leaf1, leaf2, spine1, spine2 = switch_ports(topology)
    assert (leaf1.to_hosts, leaf1.to_lower, leaf1.to_upper, leaf1.used, leaf1.radix) == (8, 0, 4, 12, 16)
    assert (leaf2.to_hosts, leaf2.to_upper, leaf2.used) == (4, 4, 8)
    assert [(spine.to_hosts, spine.to_lower, spine.to_upper) for spine in (spine1, spine2)] == [(0, 4, 0)] * 2
    assert switch_lines(topology) == [
        "leaf1: 12 of 16 ports used (8 to hosts, 4 up)",
        "leaf2: 8 of 16 ports used (4 to hosts, 4 up)",
        "spine1-spine2: 4 of 8 ports used (4 down)",
    ]
    assert cable_lines(topology) == [
        "4 cables of 100 Gb/s, 3 m",
        "8 cables of 200 Gb/s, 2 m",
        "8 cables of 200 Gb/s, 15 m",
    ]


@pytest.mark.parametrize("name", ["seed-two-switch", "seed-rail8", "seed-rail4", "fat-tree"])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_every_end_of_every_cable_is_counted_once(name: str, nodes: int) -> None:
    topology = load_topology(name, nodes)
    ports = switch_ports(topology)
    cables = sum(kind.count for kind in cable_kinds(topology))
    hosts = sum(each.to_hosts for each in ports)
    assert hosts == len(topology.hcas())
    assert sum(each.to_lower + each.to_upper for each in ports) == 2 * (cables - hosts)
    assert all(each.used <= each.radix for each in ports)
    assert {kind.rate for kind in cable_kinds(topology)} == {Rate.gbps(200)}
    assert max(each.used for each in ports) == max(
        link.src_port for link in topology.links if link.kind == "cable" and ".hca" not in link.src
    )
