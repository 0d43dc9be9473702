"""Transports as profiles: bytes on the wire, rates and latencies by arithmetic, and how each deals with full queues."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from fauxrdma.fabric.routing import FlowKey
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.fabric.transport import (
    INFINIBAND,
    IWARP,
    ROCEV1,
    ROCEV2,
    TRANSPORTS,
    CongestionControl,
    FlowControl,
    LossRecovery,
    TransportProfile,
)
from fauxrdma.topology.graph import CUT_THROUGH, ROUTING_ENGINES, STORE_AND_FORWARD
from fauxrdma.topology.loading import load_topology

ETHERNET = 7 + 1 + 6 + 6 + 2 + 4 + 12  # preamble, delimiter, two addresses, type, check sequence, gap
AROUND = {
    "infiniband": 8 + 12 + 4 + 2,  # LRH, BTH, ICRC, VCRC
    "rocev2": ETHERNET + 20 + 8 + 12 + 4,  # IPv4, UDP, BTH, ICRC
    "rocev1": ETHERNET + 40 + 12 + 4,  # GRH, BTH, ICRC
    "iwarp": ETHERNET + 20 + 20 + 2 + 4 + 1 + 1 + 4 + 8,  # IPv4, TCP, MPA length and CRC, DDP, RDMAP, STag, offset
}


@pytest.mark.parametrize("name", list(AROUND))
@pytest.mark.parametrize("mtu", [256, 1024, 4096])
def test_efficiency_is_payload_over_bytes_on_the_wire(name: str, mtu: int) -> None:
    assert TRANSPORTS[name].packet_overhead == AROUND[name]
    assert TRANSPORTS[name].efficiency(mtu) == pytest.approx(float(Fraction(mtu, mtu + AROUND[name])))


def test_efficiencies_at_4096_are_those_of_the_reference() -> None:
    """REFERENCE B has the first two; the others follow from their headers."""
    four = [round(profile.efficiency(4096), 4) for profile in (INFINIBAND, ROCEV2, ROCEV1, IWARP)]
    assert four == [0.9937, 0.9804, 0.9776, 0.9766]


def test_every_transport_that_a_fabric_may_have_has_a_profile() -> None:
    assert list(TRANSPORTS) == list(ROUTING_ENGINES)
    assert [profile.ethernet for profile in TRANSPORTS.values()] == [False, True, True, True]


@pytest.mark.parametrize(
    ("profile", "flow_control", "ecn", "congestion_control", "loss_recovery"),
    [
        (INFINIBAND, FlowControl.CREDITS, False, CongestionControl.NONE, LossRecovery.LINK_RETRY),
        (ROCEV2, FlowControl.PFC, True, CongestionControl.DCQCN, LossRecovery.GO_BACK_N),
        (ROCEV1, FlowControl.PFC, False, CongestionControl.NONE, LossRecovery.GO_BACK_N),
        (IWARP, FlowControl.NONE, True, CongestionControl.TCP, LossRecovery.SELECTIVE),
    ],
)
def test_how_each_deals_with_full_queues(
    profile: TransportProfile,
    flow_control: FlowControl,
    ecn: bool,
    congestion_control: CongestionControl,
    loss_recovery: LossRecovery,
) -> None:
    assert (profile.flow_control, profile.ecn) == (flow_control, ecn)
    assert (profile.congestion_control, profile.loss_recovery) == (congestion_control, loss_recovery)
    # A queue pair's rate can only be cut by marks if there is an IP header to mark.
    assert profile.ecn == ("IPv4" in profile.headers)
    # Only what carries a UDP or TCP port shows switches its flows, and only IP crosses routers.
    assert profile.flow_entropy == bool({"UDP", "TCP"} & set(profile.headers))
    assert profile.routable == ("IPv4" in profile.headers)


@pytest.mark.parametrize("name", list(TRANSPORTS))
def test_a_path_has_the_rate_and_latency_of_its_transport(name: str) -> None:
    """seed-two-switch, n0.hca1 to n1.hca2: cables of 3, 5 and 3 m at 200 Gb/s, two switches."""
    manager = SubnetManager(load_topology(f"seed-two-switch,transport={name}", 2))
    profile, topology = TRANSPORTS[name], manager.topology
    assert (topology.switching, topology.switch_latency_ns) == (profile.switching, profile.switch_latency_ns)
    path = manager.path(manager.lid("n0.hca1"), manager.lid("n1.hca2"))
    packet_ns = math.ceil((4096 + AROUND[name]) * 8 / 200)
    per_switch = {
        CUT_THROUGH: 130,
        STORE_AND_FORWARD: 400 + packet_ns,
    }[profile.switching]
    assert path.latency_ns == round(profile.tx_ns + profile.rx_ns + 2 * per_switch + 5 * (3 + 5 + 3))
    assert path.rate.bits_per_s == 200_000_000_000 * 4096 // (4096 + AROUND[name])


def test_switches_cannot_tell_the_flows_of_rocev1_apart() -> None:
    """No UDP port, so nothing to hash but the addresses: what RoCE v2 spreads over spines stays on one."""
    flows = range(1, 65)
    spines = {}
    for name in ("rocev1", "rocev2"):
        manager = SubnetManager(load_topology(f"seed-rail8,transport={name}", 2))
        label = TRANSPORTS[name].flow_entropy
        here, there = manager.lid("n0.hca1"), manager.lid("n1.hca2")
        ways = {manager.flow_path(FlowKey(here, there, qpn if label else 0)).links for qpn in flows}
        spines[name] = len(ways)
    assert spines["rocev1"] == 1
    assert spines["rocev2"] > 8  # of 5 x 2 x 5 ways
