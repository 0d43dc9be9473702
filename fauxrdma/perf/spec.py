"""What one run of a test is to do, known to both sides."""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.ib.enums import Mtu, QpType
from fauxrdma.perf.figures import MIN_ITERATIONS
from fauxrdma.perf.kinds import TESTS, PerfTest

__all__ = ["INLINE_LATENCY", "PerfSpec", "default_iterations", "sizes_of"]

INLINE_LATENCY = 220
"""Bytes up to which a latency test sends inline (perftest's default for writes)."""

_MOST_BYTES = 1 << 25
"""Moved at each size unless the iterations are given: the default of 5,000 at 8 MiB would be 40 GiB, two seconds of a
real link, an hour of this host."""

_COALESCED_BYTES = 8192
_MODERATION = 100
"""Requests to a signaled one in bandwidth tests, up to _COALESCED_BYTES; above it, all are signaled (perftest)."""


@dataclass(frozen=True, slots=True)
class PerfSpec:
    """A test, its operands, and the two ends: (Unix socket of the daemon, device name) of client and server.

    `steps` are (size, iterations). Raises ConfigError for what the test or the connection type cannot do.
    """

    test_name: str
    steps: tuple[tuple[int, int], ...]
    ends: tuple[tuple[str, str], tuple[str, str]]
    qp_type: QpType = QpType.IBV_QPT_RC
    qps: int = 1
    tx_depth: int = 128
    bidirectional: bool = False
    inline_bytes: int = 0
    gpu: int | None = None
    path_mtu_bytes: int | None = None

    def __post_init__(self) -> None:
        test = self.test
        if self.qp_type not in test.types:
            able = ", ".join(kind.name.removeprefix("IBV_QPT_") for kind in test.types)
            kind = self.qp_type.name.removeprefix("IBV_QPT_")
            raise ConfigError(f"{test.name} cannot use connection type {kind}: an HCA offers it on {able}")
        if test.is_latency and (self.qps != 1 or self.bidirectional):
            what = "--bidirectional" if self.bidirectional else f"--qps {self.qps}"
            raise ConfigError(f"{what} is for bandwidth: {test.name} has one request under way")
        if self.path_mtu_bytes is not None:
            try:
                Mtu.of_bytes(self.path_mtu_bytes)
            except ValueError:
                raise ConfigError(f"--mtu {self.path_mtu_bytes}: one of 256, 512, 1024, 2048, 4096") from None
        for size, iterations in self.steps:
            if iterations < MIN_ITERATIONS:
                raise ConfigError(f"--iterations {iterations}: perftest's figures need at least {MIN_ITERATIONS}")
            if not test.sizes_vary and size != test.size:
                raise ConfigError(f"--size {size}: an atomic operation has {test.size} bytes")
            if size < 1:
                raise ConfigError(f"--size {size}: a message to be measured has at least one byte")

    @property
    def test(self) -> PerfTest:
        """What is posted and measured."""
        return TESTS[self.test_name]

    @property
    def most_bytes(self) -> int:
        """The largest message."""
        return max(size for size, _ in self.steps)

    def moderation(self, size: int) -> int:
        """Every how many requests one is signaled in a bandwidth test of `size` bytes."""
        return min(_MODERATION, self.tx_depth) if size <= _COALESCED_BYTES else 1


def sizes_of(test: PerfTest, size: int | None, all_sizes: bool, largest: int) -> list[int]:
    """The sizes of a run: `size`, or with `all_sizes` the powers of two from 2 bytes to `largest` (perftest: 8 MiB, on
    UD one packet)."""
    if all_sizes and size is not None:
        raise ConfigError("give --size or --all, not both")
    if all_sizes and test.sizes_vary:
        return [1 << bits for bits in range(1, largest.bit_length()) if 1 << bits <= largest]
    return [min(test.size, largest) if size is None else size]


def default_iterations(test: PerfTest, size: int) -> int:
    """perftest's number, or as many as fit into _MOST_BYTES, where that is less."""
    return max(MIN_ITERATIONS, min(test.iterations, _MOST_BYTES // size))
