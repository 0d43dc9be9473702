"""Multicast forwarding tables of real OpenSM on ibsim, after some HCAs have joined a group."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from real_opensm import node_guid, port_guid, simulated, subnets

from fauxrdma.topology.graph import Node, NodeKind, Topology

_JOIN = Path(__file__).parent / "join_multicast.py"
PATIENCE_S = 60.0
SWEEP_S = 5.0
"""Until a sweep that has written nothing is taken for lost. One that is still at work must be left alone: OpenSM starts
again at each SIGHUP, and on a busy machine would never come to an end."""


def run_multicast(
    topology: Topology, engine: str, members: list[int], folder: Path, *options: str
) -> dict[str, frozenset[int]]:
    """Ports of the group by switch name, for a fabric of one island; `members` are LIDs, the first HCA runs OpenSM,
    with `options`."""
    (nodes,) = subnets(topology)
    names = dict(nodes)
    with simulated(topology, nodes, folder) as environment:
        manager = subprocess.Popen(
            ["opensm", "-x", "-R", engine, "-s", "0", "-f", "osm.log", "-D", "0x43", "--dump_files_dir", ".", *options],
            cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            dump = folder / "opensm.mcfdbs"
            _wait(dump.exists, "the first sweep")
            by_guid = {node_guid(lid): node.name for lid, node in nodes if node.kind is NodeKind.SWITCH}
            cables = {lid: topology.fabric_link(names[lid]) for lid in members}
            tables: dict[str, frozenset[int]] = {}

            def all_are_in() -> bool:
                nonlocal tables
                # A port that a sweep on a busy machine does not hear of in time is dropped, and its memberships with
                # it; a host's driver joins again then, and so does this.
                outside = [lid for lid, cable in cables.items() if cable.dst_port not in tables.get(cable.dst, ())]
                for lid in outside:
                    _join(nodes[0][0], lid, names[lid], environment)
                written = dump.stat().st_mtime_ns
                manager.send_signal(signal.SIGHUP)  # sweep, and write the tables
                deadline = time.monotonic() + SWEEP_S
                while dump.stat().st_mtime_ns == written and time.monotonic() < deadline:
                    time.sleep(0.02)
                tables = _read(dump.read_text(), by_guid)
                return all(cable.dst_port in tables.get(cable.dst, ()) for cable in cables.values())

            _wait(all_are_in, "tables with all members")
            return tables
        finally:
            manager.kill()
            manager.communicate()


def _join(manager_lid: int, lid: int, node: Node, environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, str(_JOIN), str(manager_lid), hex(port_guid(lid, node))],
        env={**environment, "SIM_HOST": node.name}, check=True, timeout=PATIENCE_S,
    )  # fmt: skip


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"OpenSM did not come to {what}"
        time.sleep(0.02)


def _read(text: str, by_guid: dict[int, str]) -> dict[str, frozenset[int]]:
    found = {}
    switch = ""
    for line in text.splitlines():
        if head := re.match(r"Switch (0x[0-9a-f]+)", line):
            switch = by_guid[int(head[1], 16)]
        elif entry := re.match(r"0x[0-9A-F]+ : (.*)", line):
            found[switch] = frozenset(int(port, 16) for port in entry[1].split())
    return found
