"""Enhanced transmission selection (IEEE 802.1Qaz): each egress serves its priorities by deficit round robin.

In a fluid, rounds of deficit round robin are weighted max-min sharing: every class with something to send gets its
weight's part of the link, and what one leaves the others share in the same way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["share_links"]

Floats = NDArray[np.float64]


def share_links(budget: Floats, wanted: Floats, weights: Floats, link_of: NDArray[np.intp], *, classes: bool) -> Floats:
    """What each of K classes may send. `budget`: (L,) bytes per link; `wanted`, `weights`: (K,); `link_of`: (K,), the
    link of a class. `classes`: whether any link has more than one. Returns (K,)."""
    if not classes:
        return np.minimum(wanted, budget[link_of])
    granted = np.zeros_like(wanted)
    left = budget.copy()
    active = wanted > 0
    while active.any():
        load = np.bincount(link_of, weights * active, minlength=len(budget))
        with np.errstate(divide="ignore", invalid="ignore"):
            part = weights * (left / load)[link_of]
        content = active & (wanted <= part)
        if not content.any():
            granted[active] = part[active]
            break
        granted[content] = wanted[content]
        left = np.maximum(left - np.bincount(link_of, wanted * content, minlength=len(budget)), 0.0)
        active &= ~content
    return granted
