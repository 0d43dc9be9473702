"""One unshaped fabric of two nodes with two GPUs for the torch tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="session")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=2, clock="none") as running:
        yield running
