"""Transport and routing of presets and of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.routing.engines import ENGINES
from fauxrdma.topology.formats.registry import write_fabric
from fauxrdma.topology.graph import INFINIBAND, ROUTING_ENGINES, STORE_AND_FORWARD, Topology
from fauxrdma.topology.loading import load_topology, over_transport
from fauxrdma.topology.presets import PRESETS


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_comes_over_ethernet(name: str) -> None:
    usual, ethernet = load_topology(name), load_topology(f"{name},transport=rocev2")
    assert (usual.transport, usual.routing) == ("infiniband", None)
    assert (ethernet.transport, ethernet.switching, ethernet.switch_latency_ns) == ("rocev2", STORE_AND_FORWARD, 400)
    assert ethernet.links == usual.links
    assert Topology.from_dict(ethernet.to_dict()) == ethernet


def test_a_preset_names_its_routing() -> None:
    assert load_topology("fat-tree,routing=updn").routing == "updn"
    assert load_topology("fat-tree,transport=rocev2,routing=spray").routing == "spray"
    with pytest.raises(ConfigError, match=r"routing 'updn' is not for rocev2: it is one of ecmp, spray, adaptive"):
        load_topology("fat-tree,transport=rocev2,routing=updn")
    with pytest.raises(
        ConfigError, match=r"'transport' must be one of infiniband, rocev2, rocev1, iwarp \(did you mean rocev2\?\)"
    ):
        load_topology("fat-tree,transport=roce")


def test_the_subnet_manager_knows_every_engine_of_infiniband() -> None:
    assert set(ROUTING_ENGINES[INFINIBAND]) <= set(ENGINES)


def test_a_topology_of_no_transport_is_refused() -> None:
    data = load_topology("single-switch").to_dict()
    with pytest.raises(
        ConfigError, match="transport must be one of infiniband, rocev2, rocev1, iwarp; not 'token-ring'"
    ):
        Topology.from_dict({**data, "transport": "token-ring"})


@pytest.mark.parametrize("transport", list(ROUTING_ENGINES))
def test_presets_and_files_take_every_transport(transport: str, tmp_path: Path) -> None:
    preset = load_topology(f"fat-tree,transport={transport}")
    file = tmp_path / "fabric.yaml"
    file.write_text(write_fabric(preset, "yaml"))
    assert load_topology(str(file)).transport == preset.transport == transport
    assert over_transport("fat-tree", transport) in ("fat-tree", f"fat-tree,transport={transport}")


def test_nobody_sprays_tcp() -> None:
    with pytest.raises(ConfigError, match="routing 'spray' is not for iwarp: it is one of ecmp, adaptive"):
        load_topology("fat-tree,transport=iwarp,routing=spray")
