"""A GPU's port to the other GPUs of its node, as a pair of queues: what it sends leaves one message after the other,
what is sent to it arrives one after the other.

NVLink through NVSwitches has no other bottleneck: the switches carry whatever the ports send. So sender and receiver
need no third party to agree on when a message is there: the sender stamps when it began to leave, the receiver adds the
way and the queue at its own port. Where two GPUs meet over PCIe the narrowest link of the way stands for both ports.
"""

from __future__ import annotations

__all__ = ["PeerPort"]


class PeerPort:
    """The port of one GPU. Times are fabric ns, `bytes_per_ns` is the port's payload rate in each direction."""

    __slots__ = ("_egress_free_ns", "_ingress_free_ns")

    def __init__(self) -> None:
        self._egress_free_ns = 0
        self._ingress_free_ns = 0

    def send(self, now_ns: int, nbytes: int, bytes_per_ns: float) -> int:
        """A message is put at `now_ns`: when it begins to leave."""
        begins = max(now_ns, self._egress_free_ns)
        self._egress_free_ns = begins + round(nbytes / bytes_per_ns)
        return begins

    def receive(self, begun_ns: int, nbytes: int, bytes_per_ns: float, latency_ns: int) -> int:
        """A message that began to leave its sender at `begun_ns`: when its last byte is here. Call once per message, in
        the order they arrive."""
        done = max(begun_ns + latency_ns, self._ingress_free_ns) + round(nbytes / bytes_per_ns)
        self._ingress_free_ns = done
        return done
