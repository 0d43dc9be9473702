"""`fauxrdma.lab(...)`: in a with and in an async with, over real daemons."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fauxrdma
from fauxrdma.communicator import Communicator
from fauxrdma.errors import CheckFailed, ConfigError, SetupError

SCRIPT = """
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env() as ranks:
    array = np.full(1 << 16, ranks.rank + 1.0)
    ranks.all_reduce(array)
    print(f"total={array[0]:g}")
"""


def total(communicator: Communicator) -> float:
    array = np.full(1 << 16, communicator.rank + 1.0)
    communicator.all_reduce(array)
    return float(array[-1])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "sum.py"
    path.write_text(SCRIPT)
    return path


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_threads_and_scripts_run_over_it_and_it_draws_what_they_sent(script: Path) -> None:
    lines = []
    with fauxrdma.lab("seed-rail8", nodes=2, clock="none") as lab:
        assert lab.ranks(total) == [3.0, 3.0]
        result = lab.run(script, on_line=lambda line: lines.append((line.rank, line.text)))
        assert result.values == {"total": "3"}
        assert sorted(lines) == [(0, "total=3"), (1, "total=3")]
        # What the threads sent before is not counted: a ring of two sends each buffer once.
        assert {link.nbytes for link in result.links if link.kind == "cable"} == {8 << 16}
        assert lab.drawing().startswith("<svg")
        assert "n1.hca1" in lab._repr_html_()
        with lab.context(node=1) as context:
            assert (context.node, context.hca.index) == (1, 1)
        pids = [lab.subnet_manager_pid, *lab.daemons]
    assert not any(map(alive, pids))
    assert "not running" in lab._repr_html_()


def test_what_a_rank_raises_is_raised_with_its_place() -> None:
    def work(communicator: Communicator) -> None:
        if communicator.rank == 1:
            raise KeyError("mine")
        communicator.barrier()

    with fauxrdma.lab("fat-tree", clock="none") as lab:
        with pytest.raises(KeyError) as caught:
            lab.ranks(work)
        assert caught.value.__notes__ == ["in rank 1 (node 1, GPU 0)"]
        assert lab.ranks(total) == [3.0, 3.0]


async def test_the_event_loop_goes_on_meanwhile(script: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    counting = asyncio.create_task(count())
    async with fauxrdma.lab("fat-tree", nodes=2, clock="none") as lab:
        started = turns
        assert started > 5
        result, totals = await asyncio.gather(lab.run(script), lab.ranks(total))
        assert (result.values, totals) == ({"total": "3"}, [3.0, 3.0])
        assert turns > started + 5
        name = await lab.link_down("n0.hca1")
        await lab.swept()
        assert (await lab.path("n0.hca1", "n1.hca1")).lost_at == "n0.hca1->leaf1"
        assert await lab.link_up("n0.hca1") == name
        number = await lab.inject("packet-loss", "n1.hca1", loss=0.5)
        assert [fault.number for fault in (await lab.faults()).faults] == [number]
        assert await lab.clear_fault() == [number]
        pids = [lab._lab.subnet_manager_pid, *lab._lab.daemons]
    counting.cancel()
    assert not any(map(alive, pids))
    with pytest.raises(SetupError, match="async with"):
        await lab.report()


async def test_a_cancelled_task_ends_its_job(tmp_path: Path) -> None:
    path = tmp_path / "wait.py"
    path.write_text("import os, time\nprint(f'pid={os.getpid()}', flush=True)\ntime.sleep(600)\n")
    loop = asyncio.get_running_loop()
    pids: asyncio.Queue[int] = asyncio.Queue()
    async with fauxrdma.lab("fat-tree", nodes=2, clock="none") as lab:
        job = asyncio.create_task(
            lab.run(path, on_line=lambda line: loop.call_soon_threadsafe(pids.put_nowait, int(line.text[4:])))
        )
        ranks = [await pids.get(), await pids.get()]
        assert all(map(alive, ranks))
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        await lab.report()  # comes after the job's end
        assert not any(map(alive, ranks))


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed-rail8"):
        fauxrdma.lab("seed-rail9")
    with fauxrdma.lab("fat-tree", clock="virtual") as lab:
        with pytest.raises(ConfigError, match="cannot run in virtual time"):
            lab.ranks(total)
        with pytest.raises(ConfigError, match="no script"):
            lab.run(tmp_path / "missing.py")
        failing = tmp_path / "fail.py"
        failing.write_text("raise SystemExit(3)")
        with pytest.raises(CheckFailed, match="exit code 3"):
            lab.run(failing)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_is_left_when_the_notebook_is_killed(asynchronous: bool) -> None:
    body = (
        "import asyncio, os, signal, fauxrdma\n"
        "def kill(lab):\n"
        "    print(lab.subnet_manager_pid, *lab.daemons, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    if asynchronous:
        body += (
            "async def main():\n    async with fauxrdma.lab('fat-tree', clock='none') as lab:\n        kill(lab._lab)\n"
            "asyncio.run(main())\n"
        )
    else:
        body += "with fauxrdma.lab('fat-tree', clock='none') as lab:\n    kill(lab)\n"
    ended = subprocess.run([sys.executable, "-c", body], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    for pid in map(int, ended.stdout.split()):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with os.fdopen(pidfd):
            assert select.select([pidfd], [], [], 30)[0]
