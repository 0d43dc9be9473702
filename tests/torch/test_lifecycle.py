"""How groups begin and end: registration, missing daemon, timeouts, deaths, scripts that never clean up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ranks import lab_environments, run_everywhere

from fauxrdma.lab.local import LocalLab
from fauxrdma.torch import hook

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def run_script(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FAUXRDMA_")}
    return subprocess.run(
        [sys.executable, "-c", script], env={**clean, **env}, capture_output=True, text=True, timeout=60
    )


def test_import_torch_registers_the_name_and_keeps_gloo_the_default() -> None:
    done = run_script(
        "import torch, sys, torch.distributed as dist\n"
        "assert 'fauxrdma' in dist.Backend.backend_list\n"
        "assert dist.Backend.default_device_backend_map['cpu'] == 'gloo'\n"
        "assert not any(m.startswith('fauxrdma.') and m not in ('fauxrdma.torch', 'fauxrdma.torch.hook')\n"
        "               for m in sys.modules), 'import torch must not pull fauxrdma in'\n"
    )
    assert done.returncode == 0, done.stderr


def test_the_hook_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    def explode(*args: object, **kwargs: object) -> None:
        raise RuntimeError("torch changed")

    hook.register()  # a second time: nothing happens
    monkeypatch.setattr(dist.Backend, "backend_list", [])
    monkeypatch.setattr(dist.Backend, "register_backend", explode)
    hook.register()
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    hook.register()


def test_without_a_daemon_one_line_says_what_to_do() -> None:
    done = run_script(
        "import torch.distributed as dist\ndist.init_process_group('fauxrdma')",
        RANK="0",
        WORLD_SIZE="1",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "FAUXRDMA_SOCKET is not set" in last
    assert "fauxrdma run" in last


NO_CLEANUP = """
import torch, torch.distributed as dist
dist.init_process_group("fauxrdma")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
assert (tensor == dist.get_world_size()).all()
work = dist.all_reduce(tensor, async_op=True)
print(dist.get_backend())
"""


def test_a_script_that_never_destroys_its_group_ends_well(lab: LocalLab, tmp_path: Path) -> None:
    outcomes = run_everywhere(lab_environments(lab, 2), ["-c", NO_CLEANUP], tmp_path)
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout == "fauxrdma\n"
        statistics = json.loads((lab.stats_dir / f"rank{rank}.json").read_text())
        assert [op["op"] for op in statistics["operations"]] == ["all_reduce"] * 2, "the asynchronous one, too"


CLEANUP = """
import os, threading, torch, torch.distributed as dist

def held():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
        except FileNotFoundError:
            pass
    threads = [t.name for t in threading.enumerate() if "fauxrdma-rank" in t.name]
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if "memfd:fauxrdma" in line]
    return len(links), len(threads), len(mapped)

after = []
for number in range(3):
    # A store of its own each time: one TCP port used again and again lets a fast rank meet the last round's server.
    dist.init_process_group(
        "fauxrdma", f"file://{os.environ['STORE']}{number}", rank=int(os.environ["RANK"]), world_size=2
    )
    again = dist.new_group(ranks=[0, 1])
    for group in (None, again):
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert (tensor == 2).all()
    fds, threads, mapped = held()
    assert threads == 2 and mapped > 4, (fds, threads, mapped)
    dist.destroy_process_group()
    del again, group
    after.append(held())
assert after[0] == after[1] == after[2] and after[0][1:] == (0, 0), after
print("clean")
"""


def test_destroy_frees_descriptors_threads_and_memory(lab: LocalLab, tmp_path: Path) -> None:
    environments = [{**env, "STORE": str(tmp_path / "store")} for env in lab_environments(lab, 2)]
    for outcome in run_everywhere(environments, ["-c", CLEANUP], tmp_path):
        assert outcome.stdout == "clean\n", outcome.stderr


TIMEOUT = """
import datetime, time, torch, torch.distributed as dist
dist.init_process_group("fauxrdma")
short = dist.new_group(timeout=datetime.timedelta(seconds=2))
never = dist.new_group(timeout=datetime.timedelta(seconds=2))
dist.all_reduce(torch.ones(1), group=short)
if dist.get_rank() == 0:
    for group in (short, never):
        start = time.monotonic()
        try:
            dist.all_reduce(torch.ones(5), group=group)
        except Exception as error:
            print(type(error).__name__, round(time.monotonic() - start), str(error).splitlines()[0])
