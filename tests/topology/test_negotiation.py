"""HCAs slower than their cables."""

from __future__ import annotations

import pytest

from fauxrdma.ib.profiles import PROFILES
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.units import Rate


def rates(topology: Topology) -> tuple[set[float], set[float]]:
    """Gb/s of the cables of HCAs, and of those between switches."""
    of_hcas = {topology.fabric_link(hca).id for hca in topology.hcas()}
    of_hcas |= {topology.links[link].reverse for link in of_hcas}
    cables = [link for link in topology.links if link.kind == "cable"]
    return (
        {link.rate.bits_per_s / 1e9 for link in cables if link.id in of_hcas},
        {link.rate.bits_per_s / 1e9 for link in cables if link.id not in of_hcas},
    )


@pytest.mark.parametrize(
    ("fabric", "profile", "to_hcas", "between"),
    [
        ("seed-rail8", "ibta", 200, 200),
        ("seed-rail8", "rxe-like", 200, 200),
        ("seed-rail8", "cx4-edr", 100, 100),
        ("seed-rail8", "cx7-ndr", 400, 400),
        ("seed-rail8", "cx8-xdr", 800, 800),
        ("seed-rail8:ndr", "cx6-hdr", 200, 400),
        ("seed-rail8:edr", "cx6-hdr", 100, 100),
    ],
)
def test_a_cable_runs_at_the_slower_ports_rate(fabric: str, profile: str, to_hcas: float, between: float) -> None:
    topology = load_topology(fabric, 2, 1, PROFILES[profile].port_rate)
    assert rates(topology) == ({to_hcas}, {between})


def test_lanes_inside_the_host_are_untouched() -> None:
    whole, slow = load_topology("fat-tree", 2), load_topology("fat-tree:hdr", 2, None, Rate.gbps(1))
    assert [k for k in whole.links if k.kind == "pcie"] == [k for k in slow.links if k.kind == "pcie"]
