"""Ranks as threads of the test process, each with its own communicator on a HCA of a running lab."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fauxrdma.communicator import Communicator
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore
from fauxrdma.verbs import Context


def open_communicator(
    lab: LocalLab, rank: int, world_size: int, store: Any, **options: Any
) -> tuple[Context, Communicator]:
    """Rank `rank`, where the lab's placement puts it."""
    place = lab.placement.places[rank]
    context = Context(f"hca{place.hca}", socket=str(lab.socket_path(place.node)))
    options.setdefault("gpu", place.gpu)
    return context, Communicator(rank, world_size, store, context=context, **options)


def run_ranks(
    lab: LocalLab, world_size: int, work: Callable[[Communicator], Any], *, join_s: float = 60.0, **options: Any
) -> list[Any]:
    """Run `work` on every rank at the same time; what each returned, or the exception it raised."""
    store = ThreadStore()
    outcomes: list[Any] = [None] * world_size

    def run(rank: int) -> None:
        try:
            context, communicator = open_communicator(lab, rank, world_size, store, **options)
            try:
                outcomes[rank] = work(communicator)
            finally:
                communicator.close()
                context.close()
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(join_s)
        assert not thread.is_alive(), f"a rank is still running after {join_s} s"
    return outcomes


def all_well(outcomes: list[Any]) -> list[Any]:
    """The outcomes, after re-raising the first exception among them."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes
