"""A barrier that says who is missing. It goes through the rendezvous store, not the fabric, so it works when the fabric
is what is broken. `dist.monitored_barrier` itself accepts gloo only; call the method of the group."""

from __future__ import annotations

import time
from typing import Any

from fauxrdma.errors import CollectiveError

__all__ = ["monitored_barrier"]

PAUSE_S = 0.005


def monitored_barrier(
    store: Any, prefix: str, rank: int, size: int, timeout_s: float, *, wait_all_ranks: bool = False
) -> None:
    """Return when all `size` ranks have called it with this `prefix`, which serves once.

    Rank 0 watches. Raises CollectiveError on every rank that called when some have not within `timeout_s` seconds of
    wall time, naming the first that is missing, or all with `wait_all_ranks`.
    """
    verdict = f"{prefix}/verdict"
    store.set(f"{prefix}/{rank}", b"1")
    deadline = time.monotonic() + timeout_s
    if rank:
        # Rank 0 decides; it may have come later, and then waits for its whole time.
        while not store.check([verdict]):
            if time.monotonic() > deadline + timeout_s:
                raise CollectiveError(
                    f"rank {rank}: monitored_barrier: rank 0, which watches, did not come in {2 * timeout_s:g} s"
                )
            time.sleep(PAUSE_S)
        text = bytes(store.get(verdict)).decode()
    else:
        missing = set(range(1, size))
        while missing and time.monotonic() < deadline:
            missing = {other for other in missing if not store.check([f"{prefix}/{other}"])}
            if missing:
                time.sleep(PAUSE_S)
        text = ""
        if missing:
            named = sorted(missing) if wait_all_ranks else [min(missing)]
            some = ", ".join(map(str, named))
            text = f"monitored_barrier: rank{'s' * (len(named) > 1)} {some} did not come within {timeout_s:g} s"
        store.set(verdict, text.encode() or b" ")
    if text.strip():
        raise CollectiveError(f"rank {rank}: {text}")
