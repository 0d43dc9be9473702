"""The transports as profiles: what each puts around the payload, what it adds to the latency, and how it deals with
full queues and lost packets.

Bytes on the wire per full packet, and what is left for the payload at MTU 4096:

| transport | around every packet | bytes | efficiency |
|---|---|---|---|
| infiniband | LRH 8, BTH 12, ICRC 4, VCRC 2 | 26 | 0.9937 |
| rocev2 | Ethernet 38, IPv4 20, UDP 8, BTH 12, ICRC 4 | 82 | 0.9804 |
| rocev1 | Ethernet 38, GRH 40, BTH 12, ICRC 4 | 94 | 0.9776 |
| iwarp | Ethernet 38, IPv4 20, TCP 20, MPA 6, DDP with RDMAP 14 | 98 | 0.9766 |

Ethernet is preamble 8, header 14, frame check sequence 4, gap 12. Extended headers (RETH and the like) are on the first
packet of a message only and not counted.

Sources: REFERENCE B and C; IBTA vol. 1, 7.7 and 9.2, annexes A16 (RoCE) and A17 (RoCE v2); RFC 5044 (MPA: length 2,
CRC 4, no markers, which neither end asks for today), RFC 5041 (a tagged DDP segment's header: 14 bytes, RDMAP's control
byte among them); RFC 793 without options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fauxrdma.topology import graph
from fauxrdma.topology.building import SWITCH_LATENCY_NS, SWITCHING
from fauxrdma.topology.graph import STORE_AND_FORWARD, Link, Topology
from fauxrdma.units import Rate

__all__ = [
    "INFINIBAND",
    "IWARP",
    "PROPAGATION_NS_PER_M",
    "ROCEV1",
    "ROCEV2",
    "TRANSPORTS",
    "CongestionControl",
    "FlowControl",
    "LossRecovery",
    "TransportProfile",
    "transport_of",
]

PROPAGATION_NS_PER_M = 5.0
"""Light in fibre and signals in copper alike, to the accuracy that matters here."""

PCIE_MAX_PAYLOAD = 256
PCIE_TLP_OVERHEAD = 24
"""Bytes around each transaction layer packet: framing 4, header with 64-bit address 16, LCRC 4."""

NVLINK_DATA_FLITS = 16
"""Flits of 16 bytes that follow the header flit of a full NVLink packet (256 bytes of data)."""


class FlowControl(StrEnum):
    """What keeps a sender from overrunning the buffer at the other end of its cable."""

    CREDITS = "credits"
    """A packet leaves only for room that the receiver has granted, per virtual lane: nothing is ever dropped."""
    PFC = "pfc"
    """The receiver pauses a priority when its buffer fills up (IEEE 802.1Qbb)."""
    NONE = "none"
    """What finds no room is dropped."""


class CongestionControl(StrEnum):
    """What has senders slow down where flows meet."""

    NONE = "none"
    DCQCN = "dcqcn"
    """Rates cut on congestion notifications that receivers send for marked packets."""
    TCP = "tcp"
    """A window that grows until a loss or a mark halves it."""


class LossRecovery(StrEnum):
    """How a lost or broken packet is made good."""

    LINK_RETRY = "link-retry"
    """Each cable repeats what arrives broken; end to end nothing is lost unless a cable or switch is."""
    GO_BACK_N = "go-back-n"
    """The sender starts again from the first packet that is missing."""
    SELECTIVE = "selective"
    """Only what is missing is sent again (TCP with selective acknowledgements, RFC 2018)."""


def local_payload_rate(kind: str, rate: Rate) -> Rate:
    """The payload rate of a link inside a host, "pcie" or "nvlink", that signals at `rate`."""
    if kind == "pcie":
        return Rate(rate.bits_per_s * PCIE_MAX_PAYLOAD // (PCIE_MAX_PAYLOAD + PCIE_TLP_OVERHEAD))
    return Rate(rate.bits_per_s * NVLINK_DATA_FLITS // (NVLINK_DATA_FLITS + 1))


@dataclass(frozen=True, slots=True)
class TransportProfile:
    """One transport. `headers` are the bytes around every packet, by name. `tx_ns` and `rx_ns` are what the sending and
    the receiving HCA add to every message, the crossing of PCIe on their side included.

    `flow_control` is the cables', `ecn` says whether switches mark packets of full queues, `congestion_control` and
    `loss_recovery` are the senders'. `routable`: whether its packets cross from one IP subnet into another;
    `flow_entropy`: whether switches can tell the flows between two HCAs apart (UDP source port, TCP ports)."""

    name: str
    headers: Mapping[str, int]
    tx_ns: int
    rx_ns: int
    flow_control: FlowControl
    ecn: bool
    congestion_control: CongestionControl
    loss_recovery: LossRecovery
    routable: bool
    flow_entropy: bool

    @property
    def packet_overhead(self) -> int:
        """Bytes on the wire around the payload of a packet."""
        return sum(self.headers.values())

    @property
    def ethernet(self) -> bool:
        """Whether the ports' link layer is Ethernet."""
        return self.name != graph.INFINIBAND

    @property
    def switching(self) -> str:
        """How switches forward unless the fabric says otherwise, "cut-through" or "store-and-forward"."""
        return SWITCHING[self.name]

    @property
    def switch_latency_ns(self) -> int:
        """What a switch adds unless the fabric says otherwise."""
        return SWITCH_LATENCY_NS[self.name]

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


