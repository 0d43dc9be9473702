"""Weighted max-min fair rates, vectorised: the numbers of the tier-0 model.

Local-bottleneck filling (REFERENCE C). Every link offers its flows the level `s_l = rem_l / W_l`, its remaining
capacity over the sum of the weights of its active flows (of a flow that is split over several ways, its weight times
the part of it that crosses the link). A flow's level is the least of its links' levels. A link all
of whose active flows have its own level is a local bottleneck: nobody on it can ever get more, so those flows are
frozen at `w_f s_l` and their rates leave the remaining capacities. The link with the least level overall always is one,
so each round freezes something; usually a round freezes most.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["max_min_rates"]


def max_min_rates(
    capacity: NDArray[np.float64],
    links: NDArray[np.intp],
    weights: NDArray[np.float64],
    shares: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Rates of F flows over L links, in the unit of `capacity`.

    `capacity`: (L,), positive. `links`: (F, H) link indices of each flow's path, short paths padded with L; every flow
    crosses at least one link; one that it crosses twice carries it twice. `weights`: (F,), positive. `shares`: (F, H),
    what part of the flow crosses that link, positive; all of it unless given. Returns (F,).
    """
    count = len(capacity)
    rates = np.zeros(len(weights))
    remaining = np.append(capacity, np.inf)  # the padding link never limits
    rows = np.arange(len(weights))
    parts = np.ones(links.shape) if shares is None else shares
    while len(rows):
        flat = links.ravel()
        load = np.bincount(flat, (weights[:, None] * parts).ravel(), minlength=count + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            offer = remaining / load
        offer[count] = np.inf
        offers = offer[links]
        level = offers.min(axis=1)
        # A link is no bottleneck (yet) if one of its flows is held below its offer by another link.
        held_elsewhere = np.bincount(flat, (offers > level[:, None]).ravel(), minlength=count + 1)
        bottleneck = held_elsewhere == 0
        bottleneck[count] = False
        frozen = bottleneck[links].any(axis=1)
        share = weights[frozen] * level[frozen]
        rates[rows[frozen]] = share
        taken = np.bincount(links[frozen].ravel(), (share[:, None] * parts[frozen]).ravel(), minlength=count + 1)
        remaining[:count] = np.maximum(remaining[:count] - taken[:count], 0.0)
        keep = ~frozen
        rows, links, weights, parts = rows[keep], links[keep], weights[keep], parts[keep]
    return rates
