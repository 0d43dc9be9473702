"""`fauxrdma routes`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.loading import load_topology

ROOT = Path(__file__).parents[2]


def test_a_route_hop_by_hop(cli: Any) -> None:
    done = cli("routes", "seed-rail8", "n0.gpu0", "n1.gpu1")
    assert (done.returncode, done.stderr) == (0, "")
    first, _, heading, *rows = done.stdout.splitlines()
    assert first.startswith("n0.gpu0 to n1.gpu1: LID 1 to 11, 3 switches, 1.52 us, 198.7 Gb/s")
    assert heading.split() == ["from", "port", "to", "rate", "adds", "why"]
    assert [row.split()[0] for row in rows if row[:1] != " "] == [
        "n0.gpu0", "n0.pcie0", "n0.hca1", "leaf1", "spine1", "leaf2", "n1.hca2", "n1.pcie0",
    ]  # fmt: skip
    assert "one of 10 ports that start a shortest way to leaf2" in done.stdout


def test_a_route_between_memories(cli: Any) -> None:
    done = cli("routes", "seed-rail8,gpudirect=off", "n0.mem@hca2", "n1.gpu0", "--format", "json")
    route = json.loads(done.stdout)["route"]
    assert (route["source"], route["target"], route["slid"], route["dlid"]) == ("n0.mem", "n1.gpu0", 2, 10)
    assert [hop["to"] for hop in route["hops"]] == [
        "n0.pcie0", "n0.hca2", "leaf2", "spine1", "leaf1", "n1.hca1", "n1.pcie0", "n1.mem", "n1.pcie0", "n1.gpu0",
    ]  # fmt: skip
    done = cli("routes", "seed-rail8", "n0.mem@hca17", "n1.gpu0")
    assert done.returncode == 2
    assert "n0 has no HCA called hca17" in done.stderr


def test_json_is_the_path_of_the_tables(cli: Any) -> None:
    done = cli("routes", "fat-tree", "n0.hca1", "n3.hca2", "--nodes", "4", "--routing", "updn", "--format", "json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    topology = load_topology("fat-tree", 4)
    manager = SubnetManager(topology, engine="updn")
    path = manager.path(manager.lid("n0.hca1"), manager.lid("n3.hca2"))
    assert answer["routing"] == {"asked": "updn", "used": manager.routes.engine}
    assert answer["sweep"] is None
    route = answer["route"]
    assert [hop["link"] for hop in route["hops"]] == [topology.links[link].name for link in path.links]
    assert (route["latency_ns"], route["rate_bps"]) == (path.latency_ns, path.rate.bits_per_s)
    assert set(route["hops"][0]) == {"link", "at", "port", "to", "latency_ns", "reason", "rate_bps"}


def test_a_failed_cable_is_gone_round(cli: Any) -> None:
    whole = json.loads(cli("routes", "seed-rail8", "n0.hca1", "n1.hca2", "--format", "json").stdout)
    cable = whole["route"]["hops"][3]["link"]
    done = cli("routes", "seed-rail8", "n0.hca1", "n1.hca2", "--down", cable, "--format", "json")
    broken = json.loads(done.stdout)
    assert broken["sweep"]["down"] == [cable]
    assert broken["sweep"]["outage_ns"] > 0
    assert {entry["switch"] for entry in broken["sweep"]["changed_entries"]} == {"leaf1", cable.split("->")[1][:6]}
    assert broken["route"]["hops"][3]["link"] != cable
    assert f"down: {cable}; after" in cli("routes", "seed-rail8", "n0.hca1", "n1.hca2", "--down", cable).stdout


def test_balance_of_all(cli: Any) -> None:
    found = json.loads(cli("routes", "seed-rail8", "--all", "--nodes", "3", "--format", "json").stdout)
    assert found["routes"] == 27 * 26
    assert {row["kind"]: row["cables"] for row in found["cables"]} == {"leaf->spine": 80, "spine->leaf": 80}
    table = cli("routes", "seed-rail8", "--all", "--nodes", "3").stdout
    assert "702 routes between HCAs by minhop" in table
    assert "leaf->spine" in table


def test_on_ethernet_all_routes_are_those_that_the_engine_chooses(cli: Any) -> None:
    fabric = ["routes", str(ROOT / "examples" / "fabrics" / "roce-two-tier.yaml"), "--nodes", "4"]
    spread = {}
    for engine in ("ecmp", "spray", "adaptive"):
        found = json.loads(cli(*fabric, "--all", "--routing", engine, "--format", "json").stdout)
        assert found["routes"] == 8 * 7
        up = next(row for row in found["cables"] if row["kind"] == "leaf->spine")
        assert up["mean"] == 8  # 4 HCAs to 4 behind the other leaf, over two uplinks
        spread[engine] = (up["least"], up["most"])
        assert f"counted: {found['counted']}" in " ".join(cli(*fabric, "--all", "--routing", engine).stdout.split())
    assert spread["spray"] == spread["adaptive"] == (8, 8)
    assert spread["ecmp"] != (8, 8)
    spines = set()
    for qp_num in ("0", "0x11", "18", "0x13", "20"):
        done = cli(*fabric, "n0.hca1", "n3.hca2", "--qp-num", qp_num, "--format", "json")
        spines |= {hop["to"] for hop in json.loads(done.stdout)["route"]["hops"] if hop["to"].startswith("spine")}
    assert spines == {"spine1", "spine2"}


def test_what_cannot_be_routed_is_one_line_and_a_code(cli: Any) -> None:
    for arguments, code, says in (
        (["seed-rail8"], 2, "name both ends of the route"),
        (["seed-rail8", "n0.hca1"], 2, "name both ends of the route"),
        (["seed-rail8", "n0.hca1", "leaf1"], 2, "leaf1 is a switch"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--down", "leaf1->spine3"], 2, "no cable 'leaf1->spine3'"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--down", "n1.hca1"], 4, "no route from n0.hca1 to n1.hca1"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--qp-num", "x"], 2, "'x' is not a number such as"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--qp-num", "0x1000000"], 2, "queue pair numbers have 24 bits"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--routing", "best"], 2, "routing engine 'best'"),
        (["seed-rail8", "n0.hca1", "n1.hca1", "--routing", "updn:roots=top"], 2, "roots=top of updn: there is no such"),
    ):
        done = cli("routes", *arguments)
        assert (done.returncode, done.stdout) == (code, ""), arguments
        assert done.stderr.startswith("fauxrdma: error: ")
        assert says in done.stderr
