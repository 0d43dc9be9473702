"""Train a digit classifier with DistributedDataParallel. Nothing in here knows which network carries the gradients.

    torchrun --nproc-per-node 4 examples/train_digits.py                                  # gloo over localhost
    fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py   # emulated HCAs

The backend is DIST_BACKEND (default gloo). Data: scikit-learn's bundled handwritten digits (1797 images of 8 x 8).
Rank 0 ends with one line of results: loss=... accuracy=... steps=... params_sha256=...
"""

from __future__ import annotations

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

TEST_IMAGES = 360


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set, the same on every rank: images scaled to 0..1, shuffled with a fixed seed."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    x = torch.tensor(images, dtype=torch.float32)[order] / 16
    y = torch.tensor(labels, dtype=torch.int64)[order]
    return TensorDataset(x[TEST_IMAGES:], y[TEST_IMAGES:]), TensorDataset(x[:TEST_IMAGES], y[:TEST_IMAGES])


def main() -> None:
    """Train, evaluate, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=96, help="images per step, over all ranks")
    parser.add_argument("--save", help="file for the trained parameters (torch.save, written by rank 0)")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(os.environ.get("DIST_BACKEND", "gloo"))
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    train, test = digits()
    # drop_last: every rank takes part in every step with the same number of images, so gradients average exactly.
    sampler = DistributedSampler(train, shuffle=True, seed=0, drop_last=True)
    loader = DataLoader(train, batch_size=max(1, args.batch_size // world_size), sampler=sampler, drop_last=True)
    layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=args.epochs * len(loader))
    loss_function = nn.CrossEntropyLoss()

    steps = 0
    mean_loss = torch.zeros(())
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
            steps += 1
        mean_loss = total / len(loader) / world_size
        dist.all_reduce(mean_loss)
        if rank == 0:
            print(f"epoch={epoch + 1}/{args.epochs} loss={mean_loss.item():.4f}", flush=True)

    # Each rank judges its share of the test images; the counts are summed over the network, too.
    x, y = test[rank::world_size]
    with torch.no_grad():
        right = (model.module(x).argmax(1) == y).sum()
    dist.all_reduce(right)

    if rank == 0:
        parameters = {name: value.detach() for name, value in model.module.state_dict().items()}
        digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in parameters.values())).hexdigest()
        if args.save:
            torch.save(parameters, args.save)
        accuracy = right.item() / TEST_IMAGES
        print(f"loss={mean_loss.item():.6f} accuracy={accuracy:.4f} steps={steps} params_sha256={digest}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
