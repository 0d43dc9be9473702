"""The stage every test of this folder plays on: engines in one process, the same with the express lane, two daemons."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from stages import DaemonEnd, Stage, sim_stage

from fauxrdma.lab.local import LocalLab

# The mutation run plants its bugs in one process; FAUXRDMA_STAGES narrows the play to it.
_STAGES = os.environ.get("FAUXRDMA_STAGES", "sim,express,daemons").split(",")


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=2, gpus=1, clock="none") as lab:
        yield lab


@pytest.fixture(params=_STAGES)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """Two ends, nothing made yet."""
    if request.param != "daemons":
        yield sim_stage(express=request.param == "express")
        return
    lab: LocalLab = request.getfixturevalue("two_nodes")
    a, b = DaemonEnd(lab, 0), DaemonEnd(lab, 1)
    yield Stage("daemons", a, b)
    a.ctx.close()
    b.ctx.close()
