"""Protection domains (pyverbs.pd)."""

from __future__ import annotations

from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import Handle, adopt, not_offered, refused_as
from fauxrdma.compat.pyverbs_error import PyverbsUserError
from fauxrdma.verbs.cm import CMID

__all__ = ["PD", "ParentDomain", "ParentDomainContext", "ParentDomainInitAttr"]


class PD(Handle, verbs.PD, PyverbsCM):
    """A protection domain of a context. Closing it closes what was made in it."""

    _CLOSING = "Failed to dealloc PD"

    def __init__(self, creator: Any, **kwargs: Any) -> None:
        if kwargs.get("handle") is not None:
            not_offered("Failed to import PD", "import of protection domains")
        if isinstance(creator, CMID):
            creator = creator.context
        if not isinstance(creator, verbs.Context):
            raise PyverbsUserError(f"Cannot create PD from {type(creator)}")
        with refused_as("Failed to allocate PD"):
            verbs.PD.__init__(self, creator)
        adopt(creator, self)

    @property
    def ctx(self) -> verbs.Context:
        """Its context."""
        return self.context

    def advise_mr(self, advise: int, flags: int, sg_list: list[Any]) -> int:
        """Not offered: every region is pinned, so there is nothing to prefetch."""
        not_offered("Failed to advise MR", "on-demand paging")

    def unimport(self) -> None:
        """Only what was imported can be."""
        not_offered("Failed to unimport PD", "import of protection domains")


class ParentDomainContext(PyverbsObject):
    """Allocators for a parent domain."""

    def __init__(self, pd: PD, alloc_func: Any, free_func: Any, user_data: Any = None) -> None:
        self.pd = pd
        self.p_alloc = alloc_func
        self.p_free = free_func
        self.user_data = user_data


class ParentDomainInitAttr(PyverbsObject):
    """What a parent domain would be made of."""

    def __init__(self, pd: PD, pd_context: ParentDomainContext | None = None) -> None:
        self.pd = pd
        self.pd_context = pd_context
        self.comp_mask = 3 if pd_context is not None else 0


class ParentDomain(PD):
    """Not offered: PyverbsRDMAError(EOPNOTSUPP). The device takes no memory from the program."""

    def __init__(self, context: Any, attr: ParentDomainInitAttr) -> None:
        not_offered("Failed to allocate Parent Domain", "parent domains")
