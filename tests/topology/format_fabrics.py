"""Fabrics for the tests of file formats: random ones by the builder, and what the builder would never make."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fauxrdma.topology.building import TopologyBuilder
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

PLAIN_NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
ODD_NAMES = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cn", "Co"]),
    min_size=1,
    max_size=20,
) | st.sampled_from(
    ["MF0;sw-1:MQM8790/U1", 'a "b" c', "x--y-->", "n0", "&lt;", "n1.hca1x", "# c", "null", "]]>", "\\", "é"]
)
RATES = st.sampled_from([10, 56, 100, 200, 400, 800, 0.1, 25.5]).map(Rate.gbps) | st.integers(1, 10**12).map(Rate)
LENGTHS = st.sampled_from([0.0, 0.5, 3.0, 20.0, 1500.0]) | st.integers(1, 10**5).map(lambda mm: mm / 1000)
SHAPES = st.builds(
    HostShape,
    gpus=st.sampled_from([4, 8]),
    gpus_per_hca=st.sampled_from([1, 2, 4]),
    storage_hcas=st.integers(0, 2),
    gpus_per_pcie_switch=st.integers(1, 4),
    pcie_rate=st.sampled_from([Rate.gbps(252), Rate.gbps(504), Rate(7)]),
    gpudirect=st.booleans(),
)
NVLINK = st.sampled_from([(None, 0), (Rate.gbps(3600), 4), (Rate.gbps(2400), 6)])


@st.composite
def built_fabrics(draw: Any, names: st.SearchStrategy[str] = PLAIN_NAMES) -> Topology:
    """Hosts of any shape on a few leaves, a switch above, parallel cables, rates and lengths of all kinds."""
    shape: HostShape = draw(SHAPES)
    nvlink_rate, nvswitches = draw(NVLINK)
    shape = HostShape(**{**_fields(shape), "nvlink_rate": nvlink_rate, "nvswitches": nvswitches})
    hosts = draw(st.integers(1, 3))
    leaves = draw(st.lists(names.filter(lambda name: not name.startswith("n")), min_size=1, max_size=3, unique=True))
    builder = TopologyBuilder(shape)
    for leaf in leaves:
        builder.add_switch(leaf, draw(st.integers(0, 2)), 64)
    builder.add_switch("above", draw(st.integers(0, 2)), 64)
    cables: list[tuple[str, str]] = [(leaf, "above") for leaf in leaves for _ in range(draw(st.integers(1, 3)))]
    for host in range(hosts):
        builder.add_host(host)
        cables += [(f"n{host}.hca{i}", draw(st.sampled_from(leaves))) for i in range(1, shape.hcas + 1)]
    for a, b in draw(st.permutations(cables)):
        ends = (a, b) if draw(st.booleans()) else (b, a)
        builder.connect(*ends, draw(RATES), draw(LENGTHS))
    return builder.build(
        name=draw(names),
        description=draw(st.sampled_from(["", "text", 'with "quotes", -- and <tags>', "zwei Zeilen: ä"])),
        hosts=hosts,
        switch_latency_ns=draw(st.integers(0, 10**6)),
        switching=draw(st.sampled_from(["cut-through", "store-and-forward"])),
        mtu=draw(st.sampled_from([256, 4096])),
    )


def _fields(shape: HostShape) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__dataclass_fields__}


@st.composite
def strange_fabrics(draw: Any) -> Topology:
    """Consistent topologies that no builder makes: shuffled order, gaps between ports, links called otherwise, other
    insides in some hosts, cables of other kinds, odd names, fewer GPUs in use."""
    data = draw(built_fabrics(ODD_NAMES)).to_dict()
    links = data["links"]
    for link in links:
        if draw(st.integers(0, 9)) == 0:
            link["name"] = f"{draw(ODD_NAMES)} {link['id']}"
        back = links[link["reverse"]]
        if link["kind"] == "cable" and link["id"] < link["reverse"] and draw(st.booleans()):
            for side in ("src", "dst"):
                if ".hca" not in link[side]:
                    _replug(links, link, back, side, draw(st.integers(1, 64)))
        if link["kind"] == "pcie" and link["id"] < link["reverse"] and draw(st.integers(0, 19)) == 0:
            link["rate_bps"] = back["rate_bps"] = 12345
        if draw(st.integers(0, 19)) == 0:
            back["length_m"] = 7.25
    order = draw(st.permutations(range(len(links))))
    place = {old: new for new, old in enumerate(order)}
    data["links"] = [{**links[old], "id": place[old], "reverse": place[links[old]["reverse"]]} for old in order]
    data["nodes"] = draw(st.permutations(data["nodes"]))
    for node in data["nodes"]:
        if node["kind"] == "switch" and draw(st.integers(0, 4)) == 0:
            node.update(radix=None, tier=draw(st.integers(0, 5)))
        if draw(st.integers(0, 19)) == 0:
            node["index"] = 77
    data["active_gpus"] = draw(st.integers(1, data["shape"]["gpus"]))
    return Topology.from_dict(data)


def _replug(links: list[dict[str, Any]], link: dict[str, Any], back: dict[str, Any], side: str, port: int) -> None:
    name = link[side]
    if all(other["src"] != name or other["src_port"] != port for other in links):
        link[f"{side}_port"] = port
        back[f"{'dst' if side == 'src' else 'src'}_port"] = port
