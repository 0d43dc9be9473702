"""Programs written for pyverbs and hardware run unchanged: in one process, in two, on two nodes, over RoCE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machines import PROGRAMS, Machine, finish

from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.ports import free_port

ALL = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "common")
TWO_SIDED = [name for name in ALL if name != "list_devices"]
PING_PONGS = ["rc_pingpong", "uc_pingpong", "ud_pingpong"]


def two_processes(name: str, server: Machine, client: Machine) -> str:
    port = free_port()
    listening = server.start(str(PROGRAMS / f"{name}.py"), "--listen", str(port))
    try:
        out = client.run(str(PROGRAMS / f"{name}.py"), "--connect", f"127.0.0.1:{port}")
    except BaseException:
        listening.kill()
        raise
    finally:
        finish(listening)
    return out


def test_there_are_ten_programs_and_none_knows_of_us() -> None:
    assert len(ALL) >= 10
    assert [path.name for path in PROGRAMS.iterdir() if path.is_file() and "fauxrdma" in path.read_text()] == []


@pytest.mark.parametrize("name", ALL)
def test_in_one_process(name: str, machine: Machine) -> None:
    assert f"{name}: " in machine.run(str(PROGRAMS / f"{name}.py"))


@pytest.mark.parametrize("name", PING_PONGS)
def test_in_two_processes_on_one_node(name: str, machine: Machine) -> None:
    assert f"{name}: " in two_processes(name, machine, machine)


@pytest.mark.parametrize("name", TWO_SIDED)
def test_on_two_nodes(name: str, machine: Machine, other_machine: Machine) -> None:
    assert f"{name}: " in two_processes(name, machine, other_machine)


@pytest.fixture(scope="module")
def ethernet() -> Iterator[Machine]:
    with LocalLab("fat-tree,transport=rocev2", nodes=1, gpus=1, clock="none") as lab:
        yield Machine(lab, 0)


@pytest.mark.parametrize("name", ["rc_pingpong", "ud_pingpong", "list_devices"])
def test_over_roce(name: str, ethernet: Machine) -> None:
    out = ethernet.run(str(PROGRAMS / f"{name}.py"))
    assert f"{name}: " in out
    if name == "list_devices":
        assert "inet 10.64." in out
        assert "RoCEv2" in out
