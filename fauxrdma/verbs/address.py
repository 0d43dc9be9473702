"""Address handles: where datagrams go."""

from __future__ import annotations

import errno
from typing import Self

from fauxrdma.abi import control_verbs as V
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr
from fauxrdma.ib.enums import WcFlags, WcStatus
from fauxrdma.ib.work import WC
from fauxrdma.verbs.memory import PD
from fauxrdma.wire.grh import Grh, gid_text

__all__ = ["AH", "GRH"]

GRH = Grh
"""The 40 bytes in front of a received datagram: `GRH.from_bytes(buffer)` reads them."""


class AH:
    """An address handle, made of an `attr`, or of a receive completion `wc` (and the `grh` of the datagram, when the
    completion has IBV_WC_GRH) to answer its sender, as ibv_create_ah_from_wc.

    Raises VerbsError: EINVAL for an address nothing can be sent to, ENOMEM at max_ah.
    """

    CLOSE_ORDER = 1

    def __init__(
        self,
        pd: PD,
        *,
        attr: AHAttr | None = None,
        wc: WC | None = None,
        grh: Grh | None = None,
        port_num: int = 1,
    ) -> None:
        if (attr is None) == (wc is None):
            raise VerbsError(errno.EINVAL, "Failed to create AH: give either attr, or wc (with its grh)")
        self.pd = pd
        self.attr = attr if attr is not None else _attr_to_answer(wc, grh, port_num)  # type: ignore[arg-type]
        request = V.CreateAh(pd.handle, V.AddressVector.of(self.attr))
        self.handle: int = pd.context._request(request, V.Created).handle
        self._closed = False
        pd.context._children.add(self)

    def close(self) -> None:
        """Destroy it: requests that name it fail from now on. Idempotent."""
        if not self._closed:
            self.pd.context._destroy("ah", self.handle)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AH({self.handle}, LID {self.attr.dlid})"


def _attr_to_answer(wc: WC, grh: Grh | None, port_num: int) -> AHAttr:
    """The address of the sender of a datagram (ibv_init_ah_from_wc)."""
    if wc.status != WcStatus.IBV_WC_SUCCESS:
        raise VerbsError(errno.EINVAL, "Failed to create AH: the completion is of an error and names no sender")
    attr = AHAttr(wc.slid, port_num, wc.sl)
    if wc.wc_flags & WcFlags.IBV_WC_GRH:
        if grh is None:
            raise VerbsError(
                errno.EINVAL, "Failed to create AH: the completion has IBV_WC_GRH, so the datagram's grh is needed"
            )
        attr.is_global = True
        attr.dgid = gid_text(grh.sgid)
        attr.hop_limit = 0xFF
        attr.traffic_class = grh.traffic_class
        attr.flow_label = grh.flow_label
    return attr
