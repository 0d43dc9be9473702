"""`fauxrdma traffic`: tables, JSON that is the same from run to run, files of flows, deadlock and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SWITCH = "single-switch,storage_hcas=0,radix=80"
CIRCLE = ["ring,switches=5", "--nodes", "10", "--pattern", "ring:2", "--size", "16M"]
PFC = ["--transport", "rocev2", "--congestion-control", "none", "--buffer", "2MB"]


def test_an_incast_as_tables(cli: Any) -> None:
    result = cli("traffic", SWITCH, "--pattern", "incast:4", "--size", "1M", "--top", "3")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"incast:4 on {SWITCH}: infiniband (credits), routing minhop, seed 0,")
    lines = result.stdout.splitlines()
    assert " ".join(lines[2].split()) == "flow from to size prio start rate took sent again dropped CNPs restarts"
    assert "3 of 4 flows are shown, the slowest: --top 4 or --format json shows all" in lines
    assert lines[-1].startswith("4 of 4 flows complete after")
    assert lines[-1].endswith("nothing dropped")


def test_json_has_all_and_is_the_same_from_run_to_run(cli: Any) -> None:
    command = ["traffic", SWITCH, "--pattern", "incast:8", *PFC[:2], "--buffer", "2MB", "--format", "json"]
    command += ["--storm", "n3.hca1@20us-60us"]
    first, again, other = (cli(*command, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout != other.stdout
    told = json.loads(first.stdout)
    assert (told["flow_control"], told["congestion_control"], told["dcqcn"]) == ("pfc", "dcqcn", "paper")
    assert (told["deadlock"], told["storms"]) == ([], ["n3.hca1@20us-60us"])
    assert len(told["flows"]) == 8
    assert {flow["dst"] for flow in told["flows"]} == {"n0.hca1"}
    assert all(flow["rate_bps"] == pytest.approx((1 << 20) * 8e9 / flow["completion_ns"]) for flow in told["flows"])
    ports = {port["link"]: port for port in told["ports"]}
    assert len(ports) == 18
    # What one end of a cable sends, the other receives.
    assert ports["n3.hca1->leaf1"]["pauses_received"] == ports["leaf1->n3.hca1"]["pauses_sent"] > 0
    assert ports["n3.hca1->leaf1"]["stalled_ns"] > 0
    assert ports["leaf1->n0.hca1"]["marked"] > 0
    assert told["summary"]["pauses"] == sum(port["pauses_sent"] for port in told["ports"])
    assert told["summary"]["notifications"] == sum(flow["notifications"] for flow in told["flows"]) > 0


@pytest.mark.parametrize("transport", [[], PFC], ids=["infiniband", "rocev2"])
def test_a_deadlock_is_named_and_exits_4(cli: Any, transport: list[str]) -> None:
    result = cli("traffic", *CIRCLE, *transport, "--format", "json")
    assert result.returncode == 4
    told = json.loads(result.stdout)
    circle = [f"leaf{n}->leaf{n % 5 + 1}" for n in range(1, 6)]
    assert told["deadlock"] == circle
    assert told["summary"]["complete"] == 0
    error = result.stderr.splitlines()[-1]
    assert error.startswith("fauxrdma: error: deadlock at ")
    assert error.endswith(" -> ".join([*circle, circle[0]]))


@pytest.mark.parametrize("engine", ["dfsssp", "updn:roots=leaf1"])
def test_routes_without_a_credit_loop_do_not_deadlock(cli: Any, engine: str) -> None:
    result = cli("traffic", *CIRCLE, "--routing", engine, "--format", "json")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["summary"]["complete"] == 10
    assert (len({flow["priority"] for flow in told["flows"]}) > 1) is (engine == "dfsssp")


def test_flows_of_a_file_and_the_victim(cli: Any) -> None:
    fabric = str(EXAMPLES / "fabrics" / "roce-two-tier.yaml")
    rates = []
    for name in ("victim.csv", "victim.yaml"):
        result = cli(
            "traffic", fabric, "--flows", str(EXAMPLES / "traffic" / name), *PFC[2:], "--format", "json",
            "--trace", "events.jsonl",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        rates.append(json.loads(result.stdout)["flows"][3]["rate_bps"])
    together, apart = rates
    assert apart > 1.6 * together
    events = [json.loads(line) for line in (cli.directory / "events.jsonl").read_text().splitlines()]
    assert {"start", "pause", "xon", "complete"} <= {event["what"] for event in events}
    assert events[0] == {"ns": 0.0, "what": "start", "who": "flow 0", "amount": float(4 << 20)}


def test_what_is_not_complete_in_time(cli: Any) -> None:
    result = cli("traffic", SWITCH, "--size", "8M", "--limit", "100us")
    assert result.returncode == 1
    assert result.stderr.strip() == "fauxrdma: 7 of 7 flows were not complete after 100us: raise --limit"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pattern", "incats"], "did you mean incast?"),
        (["--flow-control", "pfc"], "infiniband has no flow control pfc: it can have credits"),
        (["--transport", "rocev2", "--congestion-control", "tcp"], "it can have dcqcn or none"),
        (["--transport", "rocev1", "--congestion-control", "dcqcn"], "rocev1 has no congestion control dcqcn"),
        (["--transport", "rocev2", "--priority", "8"], "rocev2 has 0 to 7"),
        (["--dcqcn", "papers"], "paper, firmware, hpcc"),
        (["--weight", "3"], "write PRIORITY=WEIGHT"),
        (["--storm", "n9.hca1"], "has no HCA called 'n9.hca1'"),
        (["--flows", "none.csv"], "none.csv: no such file"),
    ],
)
def test_what_cannot_be(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert main(["traffic", "single-switch", *arguments]) == 2
    assert words in capsys.readouterr().err
