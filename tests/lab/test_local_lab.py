"""A lab of real daemons: what it starts, what it tells, what it leaves."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError, FabricUnhealthy, SetupError
from fauxrdma.lab import directory
from fauxrdma.lab.hca_daemon_link import list_hcas
from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=2, clock="paced", dilation=100, seed=7) as running:
        yield running


LONG_BASE = "import fauxrdma.lab.directory as d; d._MAX_BASE_CHARS = 1000; made = LabDirectory()\n"
"""pytest's temporary paths are longer than a lab would accept."""


def wait_for_end(pid: int) -> None:
    """Block until a process that is not our child has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([fd], [], [], 30)[0], f"process {pid} is still there"
    finally:
        os.close(fd)


class TestRunning:
    def test_all_daemons_answer(self, lab: LocalLab) -> None:
        assert len(set(lab.daemons)) == 2
        assert lab.dilation == 100
        for node in range(2):
            answer = list_hcas(lab.socket_path(node))
            assert (answer.node, answer.clock, answer.dilation) == (node, "paced", 100)
            assert [hca.name for hca in answer.hcas] == [f"hca{i}" for i in range(1, 10)]

    def test_a_report_of_an_idle_fabric_is_all_zero(self, lab: LocalLab) -> None:
        report = lab.report()
        assert (report.clock, report.retransmits, report.lost_nodes) == ("paced", 0, [])
        assert len(report.links) == len(lab.topology.links)
        assert sum(link.nbytes for link in report.links) == 0

    def test_sockets_are_private(self, lab: LocalLab) -> None:
        assert lab.directory.stat().st_mode & 0o077 == 0
        assert lab.socket_path(0).stat().st_mode & 0o077 == 0

    def test_a_rank_is_told_what_torchrun_would_tell_it(self, lab: LocalLab) -> None:
        env = lab.rank_env(node=1, local_rank=1)
        assert {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")} == {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
        }
        assert env["FAUXRDMA_HCA"] == "hca2"
        assert Path(env["FAUXRDMA_SOCKET"]).is_socket()
        assert 0 < int(env["MASTER_PORT"]) < 65536

    def test_there_is_no_such_rank(self, lab: LocalLab) -> None:
        with pytest.raises(ConfigError, match=r"no local rank 2 on node 0, which has local ranks 0\.\.1"):
            lab.rank_env(node=0, local_rank=2)


class TestEnd:
    def test_nothing_is_left(self) -> None:
        files = len(os.listdir("/proc/self/fd"))
        with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as lab:
            home, pids = lab.directory, [lab.subnet_manager_pid, *lab.daemons]
            assert home.is_dir()
        assert not home.exists()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        assert len(os.listdir("/proc/self/fd")) == files
        lab.close()

    def test_a_killed_daemon_is_named(self) -> None:
        with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as lab:
            victim = lab.daemons[1]
            os.kill(victim, signal.SIGKILL)
            while not lab.dead():
                lab.supervisor.pump(30)
            said = rf"the HCA daemon of node 1 \(pid {victim}\) died: killed by SIGKILL"
            with pytest.raises(FabricUnhealthy, match=said):
                lab.check()
            with pytest.raises(FabricUnhealthy, match="node 1"):
                lab.report()

    def test_a_killed_lab_takes_its_daemons_along(self) -> None:
        code = """
import signal
from fauxrdma.lab.local import LocalLab
with LocalLab("fat-tree", nodes=1, gpus=1, clock="none") as lab:
    print(lab.subnet_manager_pid, *lab.daemons, flush=True)
    signal.pause()
