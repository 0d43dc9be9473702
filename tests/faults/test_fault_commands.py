"""`events:` of fabric files, files of events, and `fauxrdma fault` in a lab that runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.cli.main import main
from fauxrdma.errors import ConfigError
from fauxrdma.lab.local import LocalLab
from fauxrdma.topology.events_file import load_events
from fauxrdma.topology.fault_events import KINDS
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.schema import EventForm

ROOT = Path(__file__).parents[2]
FABRIC = (ROOT / "examples" / "fabrics" / "two-leaf.yaml").read_text()
PAGE = (ROOT / "docs" / "faults.md").read_text()


def fabric(tmp_path: Path, event: str) -> str:
    """A fabric file whose third line from the end begins the events."""
    path = tmp_path / "fabric.yaml"
    path.write_text(f"{FABRIC}\nevents:\n  - {event}\n")
    return str(path)


@pytest.mark.parametrize(
    ("event", "column", "words"),
    [
        ("{at: 5, fault: link-down, link: n0.hca1}", 10, r"'at': 5 is not a time.*\(did you mean 5ns\?\)"),
        ("{at: 5ms, fault: link-dwon, link: n0.hca1}", 22, r"\(did you mean link-down\?\)"),
        ("{fault: link-down}", 5, "link-down needs 'link'"),
        ("{fault: link-down, link: n0.hcaa1}", 30, r"no cable 'n0.hcaa1' \(did you mean n0.hca1\?\)"),
        ("{fault: packet-loss, link: n0.hca1, los: 5%}", 41, r"unknown key 'los' \(did you mean loss\?\)"),
        ("{fault: packet-loss, link: n0.hca1, loss: 0.5}", 47, r"not a share: .*\(did you mean 50%\?\)"),
        ("{fault: degrade, link: n0.hca1}", 5, "degrade needs 'rate'"),
        ("{fault: switch-down, link: n0.hca1}", 32, "switch-down has no 'link': it takes 'switch'"),
        ("{fault: sm-restart, for: 1ms, hca: n0.hca1}", 40, "it befalls the whole fabric"),
        ("{fault: slow-gpu, gpu: n0.gpu0, factor: slow}", 45, "'factor' must be a number"),
        ("{fault: link-flap, link: n0.hca1, for: 5ms, every: 2ms, times: 3}", 56, "would not end before"),
        ("{fault: partition, groups: [[n0], [n0.hca1]]}", 32, "n0.hca1 is in two groups"),
    ],
)
def test_a_mistake_is_told_where_it_is(tmp_path: Path, event: str, column: int, words: str) -> None:
    path = fabric(tmp_path, event)
    line = len(FABRIC.splitlines()) + 3
    with pytest.raises(ConfigError, match=rf"fabric.yaml:{line}:{column}: .*{words}"):
        load_topology(path)


def test_events_of_hosts_that_are_left_out_do_not_happen(tmp_path: Path) -> None:
    path = fabric(tmp_path, "{fault: link-down, link: n1.hca1}\n  - {at: 2ms, fault: hca-down, hca: n0.hca1}")
    assert [event.target for event in load_topology(path).events] == ["n1.hca1->leaf1", "n0.hca1"]
    assert [event.at_ns for event in load_topology(path, nodes=1).with_routing("updn").events] == [2_000_000]


def test_a_file_of_events_is_for_any_fabric_that_has_what_it_names(tmp_path: Path) -> None:
    events = load_events(str(ROOT / "examples" / "flapping-cable.yml"), load_topology("fat-tree", 2))
    assert [event.kind for event in events] == ["link-flap", "latency", "bit-errors"]
    path = tmp_path / "events.yml"
    path.write_text("events:\n  - {fault: switch-down, switch: spine9}\n")
    with pytest.raises(ConfigError, match=r"events.yml:2:34: .*no switch 'spine9' \(did you mean"):
        load_events(str(path), load_topology("seed-rail8", 2))
    path.write_text("event: []\n")
    with pytest.raises(ConfigError, match=r"events.yml:1:1: unknown key 'event' \(did you mean events\?\)"):
        load_events(str(path), load_topology("seed-rail8", 2))


def test_the_form_and_the_page_have_every_kind() -> None:
    described = EventForm.model_json_schema()["properties"]["fault"]["enum"]
    assert described == list(KINDS)
    rows = dict(re.findall(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|[^|]*\|$", PAGE, flags=re.MULTILINE))
    assert {name: target.strip("` ") for name, target in rows.items()} == {k.name: k.target for k in KINDS.values()}


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as running:
        yield running


def fault(lab: LocalLab, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["fault", *words, "--lab", str(lab.directory)])
    return code, *capsys.readouterr()


def test_the_commands_of_the_page_work(lab: LocalLab, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    block = next(text for text in blocks if "fault inject" in text)
    for line in block.splitlines():
        code, _, error = fault(lab, capsys, *line.split()[2:])
        assert code == 0, (line, error)
    states = {record.kind: record.state for record in lab.faults().faults}
    assert set(states.values()) == {"over"}
    assert list(states) == ["link-down", "packet-loss", "partition", "sm-restart"]


def test_what_is_injected_is_listed_until_it_is_cleared(lab: LocalLab, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = fault(lab, capsys, "inject", "degrade", "n1.hca1", "--rate", "50Gbps", "--format", "json")
    made: dict[str, Any] = json.loads(out)
    assert (code, made["fault"]) == (0, "degrade n1.hca1 to 50 Gb/s")
    number = str(made["number"])
    listed = json.loads(fault(lab, capsys, "list", "--format", "json")[1])
    assert listed["faults"][-1]["state"] == "active"
    assert "degrade n1.hca1->leaf1 to 50 Gb/s" in fault(lab, capsys, "list")[1]
    assert json.loads(fault(lab, capsys, "clear", number, "--format", "json")[1]) == {"cleared": [int(number)]}
    code, _, error = fault(lab, capsys, "clear", number)
    assert (code, f"there is no fault {number} that is not over" in error) == (2, True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["link-dwon", "n0.hca1"], "did you mean 'link-down'?"),
        (["degrade", "n0.hca1"], "degrade needs 'rate'"),
        (["packet-loss", "n0.hca1", "--loss", "3"], "did you mean 3%?"),
        (["link-down", "n0.hca1", "n1.hca1"], "one cable, as n0.hca1, not 2 targets"),
        (["sm-restart", "n0", "--for", "1ms"], "no target"),
        (["hca-down", "n7.hca1"], "fat-tree has no HCA 'n7.hca1'"),
    ],
)
def test_what_cannot_be_injected(
    lab: LocalLab, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    code, _, error = fault(lab, capsys, "inject", *words)
    assert (code, complaint in error) == (2, True), error


def test_a_lab_that_does_not_run_is_not_found(lab: LocalLab, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fault", "list", "--lab", "fauxrdma-nowhere"]) == 2
    assert lab.directory.name in capsys.readouterr().err


def test_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fault", "kinds", "--format", "json"]) == 0
    assert [kind["fault"] for kind in json.loads(capsys.readouterr().out)] == list(KINDS)
    assert main(["fault", "kinds"]) == 0
    assert "pause-storm" in capsys.readouterr().out
