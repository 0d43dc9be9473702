"""The recipe of docs/labs.md for two machines, in two network namespaces that are joined by one link."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SECTION = (REPOSITORY / "docs" / "labs.md").read_text().partition("## Several machines, no engine")[2]
HOSTS = re.search(r"^```text\n(\d.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
LAB = re.search(r"^```yaml\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^(host\d)\$ (.*)$", SECTION, re.MULTILINE)
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("FAUXRDMA_")},
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(REPOSITORY),
}
KEEPS_GOING = """
import numpy as np
from fauxrdma.communicator import Communicator

with Communicator.from_env() as world:
    for step in range(1_000_000):
        world.all_reduce(np.ones(1000, dtype=np.float32))
        if step == 3:
            print("under way", flush=True)
"""


def _ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)


class Hosts:
    """The two machines: network namespaces with the addresses of the recipe's hosts file, and a folder."""

    def __init__(self, folder: Path, spaces: dict[str, str]) -> None:
        self.folder = folder
        self._spaces = spaces

    def cut(self) -> None:
        """Take down the link between the two."""
        done = _ip("-netns", self._spaces["host0"], "link", "set", "eth0", "down")
        assert done.returncode == 0, done.stderr

    @contextmanager
    def running(self, host: str, command: str) -> Iterator[subprocess.Popen[str]]:
        """A command on a host, which finds the recipe's lines in /etc/hosts. It is ended at the end."""
        inside = f"mount --bind hosts /etc/hosts && exec {command}"  # `ip netns exec` has mounts of its own
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._spaces[host], "sh", "-c", inside],
            cwd=self.folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=30)

    @contextmanager
    def recipe(self) -> Iterator[list[subprocess.Popen[str]]]:
        """All commands of the page; the processes of the nodes."""
        with ExitStack() as stack:
            started = [stack.enter_context(self.running(host, command)) for host, command in COMMANDS]
            yield started[1:]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip (Debian: iproute2)")
    assert HOSTS is not None
    assert LAB is not None
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n{HOSTS[1]}")
    (tmp_path / "lab.yaml").write_text(LAB[1])
    addresses = {name: address for address, name in map(str.split, HOSTS[1].splitlines())}
    spaces = {name: f"fauxrdma-{os.getpid()}-{name}" for name in addresses}
    try:
        for space in spaces.values():
            made = _ip("netns", "add", space)
            if made.returncode != 0:
                pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        first, second = spaces.values()
        joined = _ip("-netns", first, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", second)
        if joined.returncode != 0:
            pytest.skip(f"no veth here: {joined.stderr.strip()}")
        for name, space in spaces.items():
            for change in (
                ["address", "add", f"{addresses[name]}/24", "dev", "eth0"],
                ["link", "set", "eth0", "up"],
                ["link", "set", "lo", "up"],
            ):
                done = _ip("-netns", space, *change)
                assert done.returncode == 0, done.stderr
        yield Hosts(tmp_path, spaces)
    finally:
        for space in spaces.values():
            _ip("netns", "delete", space)


def test_ddp_on_two_hosts_trains_as_local_processes_do(hosts: Hosts) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    shutil.copy(REPOSITORY / "examples/train_digits.py", hosts.folder)
    with hosts.recipe() as nodes:
        outputs = [node.communicate(timeout=120)[0] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], outputs
    local = subprocess.run(
        shlex.split("fauxrdma run fat-tree --nodes 2 --gpus 1 -- train_digits.py --epochs 1"),
        cwd=hosts.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert local.returncode == 0, local.stderr
    results = [re.findall(r"loss=\S+ .*params_sha256=\w+", text) for text in (outputs[0], local.stdout)]
    assert len(results[0]) == 1
    assert results[0] == results[1]


def test_both_hosts_say_what_failed_when_the_link_is_cut(hosts: Hosts) -> None:
    (hosts.folder / "train_digits.py").write_text(KEEPS_GOING)
    with hosts.recipe() as nodes:
        for node in nodes:
            assert node.stdout is not None
            assert any("under way" in line for line in node.stdout)
        hosts.cut()
        for here, node in enumerate(nodes):
            output = node.communicate(timeout=100)[0]
            assert node.returncode == 1, output
            assert f"rank {here} (node {here}, GPU 0) failed first" in output
            lost = rf"CollectiveError: rank {here} lost rank {1 - here}: .* RETRY_EXC_ERR during all_reduce"
            assert re.search(lost, output), output
