"""What rank 0 says where NCCL_DEBUG is INFO or FAUXRDMA_DEBUG is set: the channels, in the words that NCCL's users
search its output for, and the flows of each collective that would leave their rail, before it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from fauxrdma.collectives.channelled import ChannelledPlan
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.rail_crossings import NodeFlow, crossings_in_words, flows_between_nodes
from fauxrdma.communicator.layout import Layout

__all__ = ["Announcer", "flows_of"]


def flows_of(plan: Plan | ChannelledPlan, layout: Layout) -> list[NodeFlow]:
    """The flows of `plan` between nodes, for ranks that sit so; those of all its channels."""
    node_of = {rank: number for number, ranks in enumerate(layout.nodes) for rank in ranks}
    nodes = [node_of[rank] for rank in range(plan_size(plan))]
    if isinstance(plan, Plan):
        return flows_between_nodes(plan, layout.places, layout.rails, nodes)
    rail_of = {
        (nodes[rank], place.hca): rail
        for rank, (place, rail) in enumerate(zip(layout.places, layout.rails, strict=True))
    }
    flows = []
    for part, route in zip(plan.parts, plan.routes, strict=True):
        places = [replace(place, hca=hca) for place, hca in zip(layout.places, route.hcas, strict=True)]
        rails = [rail_of[node, hca] for node, hca in zip(nodes, route.hcas, strict=True)]
        flows += flows_between_nodes(part, places, rails, nodes)
    return flows


def plan_size(plan: Plan | ChannelledPlan) -> int:
    """The number of ranks."""
    return plan.world_size if isinstance(plan, Plan) else plan.parts[0].world_size


def _say(line: str) -> None:
    print(f"fauxrdma NCCL INFO {line}", file=sys.stderr, flush=True)


class Announcer:
    """Says each thing once. `say` takes a line."""

    def __init__(self, say: Callable[[str], None] = _say) -> None:
        self._say = say
        self._said: set[tuple[str, str, int]] = set()

    def announce(self, plan: Plan | ChannelledPlan, layout: Layout) -> None:
        """Say what `plan` does, the first time that its operation runs by its algorithm over as many channels."""
        plain = tuple(range(len(layout.seats)))
        orders = [route.order for route in plan.routes] if isinstance(plan, ChannelledPlan) else [plain]
        many = len(orders)
        if (plan.name, plan.algorithm, many) in self._said:
            return
        if not any(channels == many for _, _, channels in self._said):
            for channel, order in enumerate(orders):
                self._say(f"Channel {channel:02}/{many:02} : {' '.join(map(str, order))}")
        self._said.add((plan.name, plan.algorithm, many))
        self._say(f"{plan.name} {plan.algorithm}: {crossings_in_words(flows_of(plan, layout))}")
