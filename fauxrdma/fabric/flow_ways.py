"""Which way each flow goes: on Ethernet what the switches chose for it, elsewhere what the tables say.

A flow is (source LID, destination LID, label); the label tells queue pairs apart where switches do (Ethernet), and is 0
elsewhere. ecmp and spray follow from the flow alone, which has a whole cycle of ways when it is sprayed. Adaptive
routing chooses anew whenever a flow begins a *flowlet*, that is, sends again after all it had sent has arrived (Kandula
et al., "Dynamic load balancing without packet reordering", 2007): so packets of one flow never overtake each other. The
choice is kept until the next.
"""

from __future__ import annotations

from fauxrdma.fabric.routing import FlowKey, Load
from fauxrdma.fabric.subnet import Path, SubnetManager

__all__ = ["Flow", "FlowWays"]

Flow = tuple[int, int, int]
"""Source LID, destination LID, label."""


class FlowWays:
    """The ways of one subnet manager's flows, by the routes in force."""

    def __init__(self, manager: SubnetManager) -> None:
        self._manager = manager
        self._chosen: dict[Flow, Path] = {}

    def path(self, flow: Flow) -> Path:
        """The way of a flow; of one that adaptive routing has not chosen for yet, what it would choose with nothing
        loaded. Raises FabricUnhealthy when there is none, and for a LID that is not an HCA's."""
        chosen = self._chosen.get(flow)
        if chosen is None:
            chosen = self._manager.flow_path(FlowKey(*flow))
            if chosen.ways:  # much work, and always the same
                self._chosen[flow] = chosen
        return chosen

    def begin(self, flow: Flow, load: Load, *, flowlet: bool) -> Path:
        """A flow begins to send; `flowlet`: nothing of it was under way. `load` says how loaded a link is. Raises
        FabricUnhealthy as `path` does."""
        if self._manager.routes.engine != "adaptive":
            return self.path(flow)
        chosen = self._chosen.get(flow)
        if chosen is None or flowlet:
            chosen = self._chosen[flow] = self._manager.flow_path(FlowKey(*flow), load)
        return chosen

    def forget(self, flow: Flow) -> None:
        """A flow is gone."""
        self._chosen.pop(flow, None)

    def clear(self) -> None:
        """New routes are in force: every flow is chosen for anew."""
        self._chosen.clear()
