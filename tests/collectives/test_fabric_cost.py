"""Bytes on every link, against the formulas that need no plan: what each node must send, and what crosses rails."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fauxrdma.collectives.algorithms import ALL_REDUCE, all_reduce_plan, plan_for
from fauxrdma.collectives.channelled import over_channels
from fauxrdma.collectives.channels import channel_routes
from fauxrdma.collectives.direct import all_to_all
from fauxrdma.collectives.fabric_cost import FabricCost, fabric_cost
from fauxrdma.collectives.hierarchical import hierarchical_all_reduce
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.pxn import pxn_all_to_all
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from fauxrdma.errors import ConfigError, FabricUnhealthy, LocalProtocolError
from fauxrdma.fabric.peer_way import NVLINK_NS, PCIE_NS
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.rank_places import RankPlace, block_places, ranks_by_node
from fauxrdma.units import Rate

RAILS = ("seed-rail8", "superpod", "rail-only")


def paths_of(fabric: str, nodes: int, gpus: int, intra_node: str = "hca") -> RankPaths:
    topology = load_topology(fabric, nodes, gpus)
    return RankPaths(SubnetManager(topology), block_places(topology, nodes, gpus), intra_node)


def named(cost: FabricCost, paths: RankPaths) -> Counter[str]:
    return Counter({paths.topology.links[link].name: nbytes for link, nbytes in cost.link_bytes.items()})


def out_of_node(cost: FabricCost, paths: RankPaths, node: int) -> int:
    """Bytes on the cables of all HCAs of a node, outwards."""
    own = [hca for hca in paths.topology.hcas() if hca.host == node]
    return sum(cost.link_bytes.get(paths.topology.fabric_link(hca).id, 0) for hca in own)


@pytest.mark.parametrize("fabric", ["seed-two-switch", "seed-rail8", "fat-tree", "k-ary", "fat-tree,transport=rocev2"])
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (3, 1), (5, 1), (8, 1), (2, 4), (3, 8)])
def test_a_ring_sends_two_n_minus_one_nths_from_every_node(fabric: str, nodes: int, gpus: int) -> None:
    paths = paths_of(fabric, nodes, gpus, "nvlink")
    n = nodes * gpus
    for blocks in (1, 7, 4096):
        count = 2 * n * blocks
        cost = fabric_cost(ring_all_reduce(count, n, itemsize=4, chunk=max(1, blocks), lanes=2), 4, paths)
        per_rank = 2 * 4 * count * (n - 1) // n
        # Of a node's ranks only the first sends to another node; the others send within it.
        assert [out_of_node(cost, paths, node) for node in range(nodes)] == [per_rank] * nodes
        assert cost.between_nodes == nodes * per_rank
        assert cost.nbytes == n * per_rank


@pytest.mark.parametrize("fabric", RAILS)
@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_a_ring_along_one_rail_stays_off_the_spines(fabric: str, nodes: int) -> None:
    paths = paths_of(fabric, nodes, 1)
    cost = fabric_cost(all_reduce_plan("ring", 100_003, nodes, 4, 2 << 20, 2), 4, paths)
    assert (cost.over_spines, cost.across_rails, cost.crossing) == (0, 0, {})
    assert cost.nbytes == cost.between_nodes == 2 * 4 * 100_003 * (nodes - 1)


@pytest.mark.parametrize("fabric", RAILS)
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2), (3, 4), (4, 8)])
def test_hierarchical_keeps_to_its_rails(fabric: str, nodes: int, gpus: int) -> None:
    paths = paths_of(fabric, nodes, gpus, "nvlink")
    count = gpus * nodes * 1000
    plan = hierarchical_all_reduce(count, ranks_by_node(paths.places), chunk=500, lanes=2)
    cost = fabric_cost(plan, 4, paths)
    assert (cost.over_spines, cost.across_rails) == (0, 0)
    per_node = 2 * 4 * count * (nodes - 1) // nodes
    assert [out_of_node(cost, paths, node) for node in range(nodes)] == [per_node] * nodes


@pytest.mark.parametrize("fabric", RAILS)
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2), (3, 4), (2, 8)])
@pytest.mark.parametrize("block", [1, 1000])
def test_pxn_takes_all_to_all_off_other_rails(fabric: str, nodes: int, gpus: int, block: int) -> None:
    paths = paths_of(fabric, nodes, gpus, "nvlink")
    n = nodes * gpus
    counts = [[block] * n for _ in range(n)]
    between = n * (n - gpus) * block * 8
    pxn = fabric_cost(pxn_all_to_all(counts, ranks_by_node(paths.places), chunk=block, lanes=2), 8, paths)
    assert (pxn.between_nodes, pxn.across_rails, pxn.over_spines) == (between, 0, 0)
    plain = all_to_all(counts, chunk=block, lanes=2)
    if fabric == "rail-only":
        with pytest.raises(FabricUnhealthy, match="no route"):
            fabric_cost(plain, 8, paths)
        return
    without = fabric_cost(plain, 8, paths)
    assert without.between_nodes == between
    assert without.across_rails == without.over_spines == between * (gpus - 1) // gpus
    assert sum(traffic.nbytes for traffic in without.crossing.values()) == without.across_rails


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["seed-two-switch", "seed-rail8", "seed-rail4", "fat-tree", "k-ary", "superpod"]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([*ALL_REDUCE, "reduce_scatter", "all_gather"]),
    st.integers(0, 5000),
    st.sampled_from([1, 2, 4, 8]),
)
def test_links_carry_what_the_plan_declares(
    fabric: str, nodes: int, gpus: int, name: str, count: int, itemsize: int
) -> None:
    paths = paths_of(fabric, nodes, gpus)
    n = paths.world_size
    plan: Plan
    if name == "reduce_scatter":
        plan = ring_reduce_scatter(count, n, chunk=700, lanes=2)
    elif name == "all_gather":
        plan = ring_all_gather(count, n, chunk=700, lanes=2)
    else:
        plan = all_reduce_plan(name, count, n, itemsize, 4096, 2)
    cost = fabric_cost(plan, itemsize, paths)
    links = named(cost, paths)
    for rank, place in enumerate(paths.places):
        declared = plan.traffic(rank)
        leaves = sum(nbytes for name, nbytes in links.items() if name.startswith(f"{place.gpu_name}->"))
        assert leaves == declared.elements * itemsize
        sent = [traffic for (source, _), traffic in cost.pairs.items() if source == rank]
        assert sum(traffic.messages for traffic in sent) == declared.messages
    # Every message crosses every link of its path once.
    hops = sum(traffic.nbytes * len(paths.path(*pair).hops) for pair, traffic in cost.pairs.items())
    assert sum(cost.link_bytes.values()) == hops
    assert cost.rounds == plan.rounds


def test_nvlink_is_split_over_all_switches_and_rated_as_a_whole() -> None:
    paths = paths_of("superpod", 1, 8, "nvlink")
    path = paths.path(0, 5)
    lanes = paths.topology.shape.nvswitches
    assert [len(hop) for hop in path.hops] == [lanes, lanes]
    assert path.latency_ns == NVLINK_NS
    nvlink = paths.topology.shape.nvlink_rate
    assert nvlink is not None
    assert path.rate.bits_per_s == pytest.approx(nvlink.bits_per_s * 16 / 17, rel=1e-6)
    plan = all_to_all([[0, 1003], [0, 0]], chunk=1003, lanes=1)
    two = RankPaths(paths.manager, paths.places[:2], "nvlink")
    cost = fabric_cost(plan, 1, two)
    out = [nbytes for name, nbytes in named(cost, two).items() if name.startswith("n0.gpu0->")]
    assert len(out) == lanes
    assert sum(out) == 1003
    assert max(out) - min(out) <= 1
    assert cost.predicted_ns == NVLINK_NS + path.rate.transfer_ns(1003)


def test_without_nvlink_gpus_meet_at_the_pcie_switch_or_the_root() -> None:
    paths = paths_of("fat-tree", 1, 4, "nvlink")

    def way(a: int, b: int) -> list[str]:
        return [paths.topology.links[link].name for hop in paths.path(a, b).hops for link in hop]

    assert way(0, 1) == ["n0.gpu0->n0.pcie0", "n0.pcie0->n0.gpu1"]
    assert way(1, 2) == ["n0.gpu1->n0.pcie0", "n0.pcie0->n0.mem", "n0.mem->n0.pcie1", "n0.pcie1->n0.gpu2"]
    assert paths.path(0, 1).latency_ns == PCIE_NS
    assert not paths.path(0, 1).over_hcas


@pytest.mark.parametrize("cross_nic", [0, 1, 2])
def test_channels_use_all_hcas_at_once(cross_nic: int) -> None:
    nodes = gpus = 4
    paths = paths_of("superpod", nodes, gpus, "nvlink")
    by_node = ranks_by_node(paths.places)
    hcas = [place.hca for place in paths.places]
    routes = channel_routes(by_node, hcas, [hca - 1 for hca in hcas], gpus, cross_nic)
    count = 2 * 16 * gpus * 4096
    request = Request("all_reduce", 16, count, 4, 2 << 20, 2)
    cut = over_channels(request, "ring", routes)
    assert cut is not None
    assert len(cut.parts) == gpus
    cost = fabric_cost(cut, 4, paths)
    whole = fabric_cost(plan_for(request, "ring"), 4, paths)
    # As many bytes, but each HCA of a node has a channel's part, and so a part of the time.
    assert cost.nbytes == whole.nbytes == 2 * 15 * 4 * count
    own_share = 2 * 15 * 4 * count // 16 // gpus
    for node in range(nodes):
        cables = [paths.topology.fabric_link(paths.topology.hca(node, hca)).id for hca in range(1, gpus + 1)]
        assert [cost.link_bytes[cable] for cable in cables] == [own_share] * gpus
    assert cost.predicted_ns < 0.6 * whole.predicted_ns
    # Only policy 1 leaves a node by another rail than it came in.
    assert (cost.across_rails > 0) == (cross_nic == 1)


def test_sprayed_packets_use_every_uplink_alike() -> None:
    paths = paths_of("seed-rail8,transport=rocev2,routing=spray", 2, 2)
    counts = [[0, 0, 0, 1_000_003], [0] * 4, [0] * 4, [0] * 4]
    cost = fabric_cost(all_to_all(counts, chunk=1 << 20, lanes=1), 1, paths)
    topology = paths.topology
    up = [n for link, n in cost.link_bytes.items() if topology.links[link].name.startswith("leaf1->spine")]
    assert len(up) == len([link for link in topology.links_from("leaf1") if link.dst.startswith("spine")])
    assert sum(up) == cost.over_spines == 1_000_003
    assert max(up) - min(up) <= len(paths.path(0, 3).ways) // len(up)
    # The tables would send it all over one of them: as fast for one flow, not for several.
    assert paths.path(0, 3).rate == paths.manager.payload_rate(topology.fabric_link(topology.hca(0, 1)).id)


def test_two_gpus_of_one_hca_share_it() -> None:
    shared = paths_of("fat-tree,gpus_per_hca=2", 2, 2)
    own = paths_of("fat-tree", 2, 2)
    # Ranks 0 and 1 each send to their like on the other node.
    counts = [[0, 0, 1 << 20, 0], [0, 0, 0, 1 << 20], [0] * 4, [0] * 4]
    plan = all_to_all(counts, chunk=1 << 20, lanes=1, pairwise=False)
    slow, fast = (fabric_cost(plan, 1, paths).predicted_ns for paths in (shared, own))
    assert slow == pytest.approx(2 * fast, rel=0.03)


def test_what_cannot_be_is_refused() -> None:
    topology = load_topology("fat-tree", 2, 2)
    manager = SubnetManager(topology)
    with pytest.raises(ConfigError, match="hca or nvlink, not 'pipe'"):
        RankPaths(manager, block_places(topology, 2, 2), "pipe")
    with pytest.raises(ConfigError, match=r"has no n7\.gpu0"):
        RankPaths(manager, [RankPlace(7, 0, 1)])
    with pytest.raises(ConfigError, match=r"share n0\.gpu0"):
        RankPaths(manager, [RankPlace(0, 0, 1)] * 2, "nvlink").path(0, 1)
    with pytest.raises(LocalProtocolError, match="of 3 ranks on 4 places"):
        fabric_cost(ring_all_gather(4, 3, chunk=1, lanes=1), 4, RankPaths(manager, block_places(topology, 2, 2)))


def test_a_gigabyte_ring_of_128_ranks_is_costed_while_one_waits() -> None:
    paths = paths_of("fat-tree", 16, 8)
    cost = fabric_cost(all_reduce_plan("ring", 1 << 28, 128, 4, 2 << 20, 2), 4, paths)
    assert cost.nbytes == 2 * 127 << 30
    ideal = 2 * 127 / 128 * (1 << 30) / Rate(paths.path(0, 1).rate.bits_per_s).bytes_per_ns
    assert cost.predicted_ns == pytest.approx(ideal, rel=0.02)
