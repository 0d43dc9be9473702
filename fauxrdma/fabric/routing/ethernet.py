"""Ethernet: every shortest path may be used, and each switch picks one of its ports for a packet.

- **ecmp**: by a hash of the flow, so that its packets stay in order (RFC 2992). RoCE v2 draws the UDP source port from
  the queue pair, for just this; every switch has a seed of its own, or all would choose alike.
- **spray**: packet by packet the next port, from one that the hash gives (see `spray.py`). Spreads even a single flow.
- **adaptive**: the port whose cable is the least loaded at the moment, the hash decides on a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

__all__ = ["ETHERNET_ENGINES", "FlowKey", "Load", "pick_port", "unloaded"]

ETHERNET_ENGINES = ("ecmp", "spray", "adaptive")

ROCE_UDP_PORT = 4791

Load = Callable[[int], float]
"""How loaded a link is, by its id; any unit."""


def unloaded(link: int) -> float:
    """No link is loaded."""
    return 0.0


@dataclass(frozen=True, slots=True)
class FlowKey:
    """What a switch sees of a packet. LIDs stand for IP addresses, `label` (the sender's queue pair and the like) for
    the UDP source port; the destination port and the protocol are the same for all."""

    slid: int
    dlid: int
    label: int = 0

    def digest(self, seed: int, switch: int) -> int:
        """64 bits that depend on the 5-tuple, the fabric's seed and the switch."""
        fields = (seed, switch, self.slid, self.dlid, self.label, ROCE_UDP_PORT)
        packed = b"".join(value.to_bytes(8, "little", signed=True) for value in fields)
        return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def pick_port(engine: str, ports: Sequence[tuple[int, int]], flow: FlowKey, seed: int, switch: int, load: Load) -> int:
    """One of `ports`, each given with the link that leaves by it, at switch number `switch`; of spray, the first
    packet's."""
    first = flow.digest(seed, switch) % len(ports)
    if engine != "adaptive":
        return ports[first][0]
    turned = [*ports[first:], *ports[:first]]
    return min(turned, key=lambda port: load(port[1]))[0]
