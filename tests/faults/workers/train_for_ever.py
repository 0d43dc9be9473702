"""A rank that trains with DistributedDataParallel for ever, and checks every step's gradients.

Both ranks' gradients are computed here, too, on a copy of the model: what the network delivers is to be their mean, bit
for bit (a division by two and one addition, in whatever order). Prints step=N after each.
"""

from __future__ import annotations

import copy
import itertools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


def batch(rank: int, step: int) -> torch.Tensor:
    """What a rank learns from in a step."""
    return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


def main() -> None:
    """Train, check, tell."""
    torch.set_num_threads(1)
    dist.init_process_group(os.environ["DIST_BACKEND"])
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    model = DistributedDataParallel(copy.deepcopy(plain))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in itertools.count():
        plain.load_state_dict(model.module.state_dict())
        wanted = [torch.zeros_like(parameter) for parameter in plain.parameters()]
        for each in range(world_size):
            plain.zero_grad()
            plain(batch(each, step)).square().mean().backward()
            for total, parameter in zip(wanted, plain.parameters(), strict=True):
                total += parameter.grad / world_size
        optimizer.zero_grad()
        model(batch(rank, step)).square().mean().backward()
        for total, parameter in zip(wanted, model.parameters(), strict=True):
            assert torch.equal(parameter.grad, total), f"step {step}: gradients that no rank computed"
        optimizer.step()
        print(f"step={step}", flush=True)


main()
