"""`python -m fauxrdma.compat`: arguments, modules, children, and what the machine looks like."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines import Machine


def program(tmp_path: Path, text: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(text)
    return str(path)


def test_a_program_sees_itself_as_under_python(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("here = 1\n")
    text = "import sys, beside\nprint(__name__, sys.argv[1:], sys.argv[0] == __file__)\n"
    assert machine.run(program(tmp_path, text), "--flag", "x") == "__main__ ['--flag', 'x'] True\n"


def test_a_module_is_run_too(machine: Machine, tmp_path: Path) -> None:
    test = "import unittest\nfrom pyverbs.device import get_device_list\n\n\nclass T(unittest.TestCase):\n"
    (tmp_path / "test_them.py").write_text(f"{test}    def test(self):\n        self.assertTrue(get_device_list())\n")
    started = subprocess.run(
        [sys.executable, "-m", "fauxrdma.compat", "-m", "unittest", "test_them"],
        cwd=tmp_path, env=machine.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    assert "Ran 1 test" in started.stderr


@pytest.mark.parametrize(("arguments", "code"), [([], 1), (["-x"], 1), (["--help"], 0)])
def test_usage(machine: Machine, arguments: list[str], code: int) -> None:
    started = machine.start(*arguments)
    out, err = started.communicate(timeout=60)
    assert started.returncode == code
    assert "usage: python -m fauxrdma.compat program.py" in out + err


def test_exit_codes_and_output_are_the_programs(machine: Machine, tmp_path: Path) -> None:
    started = machine.start(program(tmp_path, "import sys\nsys.exit(7)\n"))
    assert started.wait(timeout=60) == 7
    started.communicate()


CHILDREN = """
import multiprocessing as mp
import os
import subprocess
import sys
from pyverbs.device import Context, get_device_list


def open_one(name):
    with Context(name=name) as ctx:
        return ctx.query_port(1).lid


if __name__ == "__main__":
    name = get_device_list()[0].name.decode()
    lids = {open_one(name)}
    for method in ("fork", "spawn"):
        with mp.get_context(method).Pool(1) as pool:
            lids.add(pool.apply(open_one, (name,)))
    code = f"from pyverbs.device import Context; print(Context(name={name!r}).query_port(1).lid)"
    lids.add(int(subprocess.check_output([sys.executable, "-c", code], cwd="/")))
    print(len(lids))
"""


def test_children_find_pyverbs_by_fork_spawn_and_exec(machine: Machine, tmp_path: Path) -> None:
    assert machine.run(program(tmp_path, CHILDREN)) == "1\n"


MACHINE = """
import json, os, subprocess, sys
from pathlib import Path

out = lambda *command: subprocess.run(command, capture_output=True, text=True)
hca = Path("/sys/class/infiniband/hca1")
print(json.dumps({
    "link": json.loads(out("rdma", "-j", "link", "show", "hca1/1").stdout),
    "plain": out("rdma", "link").stdout,
    "dev": json.loads(out("rdma", "dev", "show", "-j").stdout),
    "unknown": out("rdma", "resource").returncode,
    "lo": out("ip", "-o", "link", "show", "lo").stdout,
    "port": sorted(os.listdir(hca / "ports" / "1")),
    "state": (hca / "ports/1/state").read_text(),
    "rate": open("/sys/class/infiniband/hca1/ports/1/rate").read(),
    "exists": [os.path.exists(hca), hca.is_dir(), os.path.exists(hca / "nothing")],
    "names": [entry.name for entry in os.scandir("/sys/class/infiniband")],
    "ls": out("ls", "-d", "/sys/class/infiniband/hca1/ports").stdout,
    "cat": out("cat", "/sys/class/infiniband/hca2/ports/1/pkeys/0", "/dev/null").stdout,
    "temporary": os.environ["PATH"].split(os.pathsep)[0],
}))
"""


def test_the_machine_looks_as_if_it_had_the_devices(machine: Machine, tmp_path: Path) -> None:
    seen = json.loads(machine.run(program(tmp_path, MACHINE)))
    assert [(row["ifname"], row["port"], row["state"]) for row in seen["link"]] == [("hca1", 1, "ACTIVE")]
    assert "netdev" not in seen["link"][0]  # no IP over InfiniBand here
    assert seen["plain"].startswith("link hca1/1 state ACTIVE physical_state LINK_UP lid ")
    assert len(seen["dev"]) == len(seen["names"]) == 9
    assert seen["unknown"] == 1
    assert "lo" in seen["lo"]
    assert {"gids", "pkeys", "state", "rate", "link_layer"} <= set(seen["port"])
    assert (seen["state"], seen["rate"]) == ("4: ACTIVE\n", "200 Gb/sec (4X)\n")
    assert seen["exists"] == [True, True, False]
    assert seen["ls"].endswith("/sys/class/infiniband/hca1/ports\n")
    assert seen["cat"] == "0xffff\n"
    assert not os.path.exists(seen["temporary"])  # gone with the program
