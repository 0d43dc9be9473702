"""Drawings: what they show, that they are well-formed, and that a thousand hosts stay readable."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from fauxrdma.topology.drawing import draw
from fauxrdma.topology.drawing.mermaid import mermaid
from fauxrdma.topology.drawing.picture import MOST_BOXES, picture_of
from fauxrdma.topology.drawing.svg import svg
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.rails import planes_of, rails_of

SVG = "{http://www.w3.org/2000/svg}"
BIG = [("fat-tree,radix=144", 1024), ("superpod", 256)]


def fabrics() -> list[Topology]:
    return [load_topology(preset) for preset in PRESETS]


def renamed(topology: Topology, old: str, new: str) -> Topology:
    data = topology.to_dict()
    for record in (*data["nodes"], *data["links"]):
        record.update({key: new for key, value in record.items() if value == old})
    return Topology.from_dict(data)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_picture_has_every_switch_host_and_cable_once(preset: str) -> None:
    topology = load_topology(preset, None)
    picture = picture_of(topology)
    members = [member for box in picture.boxes for member in box.members]
    assert sorted(members) == sorted([s.name for s in topology.switches()] + [f"n{h}" for h in range(topology.hosts)])
    assert sorted(index for _, own in picture.rows for index in own) == list(range(len(picture.boxes)))
    cables = sum(link.kind == "cable" for link in topology.links) // 2
    assert sum(bundle.cables for bundle in picture.bundles) == cables
    assert picture.rows[-1][0] == "hosts"


def test_hosts_plugged_in_alike_are_one_box_and_parallel_cables_one_line() -> None:
    picture = picture_of(load_topology("seed-rail8", 4))
    assert [box.label for box in picture.boxes if box.is_hosts] == ["n0-n3"]
    trunks = [b for b in picture.bundles if not picture.boxes[b.b].is_hosts]
    assert len(trunks) == 16
    assert {bundle.text() for bundle in trunks} == {"5 x 200 Gb/s"}


@pytest.mark.parametrize("preset", PRESETS)
def test_the_svg_is_well_formed_and_tells_everything_on_hover(preset: str) -> None:
    topology = load_topology(preset)
    root = ElementTree.fromstring(svg(topology))
    picture = picture_of(topology)
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f".//{SVG}g[@class='wire']")) == len(picture.bundles)
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert len(titles) == len(picture.bundles) + len(picture.boxes)
    assert all(titles)
    assert not re.search(r"(?:href|src|url\()", svg(topology))  # self-contained
    boxes = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") in ("switch", "hosts")]
    spans = sorted((float(r.get("y", 0)), float(r.get("x", 0)), float(r.get("width", 0))) for r in boxes)
    for (y, x, width), (next_y, next_x, _) in pairwise(spans):
        assert y != next_y or x + width <= next_x  # no box on another
    right = float(root.get("viewBox", "").split()[2])
    assert all(x >= 0 and x + width <= right for _, x, width in spans)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_mermaid_text_declares_every_box_and_joins_only_those(preset: str) -> None:
    topology = load_topology(preset)
    lines = mermaid(topology).splitlines()
    assert lines[3] == "flowchart TB"
    declared = {match.group(1) for line in lines if (match := re.match(r'^    (b\d+)[(\[]"[^"]*"[)\]]$', line))}
    joined = [match.groups() for line in lines if (match := re.match(r'^  (b\d+) ---\|"[^"]*"\| (b\d+)$', line))]
    picture = picture_of(topology)
    assert len(declared) == len(picture.boxes)
    assert len(joined) == len(picture.bundles)
    assert {end for ends in joined for end in ends} <= declared
    assert sum(line.startswith("  subgraph") for line in lines) == sum(line == "  end" for line in lines)
    assert len(lines) == 4 + len(declared) + len(joined) + 2 * len(picture.rows)


def test_names_cannot_break_out_of_a_drawing() -> None:
    odd = renamed(load_topology("seed-two-switch"), "leaf1", 'a"] --> <b>\x07&')
    ElementTree.fromstring(svg(odd))
    text = mermaid(odd)
    assert '["a#34;] --#62; #60;b#62;#7;#38;"]' in text


@pytest.mark.parametrize(("spec", "nodes"), BIG)
def test_a_thousand_hosts_are_readable(spec: str, nodes: int) -> None:
    topology = load_topology(spec, nodes)
    picture = picture_of(topology)
    assert all(len(own) <= MOST_BOXES for _, own in picture.rows)
    assert sum(len(box.members) for box in picture.boxes if box.is_hosts) == nodes
    assert len(svg(topology)) < 200_000
    assert len(mermaid(topology).splitlines()) < 500
    lines = draw(topology).splitlines()
    assert len(lines) < 170
    assert max(map(len, lines)) <= 160


def test_rails_and_planes() -> None:
    rail4 = load_topology("seed-rail4", 2)
    assert [rails_of(rail4)[f"n1.hca{i}"] for i in range(1, 9)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert "n0.hca9" not in rails_of(rail4)
    assert rails_of(load_topology("fat-tree", 4)) == {}
    assert planes_of(rail4) == {}
    dual = load_topology("dual-plane", 2)
    assert set(planes_of(dual).values()) == {0, 1}
    assert "rails    0: hca1,hca5 on leaf1" in draw(rail4)
    assert "rails" not in draw(load_topology("fat-tree", 4))
