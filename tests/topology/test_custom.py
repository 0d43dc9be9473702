"""Fabric files: what a good one makes, and that every mistake is reported where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.custom import check_fabric_file
from fauxrdma.topology.graph import STORE_AND_FORWARD
from fauxrdma.topology.loading import load_topology
from fauxrdma.units import Rate

EXAMPLE = Path(__file__).parents[2] / "examples" / "fabrics" / "two-leaf.yaml"

GOOD = """\
name: tiny
mtu: 2048B
switching: store-and-forward
switch_latency: 0.4us
hosts:
  count: 2
  gpus: 2
  gpus_per_pcie_switch: 1
  pcie_rate: 31.5GBps
switches:
  leaf1: {ports: 4}
  leaf2: {ports: 4, tier: leaf}
  top: {ports: 2, tier: spine}
cables:
  - {from: "n*.hca1", to: leaf1, rate: 100Gbps, length: 50cm}
  - {from: leaf2, to: "n*.hca2", rate: 100Gbps, length: 3m}
  - {from: top, to: leaf1, rate: 200Gbps, length: 10m}
  - {from: top, to: leaf2, rate: 200Gbps, length: 10m}
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "fabric.yaml"


def test_a_good_file_makes_that_fabric(written: Path) -> None:
    written.write_text(GOOD)
    topology = load_topology(str(written))
    assert check_fabric_file(str(written)) == []
    assert (topology.name, topology.hosts, topology.gpus_per_host, topology.hcas_per_host) == ("tiny", 2, 2, 2)
    assert (topology.mtu, topology.switching, topology.switch_latency_ns) == (2048, STORE_AND_FORWARD, 400)
    cable = topology.fabric_link(topology.hca(1, 1))
    assert (cable.dst, cable.rate, cable.length_m) == ("leaf1", Rate.gbps(100), 0.5)
    assert topology.fabric_link(topology.hca(1, 2)).dst == "leaf2"
    assert [link.dst for link in topology.links_from("n1.gpu1")] == ["n1.pcie1"]
    assert topology.links_from("n1.gpu1")[0].rate == Rate.gbps(252)
    assert [(s.name, s.tier, s.index, s.radix) for s in topology.switches()] == [
        ("leaf1", 0, 1, 4),
        ("leaf2", 0, 2, 4),
        ("top", 1, 1, 2),
    ]
    assert load_topology(str(written), 1, 1).hosts == 1


def test_the_example_is_good_and_explicit_hosts_may_be_left_out(written: Path) -> None:
    topology = load_topology(str(EXAMPLE))
    assert (topology.hosts, len(topology.hcas()), len(topology.switches())) == (4, 12, 4)
    written.write_text(
        GOOD.replace('"n*.hca1"', "n0.hca1") + "  - {from: n1.hca1, to: leaf1, rate: 1Gbps, length: 1m}\n"
    )
    assert len(load_topology(str(written), 1).hcas()) == 2


def test_more_nodes_than_described(written: Path) -> None:
    written.write_text(GOOD)
    with pytest.raises(ConfigError, match=r"fabric.yaml:6:10: 3 nodes were asked for, the file describes 2"):
        load_topology(str(written), 3)


