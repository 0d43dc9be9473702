"""Ranks that call different things are told so, by both names; nothing is computed from the wrong bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from rank_threads import run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.communicator.call import Call
from fauxrdma.errors import CollectiveError
from fauxrdma.lab.local import LocalLab

Calls = tuple[Callable[[Communicator], object], Callable[[Communicator], object]]
F4, I4 = np.ones(8, "f4"), np.ones(8, "i4")

DIFFERENT: dict[str, tuple[Calls, tuple[str, str]]] = {
    "operation": (
        (lambda c: c.all_reduce(F4.copy()), lambda c: c.all_gather(np.zeros(16, "f4"), F4)),
        ("all_reduce(sum of 8 x <f4", "all_gather((8, 8) x <f4"),
    ),
    "reduction": (
        (lambda c: c.all_reduce(F4.copy()), lambda c: c.all_reduce(F4.copy(), "max")),
        ("sum of 8", "max of 8"),
    ),
    "dtype of the same size": (
        (lambda c: c.all_reduce(F4.copy()), lambda c: c.all_reduce(I4.copy())),
        ("8 x <f4", "8 x <i4"),
    ),
    "size": (
        (lambda c: c.all_reduce(np.ones(8)), lambda c: c.all_reduce(np.ones(9))),
        ("sum of 8 x <f8", "sum of 9 x <f8"),
    ),
    "algorithm": (
        (lambda c: c.all_reduce(F4.copy()), lambda c: c.all_reduce(F4.copy(), algorithm="recursive-doubling")),
        ("by ring", "by recursive-doubling"),
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_both_are_named(lab: LocalLab, what: str) -> None:
    calls, words = DIFFERENT[what]

    def work(communicator: Communicator) -> None:
        communicator.barrier()
        calls[communicator.rank](communicator)

    began = time.monotonic()
    outcomes = run_ranks(lab, 2, work, timeout_s=20.0)
    assert time.monotonic() - began < 15
    assert all(isinstance(outcome, CollectiveError) for outcome in outcomes), outcomes
    told = [str(outcome) for outcome in outcomes if "called" in str(outcome)]
    assert told, outcomes
    for text in told:
        assert words[0] in text, text
        assert words[1] in text, text
        assert "as call 1" in text, text


def test_two_roots_are_found_at_the_next_call(lab: LocalLab) -> None:
    def work(communicator: Communicator) -> None:
        communicator.barrier()
        communicator.broadcast(np.ones(4), communicator.rank)  # each sends and nobody receives
        communicator.barrier()

    outcomes = run_ranks(lab, 2, work, timeout_s=20.0)
    assert all(isinstance(outcome, CollectiveError) for outcome in outcomes), outcomes
    assert any("belongs to another call than" in str(outcome) for outcome in outcomes)


def test_signatures_differ_in_everything_that_matters() -> None:
    call = Call(1, "all_reduce", "ring", "sum", "<f4", 8, 0)
    others = [
        Call(2, "all_reduce", "ring", "sum", "<f4", 8, 0),
        Call(1, "reduce", "ring", "sum", "<f4", 8, 0),
        Call(1, "all_reduce", "tree", "sum", "<f4", 8, 0),
        Call(1, "all_reduce", "ring", "max", "<f4", 8, 0),
        Call(1, "all_reduce", "ring", "sum", "<i4", 8, 0),
        Call(1, "all_reduce", "ring", "sum", "<f4", 9, 0),
        Call(1, "all_reduce", "ring", "sum", "<f4", 8, 1),
        Call(1, "all_reduce", "ring", "sum", "<f4", (8, 8), 0),
    ]
    assert call.signature not in {other.signature for other in others}
    assert 0 <= call.signature < 1 << 16
    assert len(str(Call(1, "gather", "direct", "", "<f4", tuple(range(1000)), 0))) < 150
