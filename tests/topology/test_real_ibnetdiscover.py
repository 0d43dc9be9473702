"""Real ibnetdiscover (infiniband-diags) on ibsim, which reads our export, tells the same fabric."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fauxrdma.topology.formats.registry import FORMATS, write_fabric
from fauxrdma.topology.formats.source import Source
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.loading import load_topology

SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin"
LIBRARIES = [*Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"), *Path("/usr/lib").glob("umad2sim/libumad2sim.so")]
LACKING = [name for name in ("ibsim", "ibnetdiscover") if shutil.which(name, path=SEARCH) is None]

pytestmark = pytest.mark.skipif(
    bool(LACKING) or not LIBRARIES,
    reason="ibsim or ibnetdiscover not installed (apt-get install ibsim-utils infiniband-diags)",
)


def discovered(text: str, folder: Path) -> str:
    """What ibnetdiscover prints on the fabric that ibsim makes of `text`."""
    (folder / "net").write_text(text)
    first = re.search(r"Initiated from node (\w+)", text)
    assert first is not None
    environment = {
        **os.environ,
        "PATH": SEARCH,
        "IBSIM_SOCKNAME": f"fauxrdma-{os.getpid()}-{folder.name}",
        "SIM_HOST": f"H-{first.group(1)}",
    }
    with subprocess.Popen(
        ["ibsim", "-s", "-n", str(folder / "net")], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as simulator:  # fmt: skip
        try:
            assert simulator.stdout is not None
            for line in simulator.stdout:
                if line.startswith("MaxMcastCap"):  # the last thing it says before it listens
                    break
            return subprocess.run(
                ["ibnetdiscover"], env={**environment, "LD_PRELOAD": str(LIBRARIES[0])}, capture_output=True, text=True,
                timeout=60, check=True,
            ).stdout  # fmt: skip
        finally:
            simulator.kill()


def cables(topology: Topology) -> set[tuple[str, int, str, int, int]]:
    return {
        (link.src, link.src_port, link.dst, link.dst_port, link.rate.bits_per_s)
        for link in topology.links
        if link.kind == "cable"
    }


@pytest.mark.parametrize("preset", ["seed-rail8", "fat-tree", "seed-two-switch:edr", "k-ary"])
def test_it_tells_our_fabric(preset: str, tmp_path: Path) -> None:
    # ibsim knows rates up to HDR, so no :ndr here.
    topology = load_topology(preset, 3)
    ours = write_fabric(topology, "ibnetdiscover")
    text = discovered(ours, tmp_path)
    found = FORMATS["ibnetdiscover"].read(Source("ibnetdiscover", text), None).topology
    assert cables(found) == cables(topology)
    assert {s.name: s.radix for s in found.switches()} == {s.name: s.radix for s in topology.switches()}

    def heads(told: str) -> list[str]:
        return sorted(re.findall(r"^(?:Switch|Ca)\t.*|^(?:vendid|devid|sysimgguid|switchguid|caguid)=.*", told, re.M))

    assert heads(text) == heads(ours)  # to the letter, LIDs too
