"""The HTML report and its drawings: well-formed, self-contained, and showing the load where it was."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from fauxrdma.report.files import compare_runs
from fauxrdma.report.histogram import histogram_svg, shared_range
from fauxrdma.report.html import render_html
from fauxrdma.report.layout import lay_out
from fauxrdma.report.results import RunResult
from fauxrdma.report.topology_svg import topology_svg
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.presets.spec import parse_preset

RunMaker = Callable[..., tuple[RunResult, Topology]]
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "br", "img", "hr", "input"}


class _Strict(HTMLParser):
    """Fails on an element that is not closed, and collects what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


@pytest.fixture
def page(make_run: RunMaker) -> str:
    made = [make_run("seed-rail8", mean_ns=18_000), make_run("fat-tree", mean_ns=14_000)]
    return render_html(compare_runs([run for run, _ in made]), {run.fabric: topology for run, topology in made})


class TestPage:
    def test_it_is_well_formed_and_loads_nothing(self, page: str) -> None:
        parser = _Strict()
        parser.feed(page)
        parser.close()
        assert parser.open == []
        assert parser.loads == []
        assert "@import" not in page
        assert "url(" not in page

    def test_it_shows_verdict_table_and_both_fabrics(self, page: str) -> None:
        assert "fat-tree was" in page
        assert page.count('<svg class="topo"') == page.count('<svg class="histogram"') == 2
        assert "fabric time per step" in page
        assert "fidelity debt" in page
        assert "prefers-color-scheme: dark" in page

    def test_hostile_text_is_escaped(self, make_run: RunMaker) -> None:
        run, topology = make_run(values={"loss": "<script>alert(1)</script>"})
        run.command.append("<b>&")
        text = render_html(compare_runs([run]), {run.fabric: topology})
        assert "<script" not in text
        assert "<b>&" not in text

    def test_a_job_without_collectives_still_makes_a_page(self, make_run: RunMaker) -> None:
        run, topology = make_run(values={})
        update = {"main_all_reduce": None, "main_all_reduce_ns": [], "collectives": [], "links": [], "route": None}
        text = render_html(compare_runs([run.model_copy(update=update)]), {run.fabric: topology})
        assert 'class="histogram"' not in text


