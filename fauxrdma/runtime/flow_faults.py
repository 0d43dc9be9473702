"""What faults on its path do to a flow: packets are lost and damaged (`ImpairedFlow`), or held (`HeldLink`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fauxrdma.fabric.faults.hazards import Hazards, LinkErrorCounts
from fauxrdma.runtime.flows import Flow
from fauxrdma.runtime.impaired_flow import ImpairedFlow
from fauxrdma.runtime.peer_links import HeldLink, PeerLink
from fauxrdma.runtime.traffic_meter import TrafficMeter
from fauxrdma.wire.fabric_messages import PathAnswer

__all__ = ["FlowFaults"]


class FlowFaults:
    """Those of one daemon's flows. `errors` counts what links did to packets; `seed` is what chance depends on."""

    def __init__(self, meter: TrafficMeter, seed: str, now_ns: Callable[[], int]) -> None:
        self._meter = meter
        self._now_ns = now_ns
        self.errors = LinkErrorCounts(seed)

    def heed(self, flow: Flow, path: PathAnswer) -> None:
        """Have the flow's packets dealt over the ways of its path, if it has several, lost and damaged where links do
        that, and held where they are paused."""
        dealer = self._meter.dealer(*flow.key, path.ways, path.lost_ways) if path.ways > 1 else None
        flow.dealer = dealer
        if path.hazards:
            hazards = Hazards(path.hazards, self.errors, replays=not flow.hca.port.ethernet)
            flow.dealer = ImpairedFlow(hazards, dealer, flow.hca.info.rate_bps)
        flow.paused = bool(path.stopped) and flow.priority in path.stopped

    def link_of(self, flow: Flow, usual: PeerLink | None) -> PeerLink | None:
        """Where the flow's frames go now: the usual link, or one that holds them."""
        if not flow.paused:
            return usual
        return flow.link if type(flow.link) is HeldLink else HeldLink(self._now_ns)

    @staticmethod
    def held(flows: Iterator[Flow]) -> list[HeldLink]:
        """The links that hold frames of these flows."""
        return [flow.link for flow in flows if type(flow.link) is HeldLink]
