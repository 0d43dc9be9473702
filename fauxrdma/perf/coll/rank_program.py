"""What each rank of the bench runs: ``python -m fauxrdma.perf.coll.rank_program SWEEP``, SWEEP being the sweep as JSON.

Rank 0 prints each row as one line, :data:`ROW_MARK` and JSON.
"""

from __future__ import annotations

import os
import sys

from fauxrdma.communicator import Communicator
from fauxrdma.communicator.rendezvous import RendezvousStore
from fauxrdma.errors import FauxrdmaError
from fauxrdma.perf.coll.measuring import Bench
from fauxrdma.perf.coll.results import MeasuredRow
from fauxrdma.perf.coll.sweep import Sweep

__all__ = ["ROW_MARK", "main"]

ROW_MARK = "fauxrdma-coll-row "
_TIMEOUT_S = 300.0


def _print_row(row: MeasuredRow) -> None:
    print(ROW_MARK + row.model_dump_json(), flush=True)


def main(argv: list[str]) -> int:
    """Run the bench as the rank that the environment says; returns the exit code."""
    sweep = Sweep.model_validate_json(argv[0])
    try:
        with RendezvousStore.from_env(timeout_s=_TIMEOUT_S) as store:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            with Communicator(rank, world_size, store, timeout_s=_TIMEOUT_S) as communicator:
                Bench(sweep, communicator, store, _print_row).run()
    except FauxrdmaError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130  # the launcher got it, too, and says so
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