dist.barrier()
"""


def test_timeout_of_a_group_raises_and_other_groups_go_on(lab: LocalLab, tmp_path: Path) -> None:
    late, _ = outcomes = run_everywhere(lab_environments(lab, 2), ["-c", TIMEOUT], tmp_path)
    assert [o.returncode for o in outcomes] == [0, 0], late.stderr
    assert late.stdout.startswith("CollectiveError 2 rank 0: all_reduce of 20 B not done after 2 s, waiting for"), late
    assert "from rank 1 over shared memory (path n0.gpu0->" in late.stdout
    # The second group is not connected yet: its peer never came.
    assert "CollectiveError 2 rank 0 waited for rank 1 to connect" in late.stdout


FOREVER = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("fauxrdma")
model = DistributedDataParallel(torch.nn.Linear(500, 500))
step = 0
while True:
    model(torch.ones(8, 500)).sum().backward()
    step += 1
    if step == 3:
        print("running", flush=True)
"""


@pytest.mark.slow
def test_daemon_killed_under_ddp_names_rank_queue_pair_and_link(tmp_path: Path) -> None:
    with LocalLab("seed-two-switch", nodes=2, gpus=1, clock="none", log_dir=tmp_path) as lab:
        outputs = [tmp_path / f"rank{rank}.out" for rank in range(2)]
        died: list[float] = []

        def killer() -> None:
            limit = time.monotonic() + 60
            while time.monotonic() < limit:
                if all(path.exists() and "running" in path.read_text() for path in outputs):
                    os.kill(lab.daemons[1], 9)
                    died.append(time.monotonic())
                    return
                polled.wait(0.1)

        polled = threading.Event()
        thread = threading.Thread(target=killer)
        thread.start()
        survivor, orphan = run_everywhere(lab_environments(lab, 2), ["-c", FOREVER], tmp_path)
        ended = time.monotonic()
        thread.join(1)
        assert died
        assert ended - died[0] < 20, survivor.stderr
        assert survivor.returncode != 0
        assert "rank 0 lost rank 1: queue pair 0x" in survivor.stderr
        assert "RETRY_EXC_ERR" in survivor.stderr
        assert "n0.hca1->" in survivor.stderr
        assert orphan.returncode != 0
        assert "daemon" in orphan.stderr


REBUILT = """
import os, sys, threading, torch, torch.distributed as dist
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
folder = sys.argv[1]
dist.init_process_group("fauxrdma", store=dist.FileStore(folder + "/first", n), rank=rank, world_size=n)
dist.all_reduce(torch.ones(10))
work = dist.all_reduce(torch.ones(10), async_op=True) if rank else None  # rank 0 does not come
if rank == 0:
    dist.group.WORLD.abort()
else:
    try:
        work.wait()
    except Exception as error:
        print("failed:", str(error).splitlines()[0])
dist.destroy_process_group()
dist.init_process_group("fauxrdma", store=dist.FileStore(folder + "/second", n), rank=rank, world_size=n)
tensor = torch.full((5,), float(rank))
dist.all_reduce(tensor)
print("sum", tensor[0].item())
dist.destroy_process_group()
"""


def test_an_aborted_group_is_rebuilt(lab: LocalLab, tmp_path: Path) -> None:
    outcomes = run_everywhere(lab_environments(lab, 3), ["-c", REBUILT, str(tmp_path)], tmp_path)
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.splitlines()[-1] == "sum 3.0"
        assert rank == 0 or "failed: rank" in outcome.stdout
