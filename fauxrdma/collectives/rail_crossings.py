"""Which flows of a plan would leave their rail: known before anything runs, from the plan and where ranks sit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fauxrdma.collectives.plan import Plan, Put
from fauxrdma.topology.rank_places import RankPlace

__all__ = ["NodeFlow", "crossings_in_words", "flows_between_nodes"]


@dataclass(frozen=True, slots=True)
class NodeFlow:
    """What one rank sends to one of another node: `elements`, from HCA to HCA, by the name they have in the graph."""

    source: int
    target: int
    from_hca: str
    to_hca: str
    elements: int
    crosses: bool


def flows_between_nodes(
    plan: Plan, places: Sequence[RankPlace], rails: Sequence[int], node_of: Sequence[int] | None = None
) -> list[NodeFlow]:
    """The flows between nodes, by sender and receiver. `places`: of each rank, with the HCA it sends over; `rails`: the
    rail of that HCA; `node_of`: the node of each rank, if not that of its place."""
    node = [place.node for place in places] if node_of is None else node_of
    flows = []
    for rank in range(plan.world_size):
        sent: dict[int, int] = {}
        for step in plan.program(rank).steps:
            if isinstance(step, Put) and node[step.peer] != node[rank]:
                sent[step.peer] = sent.get(step.peer, 0) + step.src.count
        for peer, elements in sorted(sent.items()):
            crosses = rails[peer] != rails[rank]
            flows.append(NodeFlow(rank, peer, places[rank].hca_name, places[peer].hca_name, elements, crosses))
    return flows


def crossings_in_words(flows: Sequence[NodeFlow], most: int = 8) -> str:
    """One line: how many of the flows cross rails, how much of the data, and the `most` largest of them."""
    crossing = sorted((flow for flow in flows if flow.crosses), key=lambda flow: (-flow.elements, flow.source))
    if not flows:
        return "no flows between nodes"
    if not crossing:
        return f"{len(flows)} flows between nodes, none crosses rails"
    share = sum(flow.elements for flow in crossing) / max(1, sum(flow.elements for flow in flows))
    named = ", ".join(f"{flow.source} ({flow.from_hca}) -> {flow.target} ({flow.to_hca})" for flow in crossing[:most])
    more = f" and {len(crossing) - most} more" if len(crossing) > most else ""
    return f"{len(crossing)} of {len(flows)} flows between nodes cross rails, {share:.0%} of the data: {named}{more}"
