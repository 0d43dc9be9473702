"""`fauxrdma lab` over real processes: the whole life of a lab, and that no way to end one leaves anything."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fauxrdma.lab.running.folder import LabState, read_state
from fauxrdma.lab.running.inventory import lab_phase, processes_of
from fauxrdma.lab.running.members import members

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = "name: small\nfabric: fat-tree\nnodes: 2\ngpus: 1\nclock: none\n"
EVENTS = "events: [{at: 1000s, fault: link-down, link: n0.hca1}]\n"
_PATIENCE_S = 30.0


@pytest.fixture
def labs(cli: Any) -> Iterator[Any]:
    """A command line in a folder with a lab file."""
    (cli.directory / "lab.yaml").write_text(LAB)
    yield cli
    if cli.leftovers():  # shown by the fixture `cli`, but not to outlive the test
        cli("lab", "down", "--all")


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.01)
    return found


def ps(cli: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cli("lab", "ps", "--format", "json").stdout)
    return found


def folder(cli: Any) -> Path:
    return cli.temporary / f"fauxrdma-labs-{os.getuid()}" / "small"


def state(cli: Any) -> LabState:
    found = read_state(folder(cli))
    assert found is not None
    return found


def test_the_life_of_a_lab(labs: Any) -> None:
    (labs.directory / "lab.yaml").write_text(LAB + EVENTS)
    up = labs("lab", "up", "--format", "json")
    assert up.returncode == 0, up.stderr
    assert json.loads(up.stdout)["phase"] == "up"

    (lab,) = ps(labs)
    assert (lab["lab"], lab["state"], lab["nodes"]) == ("small", "up", 2)
    expected = [("supervisor", None), ("subnet manager", None), ("hca", 0), ("hca", 1)]
    assert [(each["role"], each["node"]) for each in lab["processes"]] == expected
    assert {each["state"] for each in lab["processes"]} == {"running"}

    hello = str(REPOSITORY / "examples" / "hello_rdma_write.py")
    ranks = [labs.start("lab", "exec", f"n{node}", "--", "python", hello) for node in (0, 1)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert "memory holds 'Hello from rank 0!'" in outputs[1][0]
    assert labs("lab", "exec", "1", "--", "sh", "-c", "exit 7").returncode == 7
    assert labs("lab", "exec", "n0", "--", "fauxrdma", "devinfo", "-l").stdout.startswith("9 HCAs found")

    logs = labs("lab", "logs", "n1").stdout
    assert re.match(r"\[n1 hca\] fauxrdma-hca\[1\]: node 1: 9 HCAs on ", logs)
    assert "n0 hca" not in logs
    following = labs.start("lab", "logs", "-f")
    assert following.stdout is not None
    following.stdout.readline()

    faults = labs("lab", "fault", "list", "--lab", "small")
    assert "link-down" in faults.stdout, faults.stderr

    again = labs("lab", "up")
    assert again.returncode == 2
    assert "the lab small is up" in again.stderr

    shell = labs.start("lab", "exec", "n0", "--", "sleep", "600")
    eventually(lambda: processes_of(state(labs))[-1].role == "exec")
    down = labs("lab", "down")
    assert down.stdout == "small is down\n"
    assert shell.wait(10) == -signal.SIGTERM
    assert following.wait(10) == 0
    following.communicate()
    shell.communicate()
    assert labs.leftovers() == []
    assert labs("lab", "down").returncode == 2


def test_a_dead_daemon_and_a_killed_supervisor(labs: Any) -> None:
    assert labs("lab", "up").returncode == 0
    first = state(labs)
    os.kill(first.daemons[2].pid, signal.SIGKILL)
    eventually(lambda: lab_phase(state(labs)) == "failed")
    assert ps(labs)[0]["processes"][3]["state"] == "killed by SIGKILL"

    # Whose supervisor was killed is dead, and cleared away by the next that starts.
    os.kill(first.keeper.pid, signal.SIGKILL)
    eventually(lambda: not state(labs).alive)
    assert ps(labs)[0]["state"] == "dead"
    assert labs("lab", "up").returncode == 0
    second = state(labs)
    assert second.mark != first.mark
    assert members(first.mark) == []

    # With a program of somebody inside.
    shell = labs.start("lab", "exec", "n0", "--", "sleep", "600")
    eventually(lambda: processes_of(state(labs))[-1].role == "exec")
    os.kill(second.keeper.pid, signal.SIGKILL)
    eventually(lambda: not state(labs).alive)
    assert labs.leftovers() != []
    assert labs("lab", "down", "--all").stdout == "small is down\n"
    assert shell.wait(10) == -signal.SIGTERM
    shell.communicate()
    assert labs.leftovers() == []


def _supervisor_runs(cli: Any) -> bool:
    return any("lab.running.supervisor" in each for each in cli.leftovers())


def _daemon_runs(cli: Any) -> bool:
    return any("daemons.hca" in each for each in cli.leftovers())


@pytest.mark.parametrize(
    "moment", [lambda cli: folder(cli).exists(), _supervisor_runs, _daemon_runs], ids=["folder", "supervisor", "daemon"]
)
def test_ctrl_c_while_it_starts(labs: Any, moment: Callable[[Any], bool]) -> None:
    starting = labs.start("lab", "up")
    eventually(lambda: moment(labs) or starting.poll() is not None)
    starting.send_signal(signal.SIGINT)
    _, stderr = starting.communicate(timeout=30)
    assert starting.returncode == 130, stderr
    assert labs.leftovers() == []


def test_a_killed_starter_leaves_no_lab(labs: Any) -> None:
    starting = labs.start("lab", "up")
    eventually(lambda: _supervisor_runs(labs))
    starting.kill()
    starting.communicate()
    eventually(lambda: labs.leftovers() == [])


def test_run_judges_thresholds_and_takes_the_lab_down(labs: Any) -> None:
    labs.script("import os; print('accuracy=0.75 steps=1', flush=True); assert os.environ['SEED'] == '3'")
    job = LAB + "job: {command: job.py, env: {SEED: '3'}}\nthresholds: [value.accuracy >= "
    (labs.directory / "lab.yaml").write_text(job + "0.7]\n")
    good = labs("lab", "up", str(labs.directory / "lab.yaml"), "--run", "--format", "json")
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["runs"][0]["thresholds"][0]["met"]
    assert "[n1 r1] accuracy=0.75 steps=1" in good.stderr
    assert labs.leftovers() == []
    (labs.directory / "lab.yaml").write_text(job + "0.8]\n")
    bad = labs("lab", "up", "--run")
    assert bad.returncode == 1
    assert "threshold NOT MET: value.accuracy >= 0.8" in bad.stderr
    failed = labs("lab", "up", "--run", "--", "sh", "-c", "exit $((RANK * 9))")
    assert failed.returncode == 1
    assert "rank 1 (node 1, GPU 0) failed first: exit code 9" in failed.stderr


def test_ctrl_c_and_other_terminals_while_a_job_runs(labs: Any) -> None:
    running = labs.start("lab", "up", "--run", "--", "sh", "-c", "echo here; exec sleep 600")
    assert running.stdout is not None
    assert {running.stdout.readline(), running.stdout.readline()} == {"[n0 r0] here\n", "[n1 r1] here\n"}
    (lab,) = ps(labs)
    ranks = [(each["node"], each["rank"], each["state"]) for each in lab["processes"] if each["role"] == "rank"]
    assert ranks == [(0, 0, "running"), (1, 1, "running")]
    assert "[n1 r1] here" in labs("lab", "logs", "n1").stdout.splitlines()
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=30)
    assert running.returncode == 130, stderr
    assert labs.leftovers() == []


def test_what_goes_wrong_at_the_start_is_said_by_the_command_itself(labs: Any) -> None:
    (labs.directory / "lab.yaml").write_text(LAB + "nodess: 2\n")
    wrong = labs("lab", "up")
    assert wrong.returncode == 2
    assert "lab.yaml:6:1: unknown key 'nodess' (did you mean nodes?)" in wrong.stderr
    (labs.directory / "lab.yaml").write_text(LAB)
    written = labs("lab", "init")
    assert written.returncode == 2
    assert labs("lab", "init", "--force", "--fabric", "seed-rail4", "--", "my.py", "-x").returncode == 0
    assert "command: 'my.py -x'" in (labs.directory / "lab.yaml").read_text()
