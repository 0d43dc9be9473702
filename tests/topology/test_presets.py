"""The presets are what REFERENCE D describes, at every size that fits, and refuse the sizes that do not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.presets.spec import ChosenPreset, parse_preset
from fauxrdma.topology.summary import summarise
from fauxrdma.units import Rate

RATES = {"superpod": (400, 504)}
"""Cable and PCIe rate of the presets that are not HDR."""


def chosen(spec: str) -> ChosenPreset:
    preset = parse_preset(spec)
    assert preset is not None
    return preset


def leaf_of(topology: Topology, host: int, index: int) -> str:
    return topology.fabric_link(topology.hca(host, index)).dst


def cables_between(topology: Topology) -> Counter[tuple[str, str]]:
    return Counter(
        (link.src, link.dst)
        for link in topology.links
        if topology.nodes[link.src].kind is NodeKind.SWITCH and topology.nodes[link.dst].kind is NodeKind.SWITCH
    )


@pytest.mark.parametrize("name", PRESETS)
def test_every_node_is_dgx_like(name: str) -> None:
    topology = load_topology(name, 2)
    assert (topology.hosts, topology.gpus_per_host, topology.hcas_per_host) == (2, 8, 9)
    assert (topology.mtu, topology.switch_latency_ns, topology.switching) == (4096, 130, "cut-through")
    for host in range(2):
        for g in range(8):
            gpu, hca = topology.gpu(host, g), topology.hca(host, g + 1)
            assert (topology.gpus_of(hca), topology.hca_of(gpu)) == ([gpu], hca)
            up = [link.dst for link in topology.links_from(gpu.name) if link.kind == "pcie"]
            assert up == [f"n{host}.pcie{g // 2}"]  # two GPUs per PCIe switch, their HCAs on the same one
            assert [link.dst for link in topology.links_from(hca.name) if link.kind == "pcie"] == up
        storage = topology.hca(host, 9)
        assert topology.gpus_of(storage) == []
        assert [link.dst for link in topology.links_from(storage.name) if link.kind == "pcie"] == [f"n{host}.pcie4"]
        assert Counter(link.dst for link in topology.links_from(f"n{host}.pcie4")) == {
            storage.name: 1,
            f"n{host}.mem": 1,
        }
    cable, pcie = RATES.get(name, (200, 252))
    assert {link.rate for link in topology.links if link.kind == "cable"} == {Rate.gbps(cable)}
    assert {link.rate for link in topology.links if link.kind == "pcie"} == {Rate.gbps(pcie)}


@pytest.mark.parametrize("name", PRESETS)
def test_every_size_that_is_said_to_fit_does_and_the_next_does_not(name: str) -> None:
    most = chosen(name).max_nodes
    for nodes in [*range(1, min(most, 26)), most]:
        topology = load_topology(name, nodes)  # validates ports against every radix
        assert topology.hosts == nodes
        assert len(topology.hcas()) == 9 * nodes
    with pytest.raises(ConfigError, match=rf"{name} cannot hold .* ran out of ports .*at most {most} nodes"):
        load_topology(name, most + 1)


def test_two_switch_puts_odd_hcas_on_the_first_and_even_ones_on_the_second() -> None:
    topology = load_topology("seed-two-switch", 8)
    assert [(s.name, s.radix) for s in topology.switches()] == [("leaf1", 40), ("leaf2", 40)]
    assert cables_between(topology) == {("leaf1", "leaf2"): 4, ("leaf2", "leaf1"): 4}
    for host in range(8):
        assert {leaf_of(topology, host, i) for i in (1, 3, 5, 7)} == {"leaf1"}
        assert {leaf_of(topology, host, i) for i in (2, 4, 6, 8)} == {"leaf2"}
        assert leaf_of(topology, host, 9) == f"leaf{host % 2 + 1}"


def test_rail8_puts_hca_i_on_leaf_i_and_has_80_cables_to_two_spines() -> None:
    topology = load_topology("seed-rail8", 26)
    assert Counter((s.tier, s.radix) for s in topology.switches()) == {(0, 40): 8, (1, 40): 2}
    for host in range(26):
        assert [leaf_of(topology, host, i) for i in range(1, 9)] == [f"leaf{i}" for i in range(1, 9)]
        assert leaf_of(topology, host, 9) == f"leaf{host % 8 + 1}"
    between = cables_between(topology)
    assert between == {
        pair: 5 for i in range(1, 9) for s in (1, 2) for pair in ((f"leaf{i}", f"spine{s}"), (f"spine{s}", f"leaf{i}"))
    }
    assert sum(between.values()) == 2 * 80


def test_rail4_puts_two_hcas_of_a_node_on_each_of_four_leaves() -> None:
    topology = load_topology("seed-rail4", 8)
    for host in range(8):
        assert [leaf_of(topology, host, i) for i in range(1, 9)] == [f"leaf{i}" for i in (1, 2, 3, 4, 1, 2, 3, 4)]
    assert sum(cables_between(topology).values()) == 2 * 80


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 12, 36, 40, 71, 72])
def test_the_fat_tree_is_non_blocking_and_keeps_a_node_on_one_leaf(nodes: int) -> None:
    topology = load_topology("fat-tree", nodes)
    for host in range(nodes):
        assert {leaf_of(topology, host, i) for i in range(1, 10)} == {f"leaf{host // 2 + 1}"}
    leaves = [s for s in topology.switches() if s.tier == 0]
    spines = [s for s in topology.switches() if s.tier == 1]
    assert {s.radix for s in topology.switches()} == {36}
    assert len(leaves) == -(-nodes // 2)
    between = cables_between(topology)
    if len(leaves) == 1:
        assert spines == []
    else:
        # The same number of cables from every leaf to every spine, and as many up as down.
        assert len({between[leaf.name, spine.name] for leaf in leaves for spine in spines}) == 1
        assert all(sum(between[leaf.name, spine.name] for spine in spines) == 18 for leaf in leaves)
    summary = summarise(topology)
    assert summary.tiers[0].oversubscription in (None, 1.0, 0.5)


def test_the_full_fat_tree_is_36_and_18_switches_for_648_hcas() -> None:
    topology = load_topology("fat-tree", 72)
    summary = summarise(topology)
    assert (summary.hcas, summary.host_cables, summary.switch_cables) == (648, 648, 648)
    assert [(t.switches, t.ports, t.ports_used) for t in summary.tiers] == [(36, 1296, 1296), (18, 648, 648)]
    assert [t.oversubscription for t in summary.tiers] == [1.0, None]


@pytest.mark.parametrize(
    ("spec", "cable", "pcie"), [("edr", 100, 252), ("hdr", 200, 252), ("ndr", 400, 504), ("XDR", 800, 944)]
)
def test_a_rate_by_name_is_gigabits(spec: str, cable: int, pcie: int) -> None:
    topology = load_topology(f"fat-tree:{spec}", 3)
    assert {link.rate for link in topology.links if link.kind == "cable"} == {Rate.gbps(cable)}
    assert {link.rate for link in topology.links if link.kind == "pcie"} == {Rate.gbps(pcie)}
    assert topology.name == ("fat-tree" if spec == "hdr" else f"fat-tree:{spec.lower()}")


@pytest.mark.parametrize(
    ("spec", "nodes", "gpus", "says"),
    [
        ("fat-tre", 2, None, "unknown fabric 'fat-tre': did you mean 'fat-tree'"),
        ("seed-rail8:ndx", 2, None, "unknown rate 'ndx': did you mean"),
        ("seed-rail8:", 2, None, "unknown rate ''"),
        ("wholly-else", 2, None, "unknown fabric 'wholly-else': known are seed-two-switch, seed-rail8"),
        ("fat-tree", 0, None, "at least one node, not 0"),
        ("fat-tree", 2, 9, "8 GPUs per node: .*between 1 and 8, not 9"),
        ("fat-tree", 2, 0, "not 0"),
        ("fat-tree", 73, None, "spine1 ran out of ports .it has 36"),
        ("seed-rail8", 27, None, "leaf1 ran out of ports .it has 40, of which 10 go to other switches.; at most 26"),
        ("seed-two-switch", 9, None, "leaf1 ran out of ports .it has 40, of which 4"),
        ("superpod", 2049, None, "store-spine1 ran out of ports .it has 64, one per leaf of the storage.*at most 2048"),
        ("superpod,storage_hcas=0", 9000, None, "core1 ran out of ports .it has 64, one per pod of 4 units.*most 8192"),
        ("superpod,radix=8,su=4,storage_hcas=0", 5, None, "spine1 ran out of ports .it has 8, one per leaf, and each"),
        ("superpod,su=33", 1, None, "leaf1 ran out of ports .it has 64, and a unit of 33 hosts needs 66.; none fits"),
        ("k-ary,k=4", 2, None, "leaf8 ran out of ports .*16 in all, and a node has 9 HCAs.; at most 1 node fits"),
        ("dual-plane", 161, None, "spineA1 ran out of ports .it has 40, .* takes the 5 HCAs of 4 nodes"),
        ("dual-plane,radix=8", 1, None, "leafA1 ran out of ports .it has 8, of which 4 go up, .* 5 HCAs on a plane"),
        ("rail-only", 41, None, "leaf1 ran out of ports .it has 40, one per node"),
        ("ring", 17, None, "leaf1 ran out of ports .it has 40, of which 2 go to other switches, .* 9 HCAs"),
        ("single-switch", 5, None, "leaf1 ran out of ports .it has 40, and a node has 9 HCAs.; at most 4"),
        ("fat-tree,radix=16", 1, None, "leaf1 ran out of ports .it has 16, of which 8 go up, and a node has 9"),
        ("fat-tree,radx=40", 2, None, "unknown option 'radx': did you mean 'radix'"),
        ("fat-tree,k=40", 2, None, "unknown option 'k': known are radix, oversubscription, gpus"),
        ("fat-tree,radix", 2, None, "'radix' needs a value"),
        ("fat-tree,", 2, None, "unknown option ''"),
        ("fat-tree,gpus=4,gpus=8", 2, None, "'gpus' is given twice"),
        ("fat-tree,radix=4x", 2, None, "'radix' must be a whole number from 2 to 4096, not '4x'"),
        ("k-ary,k=7", 2, None, "'k' must be an even number from 4 to 128, not '7'"),
        ("fat-tree,oversubscription=0.5", 2, None, "must be a ratio from 1 to 100 .*, not '0.5'"),
        ("fat-tree,gpus_per_hca=3", 2, None, "'gpus_per_hca' must be one of 0, 1, 2, 4, not '3'"),
        ("fat-tree,gpudirect=of", 2, None, r"'gpudirect' must be on or off .did you mean off\?., not 'of'"),
        ("fat-tree,nvlink=450", 2, None, "'nvlink' must be on, off or a rate with its unit such as 450GBps"),
        ("fat-tree,cable=3", 2, None, "'cable' must be a length with its unit such as 3m"),
        ("fat-tree,gpus_per_hca=0,storage_hcas=0", 2, None, "a host needs an HCA"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(spec: str, nodes: int, gpus: int | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        load_topology(spec, nodes, gpus)
    assert "\n" not in str(refused.value)


def test_the_documented_limits_are_the_real_ones() -> None:
    rows = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text().splitlines()
    presets = [row for row in rows if row.startswith("| `") and row.split("`")[1] in PRESETS]
    documented = {row.split("`")[1]: int(row.split("|")[-2]) for row in presets}
    assert documented == {name: chosen(name).max_nodes for name in PRESETS}


def test_using_fewer_gpus_keeps_the_whole_node() -> None:
    topology = load_topology("seed-rail8", 2, 3)
    assert (topology.active_gpus, topology.gpus_per_host, topology.hcas_per_host) == (3, 8, 9)
    assert load_topology("seed-rail8", 2).active_gpus == 8
    assert load_topology("seed-rail8").hosts == 2
