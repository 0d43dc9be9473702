"""Real OpenSM on ibsim, the fabric simulator (Debian packages opensm and ibsim-utils; no privilege needed).

`run_opensm(topology, engine)` writes the topology as an ibsim net file, runs one sweep, and reads the dumps.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fauxrdma.fabric.routing import SwitchGraph
from fauxrdma.topology.graph import Node, NodeKind, Topology, reachable_switches


def missing() -> str:
    """Why OpenSM cannot be run here; empty if it can."""
    libraries = [*Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"), *Path("/usr/lib").glob("umad2sim/libumad2sim.so")]
    lacking = [name for name in ("opensm", "ibsim") if shutil.which(name, path=programs()) is None]
    if not libraries:
        lacking.append("libumad2sim.so")
    return f"{', '.join(lacking)} not installed (apt-get install opensm ibsim-utils)" if lacking else ""


def programs() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"


@dataclass
class OpenSm:
    """What OpenSM did: `tables[switch][destination]` is the port (names as in the topology), `used` the engine whose
    tables it set, `log` its log file's lines without time and thread."""

    tables: dict[str, dict[str, int]] = field(default_factory=dict)
    used: str = ""
    log: list[str] = field(default_factory=list)


def node_guid(lid: int) -> int:
    """A GUID that sorts like the LID read in either byte order: OpenSM keys its maps by GUIDs in network order."""
    high, low = divmod(lid, 256)
    return 2 << 56 | high << 48 | low << 40 | low << 8 | high


def net_file(topology: Topology, nodes: list[tuple[int, Node]]) -> str:
    """These nodes, with their LIDs, as ibsim reads them. The first one, an HCA, is where OpenSM runs."""
    out = []
    for lid, node in nodes:
        cables = sorted(
            (link for link in topology.links_from(node.name) if link.kind == "cable"), key=lambda link: link.src_port
        )
        ports = "\n".join(f'[{link.src_port}]\t"{link.dst}"[{link.dst_port}]' for link in cables)
        if node.kind is NodeKind.SWITCH:
            out.append(f'switchguid=0x{node_guid(lid):016x}\nSwitch\t{node.radix} "{node.name}"\n{ports}\n')
        else:
            out.append(f'caguid=0x{node_guid(lid):016x}\nHca\t1 "{node.name}"\n{ports}\n')
    return "\n".join(out)


def subnets(topology: Topology) -> list[list[tuple[int, Node]]]:
    """The nodes of each island, with their LIDs, HCAs first: each is a subnet with an OpenSM of its own."""
    nodes = list(enumerate(SwitchGraph.of(topology).nodes, start=1))
    parts = []
    for hcas in topology.members_of_islands():
        names = {hca.name for hca in hcas}
        names |= reachable_switches(topology.fabric_link(hcas[0]).dst, topology.nodes, topology.links)
        parts.append([(lid, node) for lid, node in nodes if node.name in names])
    return parts


def run_opensm(topology: Topology, engine: str, folder: Path, *options: str) -> OpenSm:
    """One sweep of OpenSM with `engine` over each island of `topology`, in the empty `folder`; `used` has "and" between
    engines when not all used the same."""
    result = OpenSm()
    used = []
    for number, nodes in enumerate(subnets(topology)):
        island = folder / f"island{number}"
        island.mkdir()
        swept = _sweep(topology, nodes, engine, island, *options)
        result.tables |= swept.tables
        result.log += swept.log
        used.append(swept.used)
    result.used = " and ".join(dict.fromkeys(used))
    return result


def root_file(graph: SwitchGraph, switches: list[str], folder: Path) -> str:
    """The path of a file that says which switches are roots, for OpenSM's option -a."""
    path = folder / "roots"
    path.write_text("".join(f"0x{node_guid(graph.switch_lids[graph.number[name]]):016x}\n" for name in switches))
    return str(path)


def port_guid(lid: int, node: Node) -> int:
    """The GUID of the port that has `lid`."""
    return node_guid(lid) + (node.kind is not NodeKind.SWITCH)


@contextmanager
def simulated(topology: Topology, nodes: list[tuple[int, Node]], folder: Path) -> Iterator[dict[str, str]]:
    """ibsim with a subnet in it, in `folder`; the environment in which a program is on it, at the first HCA."""
    (folder / "net").write_text(net_file(topology, nodes))
    lines = [f"0x{port_guid(lid, node):016x} 0x{lid:04x} 0x{lid:04x}\n" for lid, node in nodes]
    (folder / "guid2lid").write_text("".join(lines))
    environment = {
        **os.environ,
        "PATH": programs(),
        "IBSIM_SOCKNAME": f"fauxrdma-{os.getpid()}-{folder.parent.name}-{folder.name}",
        "OSM_TMP_DIR": str(folder),
        "OSM_CACHE_DIR": str(folder),
        "SIM_HOST": nodes[0][1].name,
    }
    simulator = subprocess.Popen(
        ["ibsim", "-s", "-N", "16384", "-S", "2048", "-P", "65536", "net"],
        cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_ready(simulator)
        yield {**environment, "LD_PRELOAD": str(_umad2sim())}
    finally:
        simulator.kill()
        simulator.communicate()


def _sweep(topology: Topology, nodes: list[tuple[int, Node]], engine: str, folder: Path, *options: str) -> OpenSm:
    with simulated(topology, nodes, folder) as environment:
        subprocess.run(
            ["opensm", "-o", "-x", "-R", engine, "-f", "osm.log", "-D", "0x43", "--dump_files_dir", ".", *options],
            cwd=folder, env=environment, timeout=120, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return _read(folder)


def _umad2sim() -> Path:
    return next(Path("/usr/lib").glob("**/libumad2sim.so"))


def _wait_ready(simulator: subprocess.Popen[bytes]) -> None:
    assert simulator.stdout is not None
    seen = b""
    while b"simulator ready" not in seen:
        ready, _, _ = select.select([simulator.stdout], [], [], 30)
        chunk = os.read(simulator.stdout.fileno(), 65536) if ready else b""
        assert chunk, f"ibsim did not start: {seen.decode(errors='replace')}"
        seen += chunk


def _read(folder: Path) -> OpenSm:
    result = OpenSm()
    table: dict[str, int] = {}
    for line in (folder / "opensm-lfts.dump").read_text().splitlines():
        if head := re.match(r"Unicast lids .* \('(.*)'\):", line):
            table = result.tables.setdefault(head[1], {})
        elif entry := re.match(r"0x[0-9A-Fa-f]{4} (\d+) # .*: '(.*)'", line):
            table[entry[2]] = int(entry[1])
    for line in (folder / "osm.log").read_text(errors="replace").splitlines():
        text = re.sub(r"^\w{3} \d\d \d\d:\d\d:\d\d \d+ \[\w+\] 0x\w+ -> ", "", line)
        result.log.append(text)
        if used := re.search(r"osm_ucast_mgr_process: (\S+) tables configured", text):
            result.used = used[1]
    return result