# Each: text to replace, replacement, "line:column", part of the message.
MISTAKES = [
    # form
    ("name: tiny", "nam: tiny", "1:1", "unknown key 'nam' (did you mean name?)"),
    ("  count: 2\n", "", "6:3", "'count' is missing here"),
    ("mtu: 2048B", "mtuu: 2048B", "2:1", "unknown key 'mtuu' (did you mean mtu?)"),
    ("mtu: 2048B", "colour: red", "2:1", "unknown key 'colour' (known here: name, description, mtu,"),
    ("  gpus: 2", "  gpu: 2", "7:3", "unknown key 'gpu' (did you mean gpus?)"),
    ("{ports: 4}", "{portz: 4}", "11:11", "unknown key 'portz' (did you mean ports?)"),
    ("{from: top, to: leaf1, rate", "{from: top, too: leaf1, rate", "17:17", "unknown key 'too' (did you mean to?)"),
    ("  count: 2", "  count: two", "6:10", "'count' must be a whole number, not 'two'"),
    ("  count: 2", "  count: 2.5", "6:10", "'count' must be a whole number, not '2.5'"),
    ("  count: 2", "  count: true", "6:10", "'count' must be a whole number"),
    ("  count: 2", "  count: 0", "6:10", "'count' must be at least 1, not 0"),
    ("{ports: 4}", "{ports: 5000}", "11:18", "'ports' must be at most 4096, not 5000"),
    ("{ports: 4}", "4", "11:10", "'leaf1' must be a mapping, not '4'"),
    ("name: tiny", "name: [tiny]", "1:7", "'name' must be text"),
    ("name: tiny", 'name: ""', "1:7", "'name' must not be empty"),
    ("name: tiny", "name:", "1:1", "'name' must be text, not empty"),
    ("tier: spine", "tier: spin", "13:25", "must be leaf or spine or core, not 'spin' (did you mean spine?)"),
    ("store-and-forward", "store-n-forward", "3:12", "(did you mean store-and-forward?)"),
    # units
    ("rate: 100Gbps, length: 50cm", "rate: 100, length: 50cm", "15:40", "100 is not a rate"),
    ("rate: 100Gbps, length: 50cm", "rate: 100, length: 50cm", "15:40", "(did you mean 100Gbps?)"),
    ("rate: 100Gbps, length: 50cm", "rate: 100 gbit, length: 50cm", "15:40", "(did you mean 100Gbps?)"),
    ("rate: 100Gbps, length: 50cm", "rate: 12GB, length: 50cm", "15:40", "(did you mean 12GBps?)"),
    ("rate: 100Gbps, length: 50cm", "rate: fast, length: 50cm", "15:40", "'fast' is not a rate"),
    ("rate: 100Gbps, length: 50cm", "rate: 0Gbps, length: 50cm", "15:40", "must be more than zero"),
    ("length: 50cm", "length: 3", "15:57", "3 is not a length: write the unit, as 3m, 50cm or 2km (did you mean 3m?)"),
    ("length: 50cm", "length: 3 metres", "15:57", "(did you mean 3m?)"),
    ("0.4us", "400", "4:17", "400 is not a time: write the unit, as 130ns, 1.5us, 2ms or 1s (did you mean 400ns?)"),
    ("mtu: 2048B", "mtu: 2048", "2:6", "(did you mean 2048B?)"),
    ("mtu: 2048B", "mtu: 9000B", "2:6", "an MTU of 9000 bytes does not exist: it is one of 256B"),
    # references
    ('{from: "n*.hca1", to: leaf1,', '{from: "n*.hca1", to: lea1,', "15:27", "no 'lea1' to plug"),
    ('{from: "n*.hca1", to: leaf1,', '{from: "n*.hca1", to: lea1,', "15:27", "(did you mean leaf1?)"),
    ('{from: "n*.hca1", to: leaf1,', '{from: "n*.hba1", to: leaf1,', "15:12", "(did you mean n*.hca1?)"),
    ('from: "n*.hca1"', "from: n7.hca1", "15:12", "there is no host n7: hosts are n0 to n1"),
    ('from: "n*.hca1"', 'from: "n*.hca3"', "15:12", "hosts have hca1 to hca2, not hca3"),
    ('"n*.hca1", to: leaf1', '"n0.hca1", to: n1.hca1', "15:27", "n1.hca1 is an HCA too"),
    ("from: top, to: leaf1", "from: leaf1, to: leaf1", "17:23", "a cable from leaf1 to itself"),
    ("length: 50cm}", "length: 50cm, count: 2}", "15:70", "an HCA has one port"),
    ("  gpus: 2", "  gpus: 3\n  gpus_per_hca: 2", "8:17", "3 GPUs cannot share HCAs 2 at a time"),
    ("  top:", "  9top:", "13:3", "'9top' is not a switch name"),
    # duplicates
    ("  leaf2: {ports: 4, tier: leaf}", "  leaf1: {ports: 4, tier: leaf}", "12:3", "duplicate key"),
    ('to: "n*.hca2"', 'to: "n*.hca1"', "16:23", "n0.hca1 already has a cable (line 15)"),
    # ports and reachability
    ("{ports: 4, tier: leaf}", "{ports: 2, tier: leaf}", "18:5", "leaf2 has 2 ports and all are taken"),
    (
        "  count: 2",
        "  count: 5",
        "15:5",
        "leaf1 has 4 ports and all are taken: no port is left for this cable (n4.hca1",
    ),
    ("  - {from: top, to: leaf2, rate: 200Gbps, length: 10m}\n", "", "12:3", "leaf2 is not connected to leaf1"),
    (
        '  - {from: leaf2, to: "n*.hca2", rate: 100Gbps, length: 3m}\n',
        "",
        "14:1",
        "n0.hca2 has no cable (nor has one other",
    ),
    # YAML itself
    ("{ports: 4}", "{ports: 4", "12:8", "expected ',' or '}'"),
    ("mtu: 2048B", "\tmtu: 2048B", "2:1", "cannot start any token"),
]


