"""Ports and islands in fabric files."""

from __future__ import annotations

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.topology.custom import load_fabric_text

FABRIC = """\
name: ports
islands: 1
hosts: {count: 2, gpus: 1}
switches:
  a: {ports: 4}
  b: {ports: 4}
cables:
  - {from: n0.hca1, to: a, rate: 100Gbps, length: 1m, to_port: 3}
  - {from: n1.hca1, to: b, rate: 100Gbps, length: 1m}
  - {from: a, to: b, rate: 100Gbps, length: 1m, count: 2}
  - {from: a, to: b, rate: 100Gbps, length: 1m, from_port: 4, to_port: 4}
"""


def test_cables_without_a_port_take_the_lowest_free_one() -> None:
    topology = load_fabric_text("file", FABRIC)
    assert [(k.src_port, k.dst, k.dst_port) for k in topology.links_from("a")] == [
        (3, "n0.hca1", 1), (1, "b", 2), (2, "b", 3), (4, "b", 4),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("to_port: 3", "to_port: 5", "file:8:64: a has ports 1 to 4, not 5"),
        ("from_port: 4", "from_port: 3", "file:11:60: a has a cable in port 3 already"),
        ("from_port: 4", "from_port: 1", "file:11:60: a has a cable in port 1 already"),
        ("to_port: 3", "from_port: 2", "file:8:66: n0.hca1 has one port for cables, port 1; not 2"),
        (
            "1m, count: 2",
            "1m, count: 2, to_port: 2",
            "file:10:68: 'to_port' is for one cable: write one entry for each",
        ),
        ("to_port: 3", "to_port: 0", "'to_port' must be at least 1, not 0"),
        ("islands: 1", "islands: 2", "file:2:10: 2 islands are meant, the cables make 1"),
        ("islands: 1", "islands: 0", "file:2:10: 'islands' must be at least 1, not 0"),
    ],
)
def test_ports_that_cannot_be_had(old: str, new: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_fabric_text("file", FABRIC.replace(old, new))
    assert says in str(refused.value)


def test_islands_that_are_meant() -> None:
    apart = "\n".join(FABRIC.replace("islands: 1", "islands: 2").splitlines()[:9])
    topology = load_fabric_text("file", apart)
    assert [len(members) for members in topology.members_of_islands()] == [1, 1]
    assert load_fabric_text("file", apart, 1).islands == 1  # the other island has no host left
    with pytest.raises(ConfigError, match="b is not connected to a"):
        load_fabric_text("file", apart.replace("islands: 2", "islands: 1"))
