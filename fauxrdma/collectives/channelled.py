"""One collective over several channels: a plan for each, over its part of the data and around its own ring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from fauxrdma.collectives.algorithms import NEED_NODES, plan_for
from fauxrdma.collectives.channels import ChannelRoute, on_channel, split_evenly
from fauxrdma.collectives.plan import Plan
from fauxrdma.collectives.request import Request

__all__ = ["LEAST_CHANNEL_BYTES", "ChannelledPlan", "over_channels"]

LEAST_CHANNEL_BYTES = 16 << 10
"""A part is not made smaller than this for the sake of another channel: a message costs more than it gains."""

_PER_RANK = {
    "all_reduce": frozenset[str](),
    "broadcast": frozenset[str](),
    "reduce": frozenset[str](),
    "reduce_scatter": frozenset({"input"}),
    "all_gather": frozenset({"output"}),
}
"""The operations that are cut, each with the buffers that have a block for every rank."""


@dataclass(frozen=True)
class ChannelledPlan:
    """`parts[c]` runs on channel c, whose way is `routes[c]`. Together they are the collective `name`."""

    parts: tuple[Plan, ...]
    routes: tuple[ChannelRoute, ...]

    @property
    def name(self) -> str:
        """The operation."""
        return self.parts[0].name

    @property
    def algorithm(self) -> str:
        """What each channel runs."""
        return self.parts[0].algorithm


@lru_cache(maxsize=256)
def over_channels(request: Request, algorithm: str | None, routes: tuple[ChannelRoute, ...]) -> ChannelledPlan | None:
    """The plan for `request` by `algorithm` on `routes`, or on the first of them where there is little data.

    None for what is not cut: operations that are no rings or trees over all ranks, algorithms that go by nodes (they
    use all HCAs already), plans of files, and blocks of different sizes. Raises LocalProtocolError as `plan_for`.
    """
    per_rank = _PER_RANK.get(request.operation)
    if per_rank is None or algorithm in NEED_NODES or (algorithm or "").startswith("file:"):
        return None
    if not isinstance(request.counts, int) and len(set(request.blocks)) != 1:
        return None
    n = request.world_size
    if not 0 <= request.root < n:
        plan_for(request, algorithm)  # says so
    count = request.counts if isinstance(request.counts, int) else request.blocks[0]
    many = max(1, min(len(routes), count * request.itemsize // LEAST_CHANNEL_BYTES))
    parts = []
    for route, (start, length) in zip(routes, split_evenly(count, many), strict=False):
        counts = length if isinstance(request.counts, int) else (length,) * n
        root = route.order.index(request.root)
        plan = plan_for(replace(request, counts=counts, root=root), algorithm)
        buffers = {name: count * n if name in per_rank else count for name in plan.buffers}
        parts.append(on_channel(plan, route.order, start, buffers, per_rank))
    return ChannelledPlan(tuple(parts), routes[:many])
