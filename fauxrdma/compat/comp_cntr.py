"""Completion counters (pyverbs.comp_cntr): not offered."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered

__all__ = ["CompCntr", "CompCntrInitAttr"]


class CompCntrInitAttr(PyverbsObject):
    """What a completion counter would be made of."""

    def __init__(self, comp_mask: int = 0, cntr_type: int = 0, flags: int = 0) -> None:
        self.comp_mask = comp_mask
        self.cntr_type = cntr_type
        self.flags = flags


class CompCntr(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP)."""

    def __init__(self, ctx: Any, attr: CompCntrInitAttr) -> None:
        not_offered("Failed to create comp_cntr", "completion counters")