@pytest.mark.parametrize(("old", "new", "position", "says"), MISTAKES)
def test_every_mistake_is_reported_where_it_is(written: Path, old: str, new: str, position: str, says: str) -> None:
    assert GOOD.count(old) >= 1
    written.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as refused:
        load_topology(str(written))
    message = str(refused.value)
    assert message.startswith(f"{written}:{position}: "), message
    assert says in message
    assert "\n" not in message


def test_all_mistakes_of_a_file_can_be_listed_in_order(written: Path) -> None:
    written.write_text(GOOD.replace("length: 3m", "length: 3").replace("mtu: 2048B", "mut: 2048B"))
    found = check_fabric_file(str(written))
    assert [(problem.line, problem.column) for problem in found] == [(2, 1), (16, 57)]
    with pytest.raises(ConfigError, match=r"unknown key 'mut' .*\(and 1 more\)"):
        load_topology(str(written))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "1:1: the file is empty"),
        (b"- a\n- b\n", "1:1: the file is not a mapping"),
        (b"just text", "not a mapping"),
        (b"\xff\xfe\x00bad", "not a text file in UTF-8"),
        (b"name: a\x00b", "1:8: "),
        (b"1: x\n", "1:1: "),
        (b"&a name: *b\n", "undefined alias"),
        (b"name: " + b"[" * 20 + b"]" * 20, "nested deeper"),
    ],
)
def test_what_is_no_fabric_file_at_all(written: Path, content: bytes, says: str) -> None:
    written.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        load_topology(str(written))
    assert str(refused.value).startswith(str(written))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.yaml: no such file"):
        load_topology(str(tmp_path / "missing.yaml"))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_topology(f"{tmp_path}/")
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(ConfigError, match="larger than"):
        load_topology(str(big))


def test_values_from_a_merge_key_have_the_position_of_where_they_are_used(written: Path) -> None:
    merged = GOOD.replace("  leaf1: {ports: 4}", "  leaf1: &leaf {ports: 4}").replace(
        "  leaf2: {ports: 4, tier: leaf}", "  leaf2: {<<: *leaf, tier: leef}"
    )
    written.write_text(merged)
    with pytest.raises(ConfigError, match=r":12:\d+: 'tier' must be leaf"):
        load_topology(str(written))
    written.write_text(merged.replace("leef", "leaf"))
    assert load_topology(str(written)).nodes["leaf2"].radix == 4
