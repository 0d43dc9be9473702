"""Running one rank's part of a plan to its end, on one mesh of peers or, cut over channels, on several together."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fauxrdma.collectives import PlanExecutor
from fauxrdma.communicator.mesh import PROBE_S, PeerMesh
from fauxrdma.communicator.sleeping import wait_for_any
from fauxrdma.errors import CollectiveError

__all__ = ["execute"]

Run = tuple[PeerMesh, PlanExecutor]


def execute(
    runs: Sequence[Run], what: str, call: int, timeout_s: float, deadline: float, aborted: Callable[[], str | None]
) -> None:
    """Drive all `runs` until each is done. `what` names the collective in errors and `call` is its number in the
    communicator; `deadline`, in monotonic wall time, is `timeout_s` after it began. Raises CollectiveError when a peer
    that is needed fails, when the time is up, or when `aborted` says why to give up."""
    for mesh, executor in runs:
        mesh.perform(executor.start(), deadline)
    heard = time.monotonic()
    while left := [run for run in runs if not run[1].done]:
        if (reason := aborted()) is not None:
            elapsed_s = time.monotonic() - (deadline - timeout_s)
            rank = left[0][0].rank
            raise CollectiveError(f"rank {rank}: {what} ended after {elapsed_s:.1f} s (call {call}): {reason}")
        for mesh, executor in left:
            for endpoint in mesh.endpoints.values():
                if endpoint.failure is not None and executor.needs(endpoint.peer):
                    elapsed_s = time.monotonic() - (deadline - timeout_s)
                    raise CollectiveError(f"{endpoint.failure} during {what} (call {call}, after {elapsed_s:.1f} s)")
        if len(runs) == 1:
            mesh, executor = runs[0]
            happened = mesh.wait(PROBE_S, executor.waiting_peer())
        else:
            happened = wait_for_any([mesh for mesh, _ in runs], PROBE_S)
        now = time.monotonic()
        if happened:
            heard = now
            for mesh, executor in left:
                mesh.perform(executor.resume(), deadline)
        elif now > deadline:
            raise _overdue(left, what, call, timeout_s)
        elif now - heard > PROBE_S / 2:
            for mesh, executor in left:
                peer = executor.waiting_peer()
                if peer is not None:
                    mesh.probe(peer)


def _overdue(left: Sequence[Run], what: str, call: int, timeout_s: float) -> CollectiveError:
    mesh, executor = left[0]
    peer = executor.waiting_peer()
    where = "" if peer is None else f" over {mesh.describe(peer)}"
    return CollectiveError(
        f"rank {mesh.rank}: {what} not done after {timeout_s:g} s, waiting for {executor.waiting_for()}{where} "
        f"(call {call})"
    )
