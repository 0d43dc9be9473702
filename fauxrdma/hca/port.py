"""The port of an HCA as its queue pairs see it: address, MTU, and the count of what it dropped."""

from __future__ import annotations

from dataclasses import dataclass, field

from fauxrdma.ib.enums import GidType

__all__ = ["Port", "PortCounters"]


@dataclass(slots=True)
class PortCounters:
    """Datagrams dropped since the start, by reason. Q_Key violations are IBTA's counter (vol. 1, 14.2.5.6)."""

    qkey_violations: int = 0
    no_receive: int = 0
    receive_too_short: int = 0
    wrong_address: int = 0
    no_queue_pair: int = 0


@dataclass(slots=True)
class Port:
    """Port 1. `gids` is its GID table, 16 bytes and a type each; `mtu` is in bytes and bounds a datagram."""

    lid: int
    gids: list[tuple[bytes, GidType]] = field(default_factory=lambda: [(bytes(16), GidType.IBV_GID_TYPE_IB)])
    mtu: int = 4096
    counters: PortCounters = field(default_factory=PortCounters)

    @property
    def ethernet(self) -> bool:
        """Whether its link layer is Ethernet, where applications see no LIDs."""
        return self.gids[0][1] != GidType.IBV_GID_TYPE_IB
