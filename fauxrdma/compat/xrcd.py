"""XRC domains (pyverbs.xrcd): not offered."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import not_offered

__all__ = ["XRCD", "XRCDInitAttr"]


class XRCDInitAttr(PyverbsObject):
    """What an XRC domain would be made of."""

    def __init__(self, comp_mask: int, oflags: int, fd: int) -> None:
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = fd


class XRCD(PyverbsCM):
    """PyverbsRDMAError(EOPNOTSUPP): RC with an SRQ does what most used XRC for."""

    def __init__(self, context: Any, init_attr: XRCDInitAttr) -> None:
        not_offered("Failed to allocate XRCD", "XRC domains")
