"""The tests there are: what each posts, what it measures, and perftest's defaults for it."""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.ib.enums import QpType, WrOpcode

__all__ = ["TESTS", "PerfTest"]

RC, UC, UD = QpType.IBV_QPT_RC, QpType.IBV_QPT_UC, QpType.IBV_QPT_UD


@dataclass(frozen=True, slots=True)
class PerfTest:
    """One of perftest's programs (ib_write_bw, ...). `halved`: the figure is half of what passes between two posts,
    since the answer comes back the same way; a READ or an atomic is itself there and back."""

    name: str
    title: str
    opcode: WrOpcode
    is_latency: bool
    types: tuple[QpType, ...]
    size: int
    iterations: int

    @property
    def halved(self) -> bool:
        """Whether a latency is half a round trip."""
        return self.opcode in (WrOpcode.IBV_WR_RDMA_WRITE, WrOpcode.IBV_WR_SEND)

    @property
    def receives(self) -> bool:
        """Whether the other side must post receives."""
        return self.opcode == WrOpcode.IBV_WR_SEND

    @property
    def sizes_vary(self) -> bool:
        """Whether other sizes than the default make sense: an atomic has 8 bytes."""
        return self.opcode != WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD


_BW_BYTES, _LAT_BYTES = 65536, 2

TESTS = {
    test.name: test
    for test in (
        PerfTest("write-bw", "RDMA_Write BW Test", WrOpcode.IBV_WR_RDMA_WRITE, False, (RC, UC), _BW_BYTES, 5000),
        PerfTest("write-lat", "RDMA_Write Latency Test", WrOpcode.IBV_WR_RDMA_WRITE, True, (RC, UC), _LAT_BYTES, 1000),
        PerfTest("read-bw", "RDMA_Read BW Test", WrOpcode.IBV_WR_RDMA_READ, False, (RC,), _BW_BYTES, 1000),
        PerfTest("read-lat", "RDMA_Read Latency Test", WrOpcode.IBV_WR_RDMA_READ, True, (RC,), _LAT_BYTES, 1000),
        PerfTest("send-bw", "Send BW Test", WrOpcode.IBV_WR_SEND, False, (RC, UC, UD), _BW_BYTES, 1000),
        PerfTest("send-lat", "Send Latency Test", WrOpcode.IBV_WR_SEND, True, (RC, UC, UD), _LAT_BYTES, 1000),
        PerfTest("atomic-lat", "Atomic Latency Test", WrOpcode.IBV_WR_ATOMIC_FETCH_AND_ADD, True, (RC,), 8, 1000),
    )
}
"""By name, with the defaults of perftest's man page."""
