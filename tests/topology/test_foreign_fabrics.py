"""Files of other tools: what their fabrics become, and what is assumed where they say nothing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.registry import FORMATS, foreign_format, read_fabric, write_fabric
from fauxrdma.topology.formats.source import Source
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.summary import summarise
from fauxrdma.units import Rate

FILES = Path(__file__).parent / "foreign_files"


def read(name: str, nodes: int | None = None) -> tuple[Topology, list[str]]:
    found = read_fabric(str(FILES / name), nodes)
    return found.topology, found.remarks


@pytest.mark.parametrize(
    ("name", "format_name", "hosts", "hcas", "switches", "trunks"),
    [
        ("ibsim-two-switches.txt", "ibnetdiscover", 4, 4, 2, 2),  # as ibnetdiscover of infiniband-diags 44 printed it
        ("cluster-edr.txt", "ibnetdiscover", 16, 16, 4, 12),
        ("voltaire-grouped.txt", "ibnetdiscover", 3, 3, 2, 2),  # the grouped form of its manual page
        ("nccl-h100-vm.xml", "nccl", 2, 16, 1, 0),
        ("nccl-h100-rails.xml", "nccl", 2, 18, 10, 18),
        ("clos.clab.yml", "containerlab", 3, 3, 5, 6),
        ("networkx.graphml", "graphml", 3, 3, 2, 1),
    ],
)
def test_counts(name: str, format_name: str, hosts: int, hcas: int, switches: int, trunks: int) -> None:
    found = foreign_format(str(FILES / name))
    assert found is not None
    assert found.name == format_name
    topology, _ = read(name)
    summary = summarise(topology)
    assert (summary.hosts, summary.hcas, summary.switches, summary.switch_cables) == (hosts, hcas, switches, trunks)
    assert load_topology(str(FILES / name)) == topology


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.name)
@pytest.mark.parametrize("to", FORMATS)
def test_what_was_imported_can_be_exported_and_read_back(path: Path, to: str) -> None:
    topology = read_fabric(str(path)).topology
    assert FORMATS[to].read(Source("again", write_fabric(topology, to)), None).topology == topology


def test_a_cluster_by_ibnetdiscover() -> None:
    topology, remarks = read("cluster-edr.txt")
    assert [(s.name, s.tier, s.radix) for s in topology.switches()] == [
        ("ib-leaf1", 0, 36), ("ib-leaf2", 0, 36), ("spine1", 1, 37), ("spine2", 1, 37),
    ]  # fmt: skip
    assert Counter(link.rate for link in topology.links if link.kind == "cable" and link.id < link.reverse) == {
        Rate.gbps(100): 27, Rate.gbps(56): 1,
    }  # fmt: skip
    assert [topology.fabric_link(topology.hca(host, 1)).dst for host in (0, 7, 8)] == ["ib-leaf1"] * 2 + ["ib-leaf2"]
    assert [(k.src_port, k.dst, k.dst_port) for k in topology.links_from("ib-leaf2") if k.dst == "spine2"] == [
        (23, "spine2", 4), (24, "spine2", 5), (25, "spine2", 6),
    ]  # fmt: skip
    assert remarks[0] == "left out, since they are no hosts: Mellanox Technologies Aggregation Node"
    assert remarks[1].startswith("hosts: n0 = node001, n1 = node002")
    assert remarks[2] == (
        "left out, since most hosts have 1 cabled HCAs: gpu01 (2 HCAs), gpu02 (2 HCAs), gpu03 (2 HCAs), gpu04 (2 HCAs)"
    )


def test_hosts_that_nccl_found() -> None:
    topology, remarks = read("nccl-h100-rails.xml", 4)
    shape = topology.shape
    assert (shape.gpus, shape.gpus_per_hca, shape.storage_hcas, shape.gpus_per_pcie_switch) == (8, 1, 1, 1)
    assert (shape.nvlink_rate, shape.nvswitches, shape.pcie_rate) == (Rate.gbps(18 * 200), 4, Rate.gbps(504))
    assert topology.hosts == 4
    assert {topology.fabric_link(topology.hca(host, 3)).dst for host in range(4)} == {"plane0-rail2"}
    assert topology.fabric_link(topology.hca(0, 3)).rate == Rate.gbps(400)
    assert topology.fabric_link(topology.hca(0, 9)).rate == Rate.gbps(200)
    assert remarks == [
        "the file describes one host: 4 such hosts were made",
        "the file describes no switches: 9 leaves were made up for its NICs",
    ]
    virtual, _ = read("nccl-h100-vm.xml")
    assert (virtual.shape.pcie_rate, virtual.shape.storage_hcas) == (Rate.gbps(252), 0)  # widths of 0 say nothing


def test_one_host_for_nccl_is_what_nccl_writes() -> None:
    from fauxrdma.topology.formats.nccl_xml import write_nccl

    topology = load_topology("seed-rail8:ndr,nvlink=on", 3)
    text = write_nccl(topology, 1)
    assert "fauxrdma" not in text
    assert re.findall(r'rail="(\d)"', text) == [str(rail) for rail in range(8)]
    assert text.count("<gpu ") == 8
    assert text.count('rank="8"') == 1
    assert all(len(value) < 255 for value in re.findall('"([^"]*)"', text))  # NCCL's MAX_STR_LEN
    found = FORMATS["nccl"].read(Source("host", text), 3).topology
    assert found.shape == topology.shape


def test_a_lab_of_containerlab() -> None:
    topology, _ = read("clos.clab.yml")
    (last,) = (link for link in topology.links_from("leaf3") if link.dst == "spine2")
    assert (last.src_port, last.dst_port, last.rate, last.length_m) == (50, 3, Rate.gbps(400), 50.0)
    assert topology.nodes["leaf3"].radix == 50
    assert {s.name: s.tier for s in topology.switches()} == {
        "leaf1": 0, "leaf2": 0, "leaf3": 0, "spine1": 1, "spine2": 1,
    }  # fmt: skip


def test_a_graph_of_networkx() -> None:
    topology, remarks = read("networkx.graphml")
    assert remarks == ["hosts: n0 = 0, n1 = 1, n2 = 10"]  # 10 comes after 1, not before
    assert topology.fabric_link(topology.hca(0, 1)).rate == Rate.gbps(100)
    assert topology.fabric_link(topology.hca(1, 1)).rate == Rate.gbps(200)  # not said
    assert [link.rate for link in topology.links_from("a") if link.dst == "b"] == [Rate.gbps(400)]


def test_without_its_notes_our_own_file_is_one_of_others() -> None:
    topology = load_topology("seed-rail8", 2)
    text = "\n".join(line for line in write_fabric(topology, "ibnetdiscover").splitlines() if "fauxrdma:" not in line)
    found = FORMATS["ibnetdiscover"].read(Source("file", text), None).topology
    assert found.hosts == 2
    assert [s.name for s in found.switches()] == [s.name for s in topology.switches()]
    for hca in topology.hcas():
        assert found.fabric_link(found.nodes[hca.name]).dst_port == topology.fabric_link(hca).dst_port
    assert found.shape.gpus == 9  # nothing says which HCA serves storage


def test_what_is_changed_in_our_own_file_is_changed() -> None:
    text = write_fabric(load_topology("fat-tree", 4), "ibnetdiscover")
    slower = FORMATS["ibnetdiscover"].read(Source("file", text.replace("4xHDR", "4xEDR")), None).topology
    assert {link.rate for link in slower.links if link.kind == "cable"} == {Rate.gbps(100)}
    renamed = FORMATS["ibnetdiscover"].read(Source("file", text.replace('"spine1"', '"top"')), None).topology
    assert {s.name for s in renamed.switches()} == {"leaf1", "leaf2", "top"}


def test_guids_are_those_of_the_subnet_manager() -> None:
    from fauxrdma.fabric.subnet import SubnetManager
    from fauxrdma.topology.formats.ibnetdiscover import guid_of

    topology = load_topology("seed-two-switch", 2)
    manager = SubnetManager(topology)
    text = write_fabric(topology, "ibnetdiscover")
    for lid in manager.lids:
        node = manager.node(lid)
        assert guid_of(node.kind, lid) == manager.guid(lid)
        assert f'-{manager.guid(lid):016x}"' in text
    assert f'"leaf1" base port 0 lid {manager.lid("leaf1")} lmc 0' in text


HEAD = 'Switch\t4 "S-1"\t\t# "a" base port 0 lid 1 lmc 0\n'


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("ibnetdiscover", "", ":1:1: there is no Switch and no Ca in it"),
        ("ibnetdiscover", HEAD + "[1 S-2\n", ":2:1: a port is written `[1] \"S-...\"[2]`, not '[1 S-2'"),
        ("ibnetdiscover", HEAD + '  [1]\t"S-2"[1]\n', ":2:3: this cable ends at \"S-2\""),
        ("ibnetdiscover", HEAD + HEAD, ":2:1: \"S-1\" was described before, in line 1"),
        ("ibnetdiscover", '[1] "S-1"[1]\n', ":1:1: a port comes before the first Switch or Ca line"),
        ("ibnetdiscover", HEAD + "hello\n", ":2:1: expected `Switch 40"),
        ("ibnetdiscover", HEAD + '[1] "S-1"[2]\n[2] "S-1"[3]\n', ":3:1: port 2 of \"S-1\" cannot be cabled to port 3"),
        ("ibnetdiscover", HEAD + "# fauxrdma: {nonsense\n", ":2:14: in a fauxrdma note, JSON was expected"),
        ("ibnetdiscover", "# fauxrdma: [1]\n" + HEAD, ":1:12: a fauxrdma note holds a JSON object"),
        ("ibnetdiscover", '# fauxrdma: {"fabric":7}\n' + HEAD, ":1:12: 'fabric' in a fauxrdma note must be an object"),
        ("ibnetdiscover", '# fauxrdma: {"fabric":{}}\n' + HEAD, ": this is not a topology"),
        ("ibnetdiscover", HEAD, ": no host is cabled to a switch in it"),
        ("nccl", "<system>", ":1:9: not well-formed XML: no element found"),
        ("nccl", "<systems/>", ":1:1: the outermost element is <systems>, <system> was expected"),
        ("nccl", "<system/>", ":1:1: <system> holds no <cpu>"),
        ("nccl", "<system>\n <cpu/></system>", ":2:2: this host has no <net>"),
        ("nccl", '<system><cpu><nic>\n<net speed="fast"/></nic></cpu></system>', ":2:1: 'speed' of <net> must be"),
        ("nccl", "<system><cpu><nic><net/></nic></cpu></system>", ":1:19: <net> needs the attribute 'speed'"),
        ("nccl", '<!DOCTYPE a [<!ENTITY b "c">]><system/>', ":1:13: a document type (<!DOCTYPE>) is not read"),
        ("graphml", "<graphml/>", ":1:1: <graphml> holds no <graph>"),
        ("graphml", "<graphml><graph>\n<node/></graph></graphml>", ":2:1: <node> needs the attribute 'id'"),
        ("graphml", '<graphml><graph><node id="a"/>\n<node id="a"/></graph></graphml>', ":2:1: there are two nodes"),
        (
            "graphml", '<graphml><graph><node id="a"/>\n <edge source="a" target="b"/></graph></graphml>',
            ":2:2: this edge ends at 'b', which is no <node>",
        ),
        ("graphml", '<graphml><graph><data key="x"/></graph></graphml>', ":1:17: there is no <key> with the id 'x'"),
        (
            "graphml",
            '<graphml><key id="k" attr.name="n" attr.type="int"/><graph>\n<data key="k">many</data></graph></graphml>',
            ":2:1: 'n' must be a int, not 'many'",
        ),
        ("graphml", "<graphml><graph>" + "<a>" * 99, "elements are nested deeper than 64"),
        ("containerlab", "name: x\n", ":1:1: 'topology' is missing in the file"),
        ("containerlab", "topology:\n  nodes: []\n", ":2:10: 'nodes' must be a mapping"),
        ("containerlab", "topology:\n  nodes: {a: }\n  links:\n    - endpoints: [a:e1]\n", ":4:18: a link has two"),
        (
            "containerlab", "topology:\n  nodes: {a: }\n  links:\n    - endpoints: [a:e1, b:e1]\n",
            ":4:25: there is no node 'b' under 'nodes'",
        ),
        (
            "containerlab", "topology:\n  nodes: {sw1: , h1: }\n  links:\n    - {endpoints: [h1:e1, sw1:e1], rate: 5}\n"
            "    - {endpoints: [sw1:e1, sw1:e2]}\n",
            ":5:7: a link from sw1 to itself",
        ),
        (
            "containerlab",
            "topology:\n  nodes: {sw1: , host1: }\n  links:\n    - {endpoints: [host1:e1, sw1:e1], rate: fast}\n",
            ":4:7: of the link host1 to sw1: 'fast' is not a rate",
        ),
        (
            "containerlab", "topology:\n  nodes: {host1: , host2: }\n  links:\n    - endpoints: [host1:e1, host2:e1]\n",
            ":4:7: this link joins host1 and host2, which look like hosts",
        ),
        ("containerlab", "topology: {a: 1, a: 2}", ":1:18: "),
        ("containerlab", "topology: [", "not valid YAML"),
        ("containerlab", "", ":1:1: the file is empty"),
    ],
)  # fmt: skip
def test_mistakes_are_shown_where_they_are(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        FORMATS[name].read(Source("file", text), None)
    assert str(refused.value).startswith("file:")
    assert says in str(refused.value)


@pytest.mark.parametrize("name", FORMATS)
def test_a_mutilated_file_is_read_or_refused_with_its_name(name: str) -> None:
    """Every line taken out, doubled, cut, and spoilt once: a fabric or one ConfigError, nothing else."""
    lines = write_fabric(load_topology("single-switch,gpus=2", 1), name).split("\n")
    outcomes: Counter[str] = Counter()
    for at, line in enumerate(lines):
        for changed in (
            [],
            [line, line],
            [line[: len(line) // 2]],
            [line.replace('"', "7", 1)],
            [line.replace(":", "{")],
        ):
            try:
                FORMATS[name].read(Source("file", "\n".join([*lines[:at], *changed, *lines[at + 1 :]])), None)
                outcomes["read"] += 1
            except ConfigError as error:
                outcomes["refused" if str(error).startswith("file:") else f"without its name: {error}"] += 1
    assert set(outcomes) == {"read", "refused"}


def test_what_is_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing: no such file"):
        read_fabric(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="Is a directory"):
        read_fabric(str(tmp_path))
    binary = tmp_path / "binary"
    binary.write_bytes(b"name: a\nb\xff")
    with pytest.raises(ConfigError, match=r"binary:2:2: not a text file in UTF-8"):
        read_fabric(str(binary))
    with pytest.raises(ConfigError, match="unknown format 'graphl': did you mean 'graphml'"):
        read_fabric(str(FILES / "clos.clab.yml"), format_name="graphl")
