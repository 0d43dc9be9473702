"""How much slower than the modelled fabric the emulation must run, and how large its bursts are.

With dilation k a rate C becomes C/k of wall time and a delay d becomes k d (REFERENCE C, "Dilation")::

    k >= sum of active rates / (0.4 x host throughput)      the host must be able to move the bytes
    k >= 2 ms / smallest delay that must be realised        and to time them: timers and Python are good for 2 ms
"""

from __future__ import annotations

import math

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.transport import PROPAGATION_NS_PER_M, transport_of
from fauxrdma.topology.graph import Topology

__all__ = ["choose_dilation", "choose_quantum", "delay_dilation", "throughput_dilation"]

HOST_SHARE = 0.4
"""Of the host's throughput; the rest is for the applications, acknowledgements and the interpreter."""
TIMER_NS = 2_000_000
"""A delay of this much wall time is realised to a few percent by user-space pacing."""
BURST_NS = 1_000_000
"""Wall time of a burst at line rate."""
BURST_HANDLING_NS = 100_000
"""Wall time to budget for handling one burst at both ends."""
MAX_BURST = 1 << 20


def _active_rates_bps(topology: Topology, nodes: int, gpus: int) -> list[int]:
    """Signalling rates in bits/s of the cables of the HCAs that the first `gpus` GPUs of each used node need."""
    if not (1 <= nodes <= topology.hosts and 1 <= gpus <= topology.gpus_per_host):
        raise ConfigError(
            f"{topology.name} has {topology.hosts} nodes of {topology.gpus_per_host} GPUs, asked for {nodes} and {gpus}"
        )
    used = {topology.hca_of(topology.gpu(host, gpu)) for host in range(nodes) for gpu in range(gpus)}
    return [topology.fabric_link(hca).rate.bits_per_s for hca in used]


def throughput_dilation(topology: Topology, nodes: int, gpus: int, host_bytes_per_s: float) -> float:
    """The least k at which the host can carry all active HCAs at line rate at once."""
    return sum(_active_rates_bps(topology, nodes, gpus)) / 8 / (HOST_SHARE * host_bytes_per_s)


def delay_dilation(topology: Topology) -> float:
    """The least k at which the shortest latency of the fabric (one switch, two cables) lasts TIMER_NS of wall time."""
    shortest_m = min(topology.fabric_link(hca).length_m for hca in topology.hcas())
    transport = transport_of(topology)
    smallest_ns = transport.tx_ns + transport.rx_ns + topology.switch_latency_ns + 2 * shortest_m * PROPAGATION_NS_PER_M
    return TIMER_NS / smallest_ns


def choose_dilation(topology: Topology, nodes: int, gpus: int, host_bytes_per_s: float) -> float:
    """The dilation k for `nodes` nodes of which `gpus` GPUs (and their HCAs) are in use.

    Rounded up to two digits, so that runs on one machine agree although its measured throughput wavers.
    """
    k = max(throughput_dilation(topology, nodes, gpus, host_bytes_per_s), delay_dilation(topology), 1.0)
    unit: float = 10.0 ** (math.floor(math.log10(k)) - 1)
    return float(round(math.ceil(k / unit - 1e-9) * unit, 6))


def choose_quantum(topology: Topology, nodes: int, gpus: int, dilation: float) -> int:
    """The largest burst in bytes under dilation `dilation`: about a millisecond of wall time at line rate.

    More where many HCAs are active, so that the host handles no more bursts per second than it can. A multiple of the
    MTU, between one MTU and 1 MiB.
    """
    rates = _active_rates_bps(topology, nodes, gpus)
    wall_ns = max(BURST_NS, len(rates) * BURST_HANDLING_NS)
    nbytes = max(rates) / 8 / dilation * wall_ns / 1e9
    packets = max(1, min(int(nbytes), MAX_BURST) // topology.mtu)
    return packets * topology.mtu