"""
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            pids = [int(word) for word in process.stdout.readline().split()]
            process.kill()
        assert len(pids) == 2
        for pid in pids:
            wait_for_end(pid)

    def test_the_directory_of_a_killed_lab_is_removed_by_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        code = (
            f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
            "import os, signal\n"
            "from fauxrdma.lab.directory import LabDirectory\n"
            "LabDirectory()\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        monkeypatch.setattr(directory, "_MAX_BASE_CHARS", 1000)
        live = directory.LabDirectory()
        subprocess.run([sys.executable, "-c", code.replace("LabDirectory()\n", LONG_BASE)], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        directory.LabDirectory().remove()
        assert list(tmp_path.iterdir()) == [live.path]
        live.remove()
        live.remove()
        assert list(tmp_path.iterdir()) == []

    def test_a_lab_started_in_a_thread_outlives_it(self) -> None:
        lab = LocalLab("fat-tree", nodes=1, gpus=1, clock="none")
        starter = threading.Thread(target=lab.__enter__)
        starter.start()
        starter.join()
        try:
            assert lab.report().lost_nodes == []
        finally:
            lab.close()

    def test_logs_can_be_kept(self, tmp_path: Path) -> None:
        with LocalLab("fat-tree", nodes=1, gpus=1, clock="none", log_dir=tmp_path / "logs"):
            pass
        assert {path.name for path in (tmp_path / "logs").iterdir()} == {"subnet-manager.log", "hca-n0.log"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"nodes": 0}, "at least one node"),
            ({"gpus": 9}, "8 GPUs per node"),
            ({"clock": "fast"}, "no clock 'fast'"),
            ({"dilation": "slow"}, "auto or a number"),
            ({"dilation": 0.5}, "auto or a number k >= 1"),
            ({"nodes": 100}, "cannot hold 100 nodes"),
            ({"listen": "7471"}, "--listen must be HOST:PORT"),
        ],
    )
    def test_what_cannot_be_used_is_a_config_error(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            LocalLab(**{"fabric": "fat-tree", "nodes": 1, "gpus": 1, **arguments})  # type: ignore[arg-type]

    @pytest.mark.parametrize("option", ["listen", "master_port"])
    def test_a_port_in_use_is_a_setup_error(self, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            value = f"127.0.0.1:{port}" if option == "listen" else port
            lab = LocalLab("fat-tree", 1, 1, clock="none", **{option: value})  # type: ignore[arg-type]
            with pytest.raises(SetupError, match=f"port {port} of 127.0.0.1 is in use"), lab:
                pass
        assert lab.supervisor.children == []

    def test_a_daemons_own_refusal_is_passed_on(self) -> None:
        lab = LocalLab("fat-tree", 1, 1, dilation=1e12)
        with pytest.raises(ConfigError, match="dilation 1e\\+12 is out of range"), lab:
            pass
        assert not [child for child in lab.supervisor.children if child.running]

    def test_a_lab_that_does_not_run_says_how_to_start_it(self) -> None:
        with pytest.raises(SetupError, match="with LocalLab"):
            LocalLab("fat-tree", 1, 1).report()


class TestPlacement:
    def test_ranks_are_where_the_placement_puts_them_and_idle_nodes_are_there(self) -> None:
        with LocalLab("fat-tree", 3, 2, clock="none", placement="cyclic", on_nodes=[2, 0]) as lab:
            assert lab.world_size == 4
            env = lab.env_of_rank(3)
            assert (env["FAUXRDMA_NODE"], env["FAUXRDMA_GPU"], env["FAUXRDMA_HCA"]) == ("0", "1", "hca2")
            assert (env["GROUP_RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == ("1", "1", "4")
            assert env["FAUXRDMA_PLACES"] == "2:0:1 0:0:1 2:1:2 0:1:2"
            assert env["FAUXRDMA_SOCKET"] == str(lab.socket_path(0))
            assert lab.rank_env(node=0, local_rank=1) == env
            assert lab.socket_path(1).is_socket()
            with pytest.raises(ConfigError, match="no local rank 0 on node 1, which has none"):
                lab.rank_env(node=1, local_rank=0)
            with pytest.raises(ConfigError, match=r"no rank 4: the lab has ranks 0\.\.3"):
                lab.env_of_rank(4)

    def test_a_placement_that_cannot_be_is_refused_before_anything_starts(self) -> None:
        with pytest.raises(ConfigError, match="no node 2"):
            LocalLab("fat-tree", 2, 1, on_nodes=[2])
