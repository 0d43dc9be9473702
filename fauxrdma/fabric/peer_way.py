"""The way between two GPUs of one host: over NVLink where there is some, else over PCIe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.transport import local_payload_rate
from fauxrdma.topology.host_shape import HostShape
from fauxrdma.units import Rate

__all__ = ["NVLINK_NS", "PCIE_NS", "PeerWay", "even_shares", "peer_way"]

NVLINK_NS, PCIE_NS = 600, 1000
"""What a small message between GPUs takes one way: the hardware latencies NCCL reckons with (`hwLat`, LL protocol, in
its src/graph/tuning.cc), 0.6 us by NVLink and 1.0 us by PCIe."""


@dataclass(frozen=True, slots=True)
class PeerWay:
    """`hops` are groups of names of the topology's links that carry even shares of the bytes: a GPU's lanes to all
    NVSwitches, or one PCIe link. `latency_ns` is one-way for a small message, `rate` the payload rate of the whole."""

    hops: tuple[tuple[str, ...], ...]
    latency_ns: int
    rate: Rate

    @property
    def bytes_per_ns(self) -> float:
        """The rate, in bytes per nanosecond."""
        return self.rate.bytes_per_ns

    @property
    def links(self) -> tuple[str, ...]:
        """All links, lane after lane."""
        return tuple(link for lane in zip(*self.hops, strict=True) for link in lane)


def even_shares(nbytes: int, links: int) -> Iterator[int]:
    """What each of `links` links side by side carries of `nbytes`: all the same, but for the rest on the first."""
    share, rest = divmod(nbytes, links)
    return (share + (number < rest) for number in range(links))


def peer_way(shape: HostShape, host: int, a: int, b: int) -> PeerWay:
    """From GPU `a` to GPU `b` of host `host`. Raises ConfigError for GPUs that are not two of the host's.

    Over PCIe, GPUs behind one switch meet there if GPUs may be read by other devices (GPUDirect); otherwise the bytes
    go up to the root complex and down again.
    """
    if a == b or not (0 <= a < shape.gpus and 0 <= b < shape.gpus):
        raise ConfigError(f"no way between GPU {a} and GPU {b} of a host with GPUs 0..{shape.gpus - 1}")
    here = f"n{host}."
    if shape.nvlink_rate is not None:
        switches = range(shape.nvswitches)
        out = tuple(f"{here}gpu{a}->{here}nvsw{s}" for s in switches)
        into = tuple(f"{here}nvsw{s}->{here}gpu{b}" for s in switches)
        lane = Rate(shape.nvlink_rate.bits_per_s // shape.nvswitches)
        payload = local_payload_rate("nvlink", lane)
        return PeerWay((out, into), NVLINK_NS, Rate(payload.bits_per_s * shape.nvswitches))
    first, last = a // shape.gpus_per_pcie_switch, b // shape.gpus_per_pcie_switch
    links = [f"{here}gpu{a}->{here}pcie{first}"]
    if first != last or not shape.gpudirect:
        links += [f"{here}pcie{first}->{here}mem", f"{here}mem->{here}pcie{last}"]
    links.append(f"{here}pcie{last}->{here}gpu{b}")
    return PeerWay(tuple((link,) for link in links), PCIE_NS, local_payload_rate("pcie", shape.pcie_rate))