_ETHERNET = {"preamble": 8, "Ethernet": 14, "FCS": 4, "gap": 12}

INFINIBAND = TransportProfile(
    graph.INFINIBAND,
    headers={"LRH": 8, "BTH": 12, "ICRC": 4, "VCRC": 2},
    tx_ns=450,
    rx_ns=450,
    flow_control=FlowControl.CREDITS,
    ecn=False,
    congestion_control=CongestionControl.NONE,
    loss_recovery=LossRecovery.LINK_RETRY,
    routable=False,
    flow_entropy=False,
)
"""Credit flow control, no loss. 0.9 us of NIC overheads, so that one switch and two 3 m cables make 1.06 us (REFERENCE
C: `o_tx + o_rx` of 0.7-0.9 us, 1-2 us from end to end)."""

ROCEV2 = TransportProfile(
    graph.ROCEV2,
    headers={**_ETHERNET, "IPv4": 20, "UDP": 8, "BTH": 12, "ICRC": 4},
    tx_ns=1200,
    rx_ns=1200,
    flow_control=FlowControl.PFC,
    ecn=True,
    congestion_control=CongestionControl.DCQCN,
    loss_recovery=LossRecovery.GO_BACK_N,
    routable=True,
    flow_entropy=True,
)
"""2.4 us of NIC overheads, so that one switch that stores and forwards in 400 ns makes the 3 us of REFERENCE C."""

ROCEV1 = TransportProfile(
    graph.ROCEV1,
    headers={**_ETHERNET, "GRH": 40, "BTH": 12, "ICRC": 4},
    tx_ns=1200,
    rx_ns=1200,
    flow_control=FlowControl.PFC,
    ecn=False,
    congestion_control=CongestionControl.NONE,
    loss_recovery=LossRecovery.GO_BACK_N,
    routable=False,
    flow_entropy=False,
)
"""The InfiniBand packet in an Ethernet frame (type 0x8915), by the same adapters as RoCE v2. Without an IP header there
is no router that forwards it, no ECN field that a switch could mark (so no DCQCN), and no port for switches to hash:
all flows between two HCAs take one way."""

IWARP = TransportProfile(
    graph.IWARP,
    headers={**_ETHERNET, "IPv4": 20, "TCP": 20, "MPA": 6, "DDP": 14},
    tx_ns=1600,
    rx_ns=1600,
    flow_control=FlowControl.NONE,
    ecn=True,
    congestion_control=CongestionControl.TCP,
    loss_recovery=LossRecovery.SELECTIVE,
    routable=True,
    flow_entropy=True,
)
"""RDMA over TCP, which makes good what switches drop. The 3.2 us of NIC overheads are an assumption, a third more than
RoCE's for the TCP engine: no source of ours has a figure."""

TRANSPORTS: dict[str, TransportProfile] = {profile.name: profile for profile in (INFINIBAND, ROCEV2, ROCEV1, IWARP)}
"""Every transport by name."""


def transport_of(topology: Topology) -> TransportProfile:
    """The profile of the transport that the fabric speaks."""
    return TRANSPORTS[topology.transport]
