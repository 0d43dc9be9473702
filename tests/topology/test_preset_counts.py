"""Switches, cables and ports of the presets, from arithmetic of their own: nothing here asks the builder."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil

import pytest

from fauxrdma.fabric.routing import SwitchGraph, compute_routes
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.summary import summarise
from fauxrdma.units import Rate


def switches(topology: Topology) -> Counter[str]:
    """How many there are of each name, numbers cut off."""
    return Counter(switch.name.rstrip("0123456789") for switch in topology.switches())


def trunks(topology: Topology) -> Counter[tuple[str, str]]:
    """Cables between switches, each once, by the names of the ends."""
    kinds = topology.nodes
    return Counter(
        (link.src, link.dst)
        for link in topology.links
        if link.kind == "cable" and link.id < link.reverse and kinds[link.src].kind is kinds[link.dst].kind
    )


def leaf_of(topology: Topology, host: int, index: int) -> str:
    return topology.fabric_link(topology.hca(host, index)).dst


# NVIDIA DGX SuperPOD reference architectures: scalable units to leaves, spines, leaf-spine cables. H100 edition
# (RA-11333, table 4) for 1 to 4, B200 edition for 8.
SUPERPOD = {1: (8, 4, 256), 2: (16, 8, 512), 3: (24, 16, 768), 4: (32, 16, 1024), 8: (64, 32, 2048)}


@pytest.mark.parametrize("units", SUPERPOD)
@pytest.mark.parametrize("missing", [0, 1])
def test_the_superpod_has_the_counts_of_nvidia_s_table(units: int, missing: int) -> None:
    nodes = 32 * units - missing  # as in the table, where management takes the place of one host
    topology = load_topology("superpod,storage_hcas=0", nodes)
    leaves, spines, between = SUPERPOD[units]
    assert switches(topology) == {"leaf": leaves, "spine": spines}
    assert trunks(topology).total() == between
    assert {s.radix for s in topology.switches()} == {64}
    assert summarise(topology).host_cables == 8 * nodes
    assert {link.rate for link in topology.links if link.kind == "cable"} == {Rate.gbps(400)}
    assert len(set(trunks(topology).values())) == 1  # every leaf has as many cables to every spine
    assert summarise(topology).tiers[0].verdict == "non-blocking"
    for host in range(nodes):  # rails are aligned: HCA i of all hosts of a unit on its leaf i
        assert [leaf_of(topology, host, i) for i in range(1, 9)] == [f"leaf{host // 32 * 8 + i}" for i in range(1, 9)]


# The B200 edition, above 8 units: leaves, spines, cores, cables between leaves and spines, between spines and cores.
SUPERPOD_WITH_CORES = {
    16: (128, 128, 64, 4096, 4096),
    32: (256, 256, 128, 8192, 8192),
    64: (512, 512, 256, 16384, 16384),
}


@pytest.mark.parametrize("units", SUPERPOD_WITH_CORES)
def test_the_superpod_grows_a_third_tier_with_the_counts_of_nvidia_s_table(units: int) -> None:
    topology = load_topology("superpod,storage_hcas=0", 32 * units)
    leaves, spines, cores, below, above = SUPERPOD_WITH_CORES[units]
    assert switches(topology) == {"leaf": leaves, "spine": spines, "core": cores}
    cables = trunks(topology)
    by_tier: Counter[int] = Counter()
    for (one, other), count in cables.items():
        by_tier[min(topology.nodes[one].tier or 0, topology.nodes[other].tier or 0)] += count
    assert (by_tier[0], by_tier[1]) == (below, above)
    assert [tier.verdict for tier in summarise(topology).tiers] == ["non-blocking", "non-blocking", "nothing above"]
    graph = SwitchGraph.of(topology)
    assert all(len(graph.trunks[graph.number[f"core{n}"]]) == 64 for n in range(1, cores + 1))  # every port is taken


def test_the_superpod_with_cores_and_a_half_filled_pod() -> None:
    topology = load_topology("superpod,su=4,radix=16,gpus=4", 40)  # 10 units of 4 leaves; pods of 2 units
    assert switches(topology) == {"leaf": 40, "spine": 20, "core": 16, "store": 5, "store-spine": 4}
    for engine in ("minhop", "ftree"):
        routes = compute_routes(SwitchGraph.of(topology), engine)
        assert not routes.warnings


@pytest.mark.parametrize("nodes", [1, 32, 33, 127, 256])
def test_the_superpod_s_storage_is_a_fabric_of_its_own(nodes: int) -> None:
    topology = load_topology("superpod", nodes)
    compute, storage = topology.members_of_islands()
    assert {hca.index for hca in compute} == set(range(1, 9))
    assert {hca.index for hca in storage} == {9}
    assert len(storage) == nodes
    stores = ceil(nodes / 32)
    expected = {1: 0, 2: 1, 4: 2, 8: 4}[stores]
    found = switches(topology)
    assert (found["store"], found["store-spine"]) == (stores, expected)


@pytest.mark.parametrize("k", [4, 6, 8, 16])
def test_the_k_ary_tree_is_al_fares_s(k: int) -> None:
    topology = load_topology(f"k-ary,k={k},gpus=1,storage_hcas=0", k**3 // 4)  # hosts of one HCA: all ports taken
    half = k // 2
    assert switches(topology) == {"leaf": k * half, "spine": k * half, "core": half**2}
    assert {s.radix for s in topology.switches()} == {k}
    assert len(topology.hcas()) == k**3 // 4
    assert all(len(topology.links_from(s.name)) == k for s in topology.switches())  # every port is taken
    between = trunks(topology)
    assert set(between.values()) == {1}
    assert between.total() == 2 * k * half**2
    pods_of_core: dict[str, Counter[int]] = {}
    for lower, upper in between:
        number = int("".join(filter(str.isdecimal, lower))) - 1
        if upper.startswith("core"):
            pods_of_core.setdefault(upper, Counter())[number // half] += 1
        else:
            assert number // half == (int(upper.removeprefix("spine")) - 1) // half  # leaf and spine of one pod
    assert all(pods == dict.fromkeys(range(k), 1) for pods in pods_of_core.values())
    assert [tier.oversubscription for tier in summarise(topology).tiers] == [1.0, 1.0, None]


@pytest.mark.parametrize("radix", [20, 36, 40, 64])
@pytest.mark.parametrize("over", ["1", "2", "3:2", "3"])
@pytest.mark.parametrize("nodes", [1, 2, 7, 40])
def test_a_fat_tree_of_any_radix_has_the_ratio_that_was_asked_for(radix: int, over: str, nodes: int) -> None:
    top, _, bottom = over.partition(":")
    wanted = Fraction(int(top), int(bottom or 1))
    up = int(radix / (1 + wanted))
    per_leaf = int(up * wanted) // 9
    leaves = ceil(nodes / per_leaf)
    if leaves > radix:
        pytest.skip("more leaves than a spine has ports: refused, which test_presets checks")
    topology = load_topology(f"fat-tree,radix={radix},oversubscription={over}", nodes)
    found = switches(topology)
    assert found["leaf"] == leaves
    between = trunks(topology)
    assert between.total() == (leaves * up if leaves > 1 else 0)
    if leaves > 1:
        spines = found["spine"]
        assert between.total() == leaves * spines * between["leaf1", "spine1"]
        fewer = [s for s in range(1, spines) if up % s == 0 and leaves * up // s <= radix]
        assert fewer == []
        ratio = summarise(topology).tiers[0].oversubscription
        assert ratio == pytest.approx(per_leaf * 9 / up)
        assert ratio <= wanted
    for host in range(nodes):
        assert {leaf_of(topology, host, i) for i in range(1, 10)} == {f"leaf{host // per_leaf + 1}"}


@pytest.mark.parametrize("nodes", [1, 3, 4, 5, 16, 160])
def test_dual_plane_is_two_disjoint_trees_with_every_other_hca(nodes: int) -> None:
    topology = load_topology("dual-plane", nodes)
    for plane, members in zip("AB", topology.members_of_islands(), strict=True):
        leaves = ceil(nodes / 4)  # of 40 ports 20 go down, for at most 5 of a node's 9 HCAs
        assert switches(topology)[f"leaf{plane}"] == leaves
        odd = plane == "A"
        assert {hca.index for hca in members if hca.index <= 8} == set(range(1 if odd else 2, 9, 2))
        assert {hca.host for hca in members if hca.index == 9} == set(range(0 if odd else 1, nodes, 2))
        assert {topology.fabric_link(hca).dst.rstrip("0123456789") for hca in members} == {f"leaf{plane}"}
    assert all(lower[4] == upper[5] for lower, upper in trunks(topology))
    assert trunks(topology).total() == (2 * 20 * ceil(nodes / 4) if nodes > 4 else 0)


def test_rail_only_has_a_switch_per_rail_and_no_trunk() -> None:
    topology = load_topology("rail-only", 40)
    assert switches(topology) == {"leaf": 9}
    assert trunks(topology) == {}
    assert topology.islands == 9
    for i, members in enumerate(topology.members_of_islands(), start=1):
        assert [hca.name for hca in members] == [f"n{host}.hca{i}" for host in range(40)]
        assert {topology.fabric_link(hca).dst for hca in members} == {f"leaf{i}"}


@pytest.mark.parametrize(("count", "cables"), [(3, 1), (4, 1), (6, 2)])
def test_the_ring_closes(count: int, cables: int) -> None:
    topology = load_topology(f"ring,switches={count},trunks={cables}", count + 1)
    assert trunks(topology) == {(f"leaf{n}", f"leaf{n % count + 1}"): cables for n in range(1, count + 1)}
    assert [leaf_of(topology, host, 9) for host in range(count + 1)] == [
        *(f"leaf{n}" for n in range(1, count + 1)), "leaf1",
    ]  # fmt: skip


def test_single_switch_holds_everything() -> None:
    topology = load_topology("single-switch,radix=72", 8)
    assert switches(topology) == {"leaf": 1}
    assert trunks(topology) == {}
    assert len(topology.links_from("leaf1")) == 72


@pytest.mark.parametrize(
    ("name", "nodes", "ratios"),
    [
        ("seed-two-switch", 8, [36 / 4]),
        ("seed-rail8", 26, [30 / 10, None]),  # 26 rail HCAs and 3 or 4 storage HCAs on a leaf
        ("seed-rail8", 8, [9 / 10, None]),
        ("seed-rail4", 8, [18 / 20, None]),
        ("seed-rail8,spines=4", 17, [20 / 20, None]),
        ("ring,gpus=2", 4, [3 / 2]),
    ],
)
def test_what_fits_but_is_oversubscribed_says_its_ratio(name: str, nodes: int, ratios: list[float | None]) -> None:
    summary = summarise(load_topology(name, nodes))
    assert [tier.oversubscription for tier in summary.tiers] == [
        None if ratio is None else pytest.approx(ratio) for ratio in ratios
    ]
    first = ratios[0]
    assert first is not None
    assert summary.tiers[0].verdict == ("non-blocking" if first <= 1 else f"{first:.3g}:1 oversubscribed")


@pytest.mark.parametrize(
    ("options", "hcas", "pcie_switches"),
    [
        ("gpus_per_hca=1", 9, 5), ("gpus_per_hca=2", 5, 5), ("gpus_per_hca=4", 3, 5), ("gpus_per_hca=0", 1, 5),
        ("gpus=4,storage_hcas=2", 6, 4), ("gpus_per_pcie_switch=4", 9, 3), ("storage_hcas=0", 8, 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["seed-rail8", "fat-tree", "dual-plane", "rail-only", "superpod", "ring", "k-ary"])
def test_every_preset_takes_every_shape_of_host(name: str, options: str, hcas: int, pcie_switches: int) -> None:
    topology = load_topology(f"{name},{options}", 2)
    assert topology.hcas_per_host == hcas
    assert len(topology.hcas()) == 2 * hcas
    kinds = Counter(node.kind for node in topology.nodes.values() if node.host == 0)
    assert kinds[NodeKind.PCIE] == pcie_switches
    assert topology.name == (name if options in ("gpus_per_hca=1",) else f"{name},{options}")


def test_nvlink_gpudirect_and_cable_lengths() -> None:
    topology = load_topology("fat-tree:ndr,nvlink=on,gpudirect=off,cable=50cm,trunk=1km", 4)
    assert not topology.shape.gpudirect
    assert topology.shape.nvlink_rate == Rate.gbps(8 * 450)
    assert topology.shape.nvswitches == 4
    assert {(k.length_m, topology.nodes[k.src].kind is topology.nodes[k.dst].kind) for k in topology.links
            if k.kind == "cable"} == {(0.5, False), (1000.0, True)}  # fmt: skip
    slower = load_topology("fat-tree,nvlink=100GB/s", 1).shape
    assert (slower.nvlink_rate, slower.nvswitches) == (Rate.gbps(800), 6)
    assert load_topology("rail-only,nvlink=off", 1).shape.nvlink_rate is None
    assert summarise(topology).nvlinks == 4 * 8 * 4
    assert summarise(topology).pcie_lanes == 4 * (5 + 8 + 9)
