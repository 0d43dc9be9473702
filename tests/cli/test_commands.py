"""What the commands print when all is well."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fauxrdma import __version__
from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.report.results import SCHEMA_VERSION, Comparison
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology
from fauxrdma.topology.presets import PRESETS

COMMANDS = [
    ["compare"],
    ["run"],
    ["coll"],
    ["devinfo"],
    ["doctor"],
    ["routes"],
    ["place"],
    ["plan"],
    ["perf"],
    ["topo", "list"],
    ["topo", "show"],
    ["topo", "validate"],
    ["topo", "export"],
    ["topo", "import"],
    ["lab", "init"],
    ["lab", "up"],
    ["lab", "ps"],
    ["lab", "logs"],
    ["lab", "exec"],
    ["lab", "down"],
    ["lab", "schema"],
    ["lab", "export"],
    ["lab", "node"],
]

# All-reduces a vector a few times through the torch-free communicator, as a rank of any job would.
JOB = """
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    for step in range(4):
        data = np.full(20_000, world.rank + 1.0, dtype=np.float32)
        world.all_reduce(data)
    assert (data == sum(range(1, world.world_size + 1))).all()
    if world.rank == 0:
        print("hello from rank 0")
        print(f"total={data[0]:.0f} steps=4")
"""


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_every_command_has_examples_that_name_it(self, cli: Any, command: list[str]) -> None:
        result = cli(*command, "--help")
        assert result.returncode == 0
        assert "Examples:" in result.stdout
        assert f"fauxrdma {' '.join(command)}" in result.stdout.partition("Examples:")[2]
        assert "--format" in result.stdout or command == ["lab", "exec"]  # which prints what the program prints

    def test_the_overview_names_every_command(self, cli: Any) -> None:
        result = cli("--help")
        for command in COMMANDS:
            assert re.search(rf"^  {command[0]} ", result.stdout, re.MULTILINE)

    def test_help_imports_nothing_heavy(self) -> None:
        code = (
            "import sys; from fauxrdma.cli.main import main; main(['compare', '--help']); "
            "print(sorted(sys.modules.keys() & {'torch', 'numpy', 'rich', 'asyncio', 'jinja2'}))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == "[]"

    def test_version(self, cli: Any) -> None:
        assert cli("--version").stdout == f"fauxrdma {__version__}\n"

    def test_the_package_and_its_metadata_agree_on_the_version(self) -> None:
        import tomllib

        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        assert project["version"] == __version__


class TestTopo:
    def test_list_names_every_preset(self, cli: Any) -> None:
        text = cli("topo", "list").stdout
        assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in PRESETS)
        assert {p["name"] for p in json.loads(cli("topo", "list", "--format", "json").stdout)["presets"]} == set(
            PRESETS
        )

    def test_show_as_json_is_the_topology(self, cli: Any) -> None:
        raw = json.loads(cli("topo", "show", "seed-rail8", "--nodes", "3", "--format", "json").stdout)
        assert Topology.from_dict(raw) == load_topology("seed-rail8", nodes=3)

    def test_show_as_text_and_drawing(self, cli: Any) -> None:
        result = cli("topo", "show", "fat-tree", "--nodes", "4", "--svg", "out.svg")
        assert "[leaf1]" in result.stdout
        assert "130 ns" in result.stdout
        assert ElementTree.parse(cli.directory / "out.svg").getroot().tag.endswith("svg")

    def test_validate(self, cli: Any) -> None:
        result = cli("topo", "validate", "fat-tree", "--nodes", "72")
        assert result.returncode == 0
        assert "72 hosts" in result.stdout
        assert json.loads(cli("topo", "validate", "fat-tree", "--format", "json").stdout)["valid"] is True


class TestDevinfo:
    def test_it_reads_like_ibv_devinfo(self, cli: Any) -> None:
        text = cli("devinfo", "seed-rail8", "-d", "hca2").stdout
        fields = dict(re.findall(r"^\s*([\w\[\]]+):\s+(.+)$", text, re.MULTILINE))
        assert fields["hca_id"] == "hca2"
        assert fields["transport"] == "InfiniBand (0)"
        assert re.fullmatch(r"([0-9a-f]{4}:){3}[0-9a-f]{4}", fields["node_guid"])
        assert (fields["port"], fields["state"]) == ("1", "PORT_ACTIVE (4)")
        assert (fields["active_mtu"], fields["port_lid"], fields["link_layer"]) == ("4096 (5)", "2", "InfiniBand")
        assert fields["cable_to"].startswith("leaf2 port ")

    def test_list_and_json_name_the_same_devices(self, cli: Any) -> None:
        lines = cli("devinfo", "fat-tree:ndr", "--list").stdout.splitlines()
        assert lines[0] == "9 HCAs found:"
        devices = json.loads(cli("devinfo", "fat-tree:ndr", "--format", "json").stdout)
        assert [device["hca_id"] for device in devices] == [line.strip() for line in lines[1:]]
        assert {device["ports"][0]["rate"] for device in devices} == {"400 Gb/sec"}

    def test_verbose_has_every_limit_of_the_profile(self, cli: Any) -> None:
        (device,) = json.loads(
            cli("devinfo", "fat-tree", "-d", "hca1", "-v", "--profile", "cx4-edr,max_qp=7", "--format", "json").stdout
        )
        assert (device["profile"], device["max_qp"], device["max_sge"]) == ("cx4-edr,max_qp=7", "7", "30")
        limits = {field.name for field in dataclasses.fields(DeviceAttr)} - {"atomic_caps"} | {"atomic_cap"}
        assert limits - set(device) == set()
        (port,) = device["ports"]
        assert (port["rate"], port["active_speed"], port["phys_state"]) == (
            "100 Gb/sec",
            "25.0 Gbps (32)",
            "LINK_UP (5)",
        )

    def test_a_rank_asks_its_own_daemon(self, cli: Any) -> None:
        command = cli.command("devinfo", "--list")
        result = cli("run", "fat-tree", "--clock", "none", "--no-prefix", "--", *command)
        assert result.stdout.splitlines().count("9 HCAs found:") == 2


class TestJobs:
    def test_run_passes_output_through_and_shows_what_the_fabric_did(self, cli: Any) -> None:
        result = cli("run", "fat-tree", "--gpus", "2", "--dilation", "300", "--output", "out", "--", cli.script(JOB))
        assert result.returncode == 0, result.stderr
        assert "[n0 r0] hello from rank 0" in result.stdout
        assert re.search(r"result: total\s+│\s+10 ", result.stdout)
        assert re.search(r"fabric time per step\s+│\s+\d", result.stdout)
        assert (cli.directory / "out" / "report.html").exists()

    def test_the_profile_reaches_the_ranks_and_sets_the_rate(self, cli: Any) -> None:
        command = cli.command("devinfo", "-d", "hca1", "--format", "json")
        shown = []
        for fabric in ("fat-tree", "fat-tree:hdr"):
            result = cli(
                "run", fabric, "--nodes", "1", "--profile", "cx7-ndr", "--clock", "none", "--no-prefix", "--", *command
            )
            (device,), _ = json.JSONDecoder().raw_decode(result.stdout)
            shown.append((device["profile"], device["ports"][0]["rate"]))
        assert shown == [("cx7-ndr", "400 Gb/sec"), ("cx7-ndr", "200 Gb/sec")]

    def test_run_as_json_keeps_standard_output_clean(self, cli: Any) -> None:
        result = cli("run", "fat-tree", "--clock", "none", "--format", "json", "--", cli.script(JOB))
        comparison = Comparison.model_validate_json(result.stdout)
        (run,) = comparison.runs
        assert (run.clock, run.values, run.time_name) == ("none", {"total": "3", "steps": "4"}, "wall time")
        assert run.main_all_reduce is not None
        assert (run.main_all_reduce.nbytes, run.main_all_reduce.duration.count) == (80_000, 4)
        assert "hello from rank 0" in result.stderr
        assert not (cli.directory / "fauxrdma-out").exists()

    def test_compare_tells_the_fabrics_apart(self, cli: Any) -> None:
        result = cli("compare", "seed-rail8", "fat-tree", "--gpus", "2", "--dilation", "500", "--", cli.script(JOB))
        assert result.returncode == 0, result.stderr
        raw = json.loads((cli.directory / "fauxrdma-out" / "comparison.json").read_text())
        assert raw["schema_version"] == SCHEMA_VERSION
        rail, tree = Comparison.model_validate(raw).runs
        assert (rail.fabric, tree.fabric) == ("seed-rail8", "fat-tree")
        assert rail.values == tree.values == {"total": "10", "steps": "4"}
        assert rail.route is not None
        assert tree.route is not None
        assert rail.route.switches_mean > tree.route.switches_mean == 1
        assert rail.modelled_all_reduce_ns is not None
        assert tree.modelled_all_reduce_ns is not None
        assert rail.modelled_all_reduce_ns > tree.modelled_all_reduce_ns
        for run in (rail, tree):
            assert run.main_all_reduce is not None
            assert run.modelled_all_reduce_ns is not None
            # No operation can be faster than the fabric allows; 2 % is what pacing is held to.
            assert run.main_all_reduce.duration.min_ns > 0.98 * run.modelled_all_reduce_ns
            assert {link.kind for link in run.links} == {"cable", "pcie"}
        page = (cli.directory / "fauxrdma-out" / "report.html").read_text()
        assert page.count('<svg class="topo"') == 2
        assert "seed-rail8: running 4 ranks on 2 nodes" in result.stderr
        assert "identical on both" in result.stdout.replace("\n", " ")

    def test_the_bytes_on_the_links_are_those_of_the_ring(self, cli: Any) -> None:
        result = cli("run", "fat-tree", "--gpus", "2", "--clock", "none", "--format", "json", "--", cli.script(JOB))
        (run,) = Comparison.model_validate_json(result.stdout).runs
        # Each of 4 ranks sends 2 (n-1)/n of the buffer from its GPU to the rank before it, 4 times; ranks 0 and 2,
        # whose neighbour is on the other node, through their HCA's cable.
        carried = {link.name: link.nbytes for link in run.links}
        sent = {f"n{node}.gpu{gpu}->n{node}.pcie0": 0 for node in range(2) for gpu in range(2)}
        sent |= {"n0.hca1->leaf1": 0, "n1.hca1->leaf1": 0}
        assert sent.keys() <= carried.keys()
        assert not {"n0.hca2->leaf1", "n1.hca2->leaf1"} & carried.keys()
        expected = 4 * 2 * 3 / 4 * 80_000
        assert all(carried[name] == pytest.approx(expected, rel=0.05) for name in sent)

    def test_a_terminal_shows_a_live_display(self, cli: Any) -> None:
        ours, theirs = pty.openpty()
        command = cli.command("compare", "fat-tree", "--clock", "none", "--format", "json", "--", cli.script(JOB))
        with subprocess.Popen(
            command, cwd=cli.directory, env={**cli.env, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs
        ) as process:
            os.close(theirs)
            shown = b""
            try:
                while piece := os.read(ours, 4096):
                    shown += piece
            except OSError:  # Linux's way to say that the other end of a terminal is closed
                pass
            os.close(ours)
            assert process.stdout is not None
            Comparison.model_validate_json(process.stdout.read())
        assert process.returncode == 0
        assert "running 2 ranks on 2 nodes" in shown.decode()
        assert "✓" in shown.decode()
        assert b"\x1b[?25h" in shown  # the cursor is back


class TestDoctor:
    def test_every_check_of_the_issue_is_there(self, cli: Any) -> None:
        result = cli("doctor", "--format", "json")
        assert result.returncode == 0, result.stdout
        found = json.loads(result.stdout)
        names = {check["name"] for check in found["checks"]}
        assert names >= {"python", "uvloop", "torch hook", "memfd", "ptrace", "docker", "ports", "daemons package"}
        assert found["ok"] is True
        assert all(check["fix"] for check in found["checks"] if check["status"] != "ok")
