"""What torch offers to look into a job: its debug mode and its profiler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ranks import lab_environments, run_everywhere

from fauxrdma.lab.local import LocalLab

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

IN_DETAIL = """
import torch, torch.distributed as dist
dist.init_process_group("fauxrdma")
assert dist.get_debug_level() == dist.DebugLevel.DETAIL
rank, n = dist.get_rank(), dist.get_world_size()
tensor = torch.full((1000,), float(rank))
dist.all_reduce(tensor)
assert (tensor == sum(range(n))).all()
outputs = [torch.empty(3) for _ in range(n)]
dist.all_gather(outputs, torch.full((3,), float(rank)))
assert [int(output[0]) for output in outputs] == list(range(n))
pair = dist.new_group([0, 1])
if rank < 2:
    dist.broadcast(tensor, 0, group=pair)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
dist.barrier()
dist.destroy_process_group()
print("fine")
"""

DIFFERENT_IN_DETAIL = """
import torch, torch.distributed as dist
dist.init_process_group("fauxrdma")
tensor = torch.ones(1000 if dist.get_rank() else 10)
try:
    dist.all_reduce(tensor)
except Exception as error:
    print(error)
store = dist.distributed_c10d._get_default_store()  # rank 0 serves it, and leaves last
store.set(f"done{dist.get_rank()}", "")
store.wait(["done0", "done1"])
dist.destroy_process_group()
"""

PROFILED = """
import json, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
dist.init_process_group("fauxrdma")
tensor = torch.ones(1000)
dist.all_reduce(tensor)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    dist.all_reduce(tensor)
    works = [dist.all_reduce(tensor, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    dist.broadcast(tensor, 0)
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    dist.barrier()
events = {e.key: [e.count, e.cpu_time_total] for e in profiler.key_averages() if e.key.startswith("fauxrdma:")}
dist.destroy_process_group()
print("EVENTS", json.dumps(events))
"""


def test_debug_mode_detail_works(lab: LocalLab, tmp_path: Path) -> None:
    environments = [{**env, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"} for env in lab_environments(lab, 3)]
    for outcome in run_everywhere(environments, ["-c", IN_DETAIL], tmp_path):
        assert outcome.returncode == 0, outcome.stderr
        assert outcome.stdout.splitlines()[-1] == "fine"


def test_what_debug_mode_looks_for_is_found(lab: LocalLab, tmp_path: Path) -> None:
    environments = [{**env, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"} for env in lab_environments(lab, 2)]
    for outcome in run_everywhere(environments, ["-c", DIFFERENT_IN_DETAIL], tmp_path):
        assert outcome.returncode == 0, outcome.stderr
        for call in ("rank 0 called all_reduce(sum of 10 x", "rank 1 called all_reduce(sum of 1000 x"):
            assert call in outcome.stdout


def test_operations_are_events_of_the_profiler(lab: LocalLab, tmp_path: Path) -> None:
    outcomes = run_everywhere(lab_environments(lab, 2), ["-c", PROFILED], tmp_path)
    for rank, outcome in enumerate(outcomes):
        assert outcome.returncode == 0, outcome.stderr
        (line,) = [line for line in outcome.stdout.splitlines() if line.startswith("EVENTS ")]
        events = json.loads(line.removeprefix("EVENTS "))
        assert {name: count for name, (count, _) in events.items()} == {
            "fauxrdma:all_reduce": 4,
            "fauxrdma:broadcast": 1,
            "fauxrdma:barrier": 1,
            f"fauxrdma:{'recv' if rank else 'send'}": 1,
        }
        assert all(microseconds > 0 for _, microseconds in events.values())
