"""Multicast forwarding tables of real OpenSM on ibsim, after some HCAs have joined a group."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from real_opensm import net_file, node_guid, programs, subnets, umad2sim, wait_ready

from fauxrdma.topology.graph import NodeKind, Topology

_JOIN = Path(__file__).parent / "join_multicast.py"
PATIENCE_S = 30.0
SWEEP_S = 0.5
"""Between looks at what OpenSM has written: it tells nobody when a sweep is over."""


def run_multicast(topology: Topology, engine: str, members: list[int], folder: Path) -> dict[str, frozenset[int]]:
    """Ports of the group by switch name, for a fabric of one island; `members` are LIDs, the first HCA runs OpenSM."""
    (nodes,) = subnets(topology)
    (folder / "net").write_text(net_file(topology, nodes))
    port_guids = {lid: node_guid(lid) + (node.kind is not NodeKind.SWITCH) for lid, node in nodes}
    (folder / "guid2lid").write_text(
        "".join(f"0x{guid:016x} 0x{lid:04x} 0x{lid:04x}\n" for lid, guid in port_guids.items())
    )
    names = dict(nodes)
    environment = {
        **os.environ,
        "PATH": programs(),
        "IBSIM_SOCKNAME": f"fauxrdma-mc-{os.getpid()}-{folder.parent.name}-{folder.name}",
        "OSM_TMP_DIR": str(folder),
        "OSM_CACHE_DIR": str(folder),
        "SIM_HOST": nodes[0][1].name,
    }
    simulated = {**environment, "LD_PRELOAD": str(umad2sim())}
    simulator = subprocess.Popen(
        ["ibsim", "-s", "-N", "16384", "-S", "2048", "-P", "65536", "net"],
        cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    manager = None
    try:
        wait_ready(simulator)
        manager = subprocess.Popen(
            ["opensm", "-x", "-R", engine, "-s", "0", "-f", "osm.log", "-D", "0x43", "--dump_files_dir", "."],
            cwd=folder, env=simulated, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        dump = folder / "opensm.mcfdbs"
        _wait(dump.exists, "the first sweep")
        for lid in members:
            subprocess.run(
                [sys.executable, str(_JOIN), str(nodes[0][0]), hex(port_guids[lid])],
                env={**simulated, "SIM_HOST": names[lid].name}, check=True, timeout=PATIENCE_S,
            )  # fmt: skip
        by_guid = {node_guid(lid): node.name for lid, node in nodes if node.kind is NodeKind.SWITCH}
        cables = [topology.fabric_link(names[lid]) for lid in members]
        tables: dict[str, frozenset[int]] = {}

        def all_are_in() -> bool:
            nonlocal tables
            manager.send_signal(signal.SIGHUP)  # sweep, and write the tables
            time.sleep(SWEEP_S)
            tables = _read(dump.read_text(), by_guid)
            return all(cable.dst_port in tables.get(cable.dst, ()) for cable in cables)

        _wait(all_are_in, "tables with all members")
        return tables
    finally:
        for process in (manager, simulator):
            if process is not None:
                process.kill()
                process.communicate()


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
