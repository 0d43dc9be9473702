"""What a transport costs: header bytes per packet and fixed delays.

Sources: REFERENCE B (InfiniBand: LRH 8 + BTH 12 + ICRC 4 + VCRC 2 bytes per packet, 0.9937 at MTU 4096) and REFERENCE C
(`o_tx + o_rx` of 0.7-0.9 us for a small message, which takes 1-2 us from end to end; 5 ns per metre of cable).
"""

from __future__ import annotations

from dataclasses import dataclass

from fauxrdma.topology.graph import STORE_AND_FORWARD, Link, Topology
from fauxrdma.units import Rate

__all__ = ["INFINIBAND", "PROPAGATION_NS_PER_M", "ROCEV2", "TransportProfile", "transport_of"]

PROPAGATION_NS_PER_M = 5.0
"""Light in fibre and signals in copper alike, to the accuracy that matters here."""

PCIE_MAX_PAYLOAD = 256
PCIE_TLP_OVERHEAD = 24
"""Bytes around each transaction layer packet: framing 4, header with 64-bit address 16, LCRC 4."""

NVLINK_DATA_FLITS = 16
"""Flits of 16 bytes that follow the header flit of a full NVLink packet (256 bytes of data)."""


def local_payload_rate(kind: str, rate: Rate) -> Rate:
    """The payload rate of a link inside a host, "pcie" or "nvlink", that signals at `rate`."""
    if kind == "pcie":
        return Rate(rate.bits_per_s * PCIE_MAX_PAYLOAD // (PCIE_MAX_PAYLOAD + PCIE_TLP_OVERHEAD))
    return Rate(rate.bits_per_s * NVLINK_DATA_FLITS // (NVLINK_DATA_FLITS + 1))


@dataclass(frozen=True, slots=True)
class TransportProfile:
    """Costs of one transport. `packet_overhead` in bytes per MTU-sized packet; `tx_ns` and `rx_ns` are what the sending
    and the receiving HCA add to every message, the crossing of PCIe on their side included."""

    name: str
    packet_overhead: int
    tx_ns: int
    rx_ns: int

    def efficiency(self, mtu: int) -> float:
        """Payload bytes over bytes on the wire, for full packets."""
        return mtu / (mtu + self.packet_overhead)

    def payload_rate(self, link: Link, mtu: int) -> Rate:
        """The payload rate of `link`: its signalling rate less packet headers (PCIe and NVLink have their own)."""
        if link.kind != "cable":
            return local_payload_rate(link.kind, link.rate)
        return Rate(link.rate.bits_per_s * mtu // (mtu + self.packet_overhead))

    def latency_ns(self, topology: Topology, cables: list[Link]) -> int:
        """One-way latency of a small message over `cables` (HCA to HCA, a switch between each two), overheads included.

        A store-and-forward switch adds the time to take in one full packet at the rate of the cable it came by.
        """
        total = float(self.tx_ns + self.rx_ns)
        total += sum(cable.length_m for cable in cables) * PROPAGATION_NS_PER_M
        for cable in cables[:-1]:  # each cable but the last ends at a switch
            total += topology.switch_latency_ns
            if topology.switching == STORE_AND_FORWARD:
                total += cable.rate.transfer_ns(topology.mtu + self.packet_overhead)
        return round(total)


INFINIBAND = TransportProfile("infiniband", packet_overhead=26, tx_ns=450, rx_ns=450)
"""Credit flow control, no loss. 0.9 us of NIC overheads, so that one switch and two 3 m cables make 1.06 us."""

ROCEV2 = TransportProfile("rocev2", packet_overhead=82, tx_ns=1200, rx_ns=1200)
"""Ethernet 14 + 4 + 20 (preamble and gap), IP 20, UDP 8, BTH 12, ICRC 4 bytes: 0.9804 at MTU 4096 (REFERENCE B). 2.4 us
of NIC overheads, so that one switch that stores and forwards in 400 ns makes the 3 us of REFERENCE C."""

_PROFILES = {profile.name: profile for profile in (INFINIBAND, ROCEV2)}


def transport_of(topology: Topology) -> TransportProfile:
    """The costs of the transport that the fabric speaks."""
    return _PROFILES[topology.transport]
