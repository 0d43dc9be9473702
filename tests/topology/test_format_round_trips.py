"""Reading back what was exported gives the same graph, whatever the graph."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from fauxrdma.errors import ConfigError
from fauxrdma.topology.formats.records import first_hosts, put_together, take_apart
from fauxrdma.topology.formats.registry import FORMATS, format_of, read_fabric
from fauxrdma.topology.formats.source import Source
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from tests.topology.format_fabrics import built_fabrics, strange_fabrics

EXACT = [name for name in FORMATS if name != "yaml"]


def there_and_back(topology: Topology, name: str) -> Topology:
    text = FORMATS[name].write(topology)
    assert format_of(text).name == name
    found = FORMATS[name].read(Source("file", text), None)
    assert found.remarks == []
    return found.topology


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("nodes", [1, 4])
def test_presets(name: str, preset: str, nodes: int) -> None:
    topology = load_topology(preset, nodes)
    assert there_and_back(topology, name) == topology


@pytest.mark.parametrize("name", FORMATS)
@given(topology=built_fabrics())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_the_builder_makes(name: str, topology: Topology) -> None:
    assert there_and_back(topology, name) == topology


@pytest.mark.parametrize("name", EXACT)
@given(topology=strange_fabrics())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_no_builder_makes(name: str, topology: Topology) -> None:
    assert there_and_back(topology, name) == topology


@given(topology=strange_fabrics())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_fabric_file_holds_it_or_says_what_it_cannot_say(topology: Topology) -> None:
    try:
        text = FORMATS["yaml"].write(topology)
    except ConfigError as error:
        refused = str(error)
    else:
        assert FORMATS["yaml"].read(Source("file", text), None).topology == topology
        return
    assert "cannot be said in a fabric file: " in refused
    assert "graphml can hold it" in refused


@given(topology=strange_fabrics())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_parts_make_the_whole(topology: Topology) -> None:
    assert put_together(take_apart(topology)) == topology


@pytest.mark.parametrize("preset", PRESETS)
def test_the_first_hosts_of_a_fabric_keep_their_cables(preset: str) -> None:
    whole, part = load_topology(preset, 4), first_hosts(load_topology(preset, 4), 2)
    assert (part.hosts, len(part.hcas())) == (2, 18)
    assert [n.name for n in part.switches()] == [n.name for n in whole.switches()]
    for hca in part.hcas():
        ours, theirs = part.fabric_link(hca), whole.fabric_link(hca)
        assert (ours.name, ours.dst, ours.dst_port) == (theirs.name, theirs.dst, theirs.dst_port)


def test_new_fields_of_the_graph_travel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = load_topology("seed-rail8", 2)
    data = topology.to_dict()
    data["weather"] = {"now": ["rain"]}
    for node in data["nodes"]:
        node["rack"] = None if node["host"] is None else f"rack-{node['host']}"
    for link in data["links"]:
        link["up"] = link["id"] % 7 != 0
        link["colour"] = {"name": "blue"} if link["id"] % 3 else None
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(Topology, "to_dict", lambda _: copy.deepcopy(data))
    monkeypatch.setattr(Topology, "from_dict", lambda given: seen.append(given) or topology)
    monkeypatch.setattr("fauxrdma.topology.formats.records._inside_by_shape", lambda _: None)
    for name in EXACT:
        FORMATS[name].read(Source("file", FORMATS[name].write(topology)), None)
        got = seen.pop()
        assert got == data, name


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_can_be_named_wherever_a_fabric_is(name: str, tmp_path: Any) -> None:
    path = tmp_path / "fabric"
    topology = load_topology("seed-rail8", 3)
    path.write_text(FORMATS[name].write(topology))
    assert load_topology(str(path)) == topology
    assert load_topology(str(path), 2).hosts == 2
    assert load_topology(str(path), 2, 4).active_gpus == 4
    assert read_fabric(str(path), format_name=name).topology == topology
    with pytest.raises(ConfigError, match="4 nodes were asked for, the file describes 3"):
        load_topology(str(path), 4)
