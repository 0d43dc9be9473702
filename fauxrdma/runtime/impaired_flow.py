"""The packets of a flow whose path loses or damages some: in place of its `PacketDealer`, which it asks first."""

from __future__ import annotations

from fauxrdma.fabric.faults import Hazards
from fauxrdma.runtime.packet_dealer import PacketDealer, mtu_bytes

__all__ = ["ImpairedFlow"]


class ImpairedFlow:
    """`rate_bps`: of the port. A flow with healthy links has none of these, so that health costs nothing."""

    __slots__ = ("_dealer", "_hazards", "_rate_bps")

    def __init__(self, hazards: Hazards, dealer: PacketDealer | None, rate_bps: int) -> None:
        self._hazards = hazards
        self._dealer = dealer
        self._rate_bps = rate_bps

    def deal(self, nbytes: int, mtu_code: int) -> bool:
        """Whether a frame is lost."""
        dead_way = self._dealer is not None and self._dealer.deal(nbytes, mtu_code)
        return dead_way or self._hazards.loses(nbytes, mtu_bytes(mtu_code))

    def extra_bytes(self, nbytes: int, mtu_code: int) -> int:
        """What the flow could have sent in the time that links take to replay a frame's damaged packets."""
        return self._hazards.replay_bytes(nbytes, mtu_bytes(mtu_code), self._rate_bps)
