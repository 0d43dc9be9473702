"""Clocks agree: dilation k and 2k within 3 %, paced and virtual within 5 %, in fabric time.

The paced emulation never runs ahead of its model, and a host that stalls makes it late: the best run of several tells
what the clock does, however loaded the host is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives import NumpyArithmetic, Plan
from fauxrdma.collectives.algorithms import plan_for
from fauxrdma.collectives.request import Request
from fauxrdma.communicator import Communicator, mesh
from fauxrdma.lab.local import LocalLab

pytestmark = pytest.mark.alone

RANKS = 4
COUNT = 1 << 18
"""Elements of 4 bytes: 1 MiB."""
DILATION = 20_000
"""A message takes a loaded host milliseconds; that must be little beside the time it is modelled to take."""
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def labs() -> Iterator[dict[str, LocalLab]]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh, "ACK_TIMEOUT_S", 30.0)
        yield {
            name: stack.enter_context(LocalLab("fat-tree", 2, 2, clock=clock, dilation=dilation))
            for name, clock, dilation in (
                ("k", "paced", DILATION),
                ("2k", "paced", 2 * DILATION),
                ("virtual", "virtual", "auto"),
            )
        }


def measured_ns(lab: LocalLab, plan: Plan) -> int:
    """From the last entry to the last return, in fabric time."""

    def work(communicator: Communicator) -> tuple[int, int]:
        buffers = {name: np.ones(length, "f4") for name, length in plan.lengths(communicator.rank).items()}
        communicator.barrier()
        communicator._run(plan, buffers, NumpyArithmetic("sum", np.dtype("f4"), RANKS), 4 * COUNT)
        last = communicator.statistics.operations[-1]
        return last.start_ns, last.end_ns

    spans = all_well(run_ranks(lab, RANKS, work, share_memory=False))
    return max(end for _, end in spans) - max(start for start, _ in spans)


ALL_REDUCE = plan_for(Request("all_reduce", RANKS, COUNT, 4, 2 << 20, 2), "ring")
ALL_TO_ALL = plan_for(Request("all_to_all", RANKS, ((COUNT // RANKS,) * RANKS,) * RANKS, 4, 2 << 20, 2), "direct")


@pytest.mark.parametrize("plan", [ALL_REDUCE, ALL_TO_ALL], ids=["ring all-reduce", "direct all-to-all"])
def test_the_dilation_and_the_clock_make_no_difference(plan: Plan, labs: dict[str, LocalLab]) -> None:
    virtual = measured_ns(labs["virtual"], plan)
    assert measured_ns(labs["virtual"], plan) == virtual
    best = {"k": float("inf"), "2k": float("inf")}
    deadline = time.monotonic() + PATIENCE_S
    while True:
        for name in best:
            best[name] = min(best[name], measured_ns(labs[name], plan))
        ratio = best["k"] / best["2k"]
        off = [name for name, ns in best.items() if abs(ns / virtual - 1) > 0.05]
        if (not off and abs(ratio - 1) <= 0.03) or time.monotonic() > deadline:
            break
    assert ratio == pytest.approx(1, abs=0.03), f"k {best['k']} ns, 2k {best['2k']} ns"
    assert not off, f"{best} ns under paced, {virtual} ns under virtual"
