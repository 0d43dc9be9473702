"""A collective cut over channels: each does the same over its slice of the data, around another ring, over other HCAs.

One queue pair uses one HCA; with several channels all HCAs of a node carry a part. The **cross-NIC policy** says which
HCAs the ring of a channel may use, as NCCL_CROSS_NIC does:

- 0, the same: on a channel every rank uses the HCA of its node that the channel is for. Traffic between nodes stays on
  its rail; a rank may have to reach an HCA that is not beside its GPU.
- 1, any: each rank uses its own HCA. The ring comes into a node at the rank on the channel's HCA and leaves it at the
  one before, so it changes rails between any two nodes: for fabrics that do not mind.
- 2, the same if possible: each rank uses its own HCA. Channels come in pairs that go through a node in opposite
  directions, in by the HCA of one and out by that of the other, and odd nodes swap the two: what leaves a node on one
  rail comes into the next on the same. A ring of an odd number of nodes cannot close so; in the last node both its ends
  use one HCA, as with 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fauxrdma.collectives.embedding import Region, embedded_plan
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.rail_order import Nodes, align_rails
from fauxrdma.errors import LocalProtocolError

__all__ = ["ANY_NIC", "PREFER_SAME_NIC", "SAME_NIC", "ChannelRoute", "channel_routes", "on_channel", "split_evenly"]

SAME_NIC, ANY_NIC, PREFER_SAME_NIC = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ChannelRoute:
    """The way of one channel: the ranks in the order of its ring, and the HCA (index from 1) of each, by rank."""

    order: tuple[int, ...]
    hcas: tuple[int, ...]


def channel_routes(
    nodes: Nodes, hcas: Sequence[int], rails: Sequence[int], channels: int, cross_nic: int
) -> tuple[ChannelRoute, ...]:
    """The routes of `channels` channels. `nodes`: the ranks of each node; `hcas`: each rank's own HCA (index from 1)
    and `rails` its rail, by rank; `cross_nic`: the policy.

    A node's HCAs are those of its ranks; all nodes use as many as the one with the fewest has. More channels than that
    share them. Raises LocalProtocolError for a policy that does not exist or fewer than one channel.
    """
    if cross_nic not in (SAME_NIC, ANY_NIC, PREFER_SAME_NIC) or channels < 1:
        raise LocalProtocolError(f"{channels} channels with cross-NIC policy {cross_nic}: at least 1, and 0, 1 or 2")
    aligned = align_rails(nodes, rails)
    firsts = [_first_on_each_hca(ranks, hcas) for ranks in aligned]
    width = min(map(len, firsts))
    routes = []
    for channel in range(channels):
        order: list[int] = []
        used = list(hcas)
        for number, (ranks, first) in enumerate(zip(aligned, firsts, strict=True)):
            enter = leave = first[channel % width]
            if cross_nic == PREFER_SAME_NIC:
                pair = channel // 2 * 2
                ends = first[pair % width], first[(pair + 1) % width]
                swapped = (channel + number) % 2
                enter, leave = ends[swapped], ends[1 - swapped]
                if number == len(nodes) - 1 and len(nodes) % 2:
                    leave = enter
            through = _through(ranks, enter, leave)
            order += through
            if leave == enter and cross_nic != ANY_NIC:
                for rank in through:
                    used[rank] = hcas[enter]
        routes.append(ChannelRoute(tuple(order), tuple(used)))
    return tuple(routes)


def _first_on_each_hca(ranks: Sequence[int], hcas: Sequence[int]) -> list[int]:
    first: dict[int, int] = {}
    for rank in ranks:
        first.setdefault(hcas[rank], rank)
    return list(first.values())


def _through(ranks: Sequence[int], enter: int, leave: int) -> list[int]:
    """All `ranks`, from `enter` on, cyclically; `leave` last if it is another one."""
    at = list(ranks).index(enter)
    path = [*ranks[at:], *ranks[:at]]
    if leave != enter:
        path.remove(leave)
        path.append(leave)
    return path


def split_evenly(count: int, parts: int) -> list[tuple[int, int]]:
    """(start, length) of `parts` parts of `count` elements; the first ones are one longer where it does not divide."""
    each, more = divmod(count, parts)
    return [(i * each + min(i, more), each + (i < more)) for i in range(parts)]


def on_channel(
    plan: Plan, order: Sequence[int], start: int, buffers: Mapping[str, int], per_rank: frozenset[str] = frozenset()
) -> Plan:
    """`plan`, made for one channel's part, around the ring `order`, within the whole `buffers`.

    The plan's part of each block begins at element `start`. A buffer in `per_rank` consists of one block for each rank,
    in rank order; the others of one block. A plan with a root has the root's position in `order` for it.
    """
    n = plan.world_size
    regions = {}
    for name, length in buffers.items():
        part = plan.lengths(0)[name]
        if name in per_rank:
            regions[name] = Region(name, part // n, [rank * (length // n) + start for rank in order])
        else:
            regions[name] = Region(name, part, [start])
    placed = embedded_plan(plan, order, buffers, lambda rank: regions)
    if list(order) == sorted(order):
        return placed
    return replace(placed, reduction_order=f"{plan.reduction_order}; x[i] is that of the i-th of {_listed(order)}")


def _listed(order: Sequence[int]) -> str:
    return " ".join(map(str, order))
