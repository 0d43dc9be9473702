"""Sums by group."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["sums"]


def sums(group: NDArray[np.intp], values: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """The sum of `values` over each of the `groups`, where `group` says which one a value is in."""
    return np.asarray(np.bincount(group, values, minlength=groups), dtype=np.float64)