class TestDrawing:
    @pytest.mark.parametrize(
        "fabric",
        [
            *PRESETS,
            "seed-rail8,gpus_per_hca=2",
            "fat-tree,gpus_per_hca=4,gpudirect=off",
            "fat-tree,gpus_per_hca=0,storage_hcas=2",
            "rail-only,gpus_per_pcie_switch=3,nvlink=on",
        ],
    )
    @pytest.mark.parametrize("nodes", [1, 2, 8])
    def test_every_preset_draws_every_switch_and_nothing_overlaps(self, fabric: str, nodes: int) -> None:
        preset = parse_preset(fabric)
        assert preset is not None
        topology = load_topology(fabric, nodes=min(nodes, preset.max_nodes), gpus=2)
        root = ElementTree.fromstring(topology_svg(topology))
        texts = [element.text for element in root.iter(f"{SVG}text")]
        assert {switch.name for switch in topology.switches()} <= set(texts)
        layout = lay_out(topology)
        boxes = list(layout.boxes.values())
        for i, one in enumerate(boxes):
            assert one.left >= 0
            assert one.left + one.w <= layout.width + 0.01
            assert one.bottom <= layout.height
            for other in boxes[i + 1 :]:
                apart = (
                    one.left + one.w <= other.left + 0.01
                    or other.left + other.w <= one.left + 0.01
                    or one.bottom <= other.y
                    or other.bottom <= one.y
                )
                assert apart, (one, other)

    def test_memory_is_drawn_where_gpu_traffic_crosses_it(self) -> None:
        for spec, crossed in (
            ("fat-tree", False),
            ("fat-tree,gpudirect=off", True),
            ("fat-tree,gpus_per_hca=2", False),
            ("fat-tree,gpus_per_hca=4", True),  # the second pair of GPUs is behind another PCIe switch than the HCA
            ("fat-tree,gpus_per_hca=0", True),
        ):
            topology = load_topology(spec, 2)
            layout = lay_out(topology)
            assert ("n0.mem" in layout.boxes) is ("n1.mem" in layout.boxes) is crossed, spec
            assert topology_svg(topology).count(">memory<") == 2 * crossed
            assert all(f"n0.gpu{g}" in layout.boxes for g in range(8))

    def test_load_colours_the_links_that_carried_it(self, make_run: RunMaker) -> None:
        run, topology = make_run("fat-tree")
        root = ElementTree.fromstring(topology_svg(topology, run.links))
        coloured = {}
        for wire in root.iter(f"{SVG}g"):
            path, title = wire.find(f"{SVG}path"), wire.find(f"{SVG}title")
            if wire.get("class") == "wire" and path is not None and title is not None and title.text is not None:
                coloured[title.text.partition(":")[0]] = path.get("class")
        assert coloured["leaf1 - n0.hca1"] == "l3"  # 45 %
        assert coloured["leaf1 - n0.hca5"] == "l0"

    def test_unshaped_load_is_relative_to_the_busiest_link(self, make_run: RunMaker) -> None:
        run, topology = make_run("fat-tree", clock="none")
        assert 'class="l5"' in topology_svg(topology, run.links)

    def test_tooltips_name_bytes_and_use(self, make_run: RunMaker) -> None:
        run, topology = make_run("fat-tree")
        titles = re.findall(r"<title>([^<]*)</title>", topology_svg(topology, run.links))
        assert any("n0.hca1-&gt;leaf1: 1.14 MiB, 45% used" in title for title in titles)
        assert any(title.startswith("leaf1: switch, 36 ports, cut-through, 130 ns") for title in titles)

    def test_large_fabrics_show_only_hcas_in_use_and_say_what_is_left_out(self) -> None:
        topology = load_topology("fat-tree", nodes=72, gpus=2)
        layout = lay_out(topology)
        assert layout.left_out == 72 - len(layout.hosts) > 0
        hcas = [name for name in layout.boxes if topology.nodes[name].kind is NodeKind.HCA]
        assert len(hcas) == 2 * len(layout.hosts)
        assert f"and {layout.left_out} more nodes" in topology_svg(topology)


class TestHistogram:
    def test_bars_hold_every_sample(self) -> None:
        durations = [10_000 + 37 * i for i in range(200)]
        text = histogram_svg(durations, shared_range([durations]), "fabric time")
        ElementTree.fromstring(text)
        counts = [int(n) for n in re.findall(r"<title>(\d+) of 200:", text)]
        assert sum(counts) == 200

    def test_outliers_are_counted_in_the_last_bar(self) -> None:
        durations = [1000] * 500 + [10**9]
        low, high = shared_range([durations])
        assert high < 10**6
        text = histogram_svg(durations, (low, high), "fabric time")
        assert "or more" in text

    def test_equal_durations_do_not_divide_by_zero(self) -> None:
        text = histogram_svg([500, 500], shared_range([[500, 500]]), "wall time")
        assert "2 of 2" in text
        assert "nan" not in text

    @pytest.mark.parametrize("spread", [0, 10, 300, 5000])
    def test_the_labels_of_the_marks_do_not_overlap(self, spread: int) -> None:
        durations = [10_000 + spread * i // 100 for i in range(101)] + [40_000]
        root = ElementTree.fromstring(histogram_svg(durations, (9_000, 42_000), "fabric time"))
        spans = []
        for element in root.iter("text"):
            if "marked" in element.get("class", ""):
                x, width = float(element.get("x", "0")), 6.6 * len(element.text or "")
                spans.append((x - width, x) if "end" in element.get("class", "") else (x, x + width))
        assert spans
        assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
        assert min(start for start, _ in spans) >= 0
        assert max(end for _, end in spans) <= 1040
