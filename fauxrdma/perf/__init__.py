"""perftest's measurements over emulated HCAs: bandwidth and latency of each operation, in fabric time;
in `coll` nccl-tests' of collectives."""

from fauxrdma.perf.kinds import TESTS, PerfTest
from fauxrdma.perf.measuring import Row, measure
from fauxrdma.perf.spec import PerfSpec, default_iterations, sizes_of

__all__ = ["TESTS", "PerfSpec", "PerfTest", "Row", "default_iterations", "measure", "sizes_of"]
