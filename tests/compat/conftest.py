"""One unshaped fabric of two nodes for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from machines import Machine

import fauxrdma.compat
from fauxrdma.lab.local import LocalLab

fauxrdma.compat.install()  # the tests import pyverbs


@pytest.fixture(scope="session")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as running:
        yield running


@pytest.fixture
def machine(lab: LocalLab) -> Machine:
    return Machine(lab, 0)


@pytest.fixture
def other_machine(lab: LocalLab) -> Machine:
    return Machine(lab, 1)
