"""What a rank's collectives took: kept in memory, written as rank{R}.json for the report."""

from __future__ import annotations

import atexit
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["MOST_OPERATIONS", "STATS_DIR_VARIABLE", "Operation", "RankStatistics", "process_statistics"]

STATS_DIR_VARIABLE = "FAUXRDMA_STATS_DIR"
"""Environment variable that names the directory for rank{R}.json; unset: nothing is written."""

MOST_OPERATIONS = 100_000
"""Operations kept per rank; what comes after is only counted."""


@dataclass(slots=True)
class Operation:
    """One collective of one rank: `start_ns` and `end_ns` are fabric time, `wall_ns` the wall time it took.

    `nbytes` is the size of the data the operation is about: the buffer of an all-reduce or broadcast, the whole input
    of a reduce-scatter, the whole output of an all-gather.
    """

    op: str
    nbytes: int
    start_ns: int
    end_ns: int
    wall_ns: int
    algorithm: str


class RankStatistics:
    """The operations of one rank over all its communicators."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.hca = ""
        self.clock = "none"
        self.dilation = 1.0
        self.operations: list[Operation] = []
        self.dropped = 0

    def record(self, operation: Operation) -> None:
        """Keep `operation`, or count it as dropped when there are too many."""
        if len(self.operations) < MOST_OPERATIONS:
            self.operations.append(operation)
        else:
            self.dropped += 1

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write rank{R}.json into `directory` (made if missing), whole or not at all. Returns its path."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"rank{self.rank}.json"
        content = {
            "rank": self.rank,
            "world_size": self.world_size,
            "hca": self.hca,
            "clock": self.clock,
            "dilation": self.dilation,
            "operations": [asdict(operation) for operation in self.operations],
            "dropped": self.dropped,
        }
        partial = path.with_suffix(f".{os.getpid()}.partial")
        partial.write_text(json.dumps(content))
        partial.replace(path)
        return path

    def write_where_asked(self) -> None:
        """Write into FAUXRDMA_STATS_DIR, if that is set. An unwritable directory is ignored: it must not fail a job."""
        directory = os.environ.get(STATS_DIR_VARIABLE)
        if directory:
            try:
                self.write(directory)
            except OSError:
                return


_of_process: RankStatistics | None = None


def process_statistics() -> RankStatistics:
    """The statistics of this process, whose rank is RANK of WORLD_SIZE: one object, written at exit where asked."""
    global _of_process
    if _of_process is None:
        _of_process = RankStatistics(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))
        atexit.register(_of_process.write_where_asked)
    return _of_process
