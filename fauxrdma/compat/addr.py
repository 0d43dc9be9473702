"""Addresses (pyverbs.addr)."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
from typing import Any

from fauxrdma import verbs
from fauxrdma.compat.base import PyverbsCM, PyverbsObject
from fauxrdma.compat.handles import Handle, adopt, refused_as
from fauxrdma.compat.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from fauxrdma.compat.utils import gid_str_to_array, table
from fauxrdma.errors import RemoteProtocolError
from fauxrdma.ib import attributes as ib
from fauxrdma.wire.grh import GRH_BYTES, Grh, gid_text

__all__ = ["AH", "GID", "GRH", "AHAttr", "GlobalRoute"]


class GID(PyverbsObject):
    """16 bytes, as text of eight words of four digits. Raises PyverbsUserError for other text."""

    def __init__(self, val: str | None = None) -> None:
        self.raw = bytes(16)
        if val is not None:
            self.gid = val

    @classmethod
    def of(cls, text: str) -> GID:
        """From any way of writing an IPv6 address."""
        gid = cls()
        gid.raw = ipaddress.IPv6Address(text).packed
        return gid

    @property
    def gid(self) -> str:
        """The eight words."""
        return gid_text(self.raw)

    @gid.setter
    def gid(self, val: str) -> None:
        self.raw = bytes.fromhex("".join(gid_str_to_array(val)))

    def __str__(self) -> str:
        return self.gid


class GRH(PyverbsObject):
    """A global route header, to make an AH of a completion. `version_tclass_flow` and `paylen` are in network order."""

    def __init__(
        self,
        sgid: GID | None = None,
        dgid: GID | None = None,
        version_tclass_flow: int = 0,
        paylen: int = 0,
        next_hdr: int = 0,
        hop_limit: int = 1,
    ) -> None:
        self.sgid = (sgid or GID()).gid
        self.dgid = (dgid or GID()).gid
        self.version_tclass_flow = version_tclass_flow
        self.paylen = paylen
        self.next_hdr = next_hdr
        self.hop_limit = hop_limit

    def header(self) -> Grh:
        """What it says."""
        first = int.from_bytes(self.version_tclass_flow.to_bytes(4, "little"), "big")
        return Grh(
            GID(self.sgid).raw,
            GID(self.dgid).raw,
            hop_limit=self.hop_limit,
            traffic_class=first >> 20 & 0xFF,
            flow_label=first & 0xFFFFF,
        )

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "DGID": self.dgid,
            "SGID": self.sgid,
            "version tclass flow": self.version_tclass_flow,
            "paylen": self.paylen,
            "next header": self.next_hdr,
            "hop limit": self.hop_limit,
        }
        return table(rows)


class GlobalRoute(PyverbsObject):
    """What the GRH of packets will say (struct ibv_global_route)."""

    def __init__(
        self,
        dgid: GID | None = None,
        flow_label: int = 0,
        sgid_index: int = 0,
        hop_limit: int = 1,
        traffic_class: int = 0,
    ) -> None:
        self.dgid = (dgid or GID()).gid
        self.flow_label = flow_label
        self.sgid_index = sgid_index
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "DGID": self.dgid,
            "flow label": self.flow_label,
            "sgid index": self.sgid_index,
            "hop limit": self.hop_limit,
            "traffic class": self.traffic_class,
        }
        return table(rows)


class AHAttr(PyverbsObject, ib.AHAttr):
    """An address vector (struct ibv_ah_attr), with pyverbs' arguments. With `is_global` a `gr` must be given."""

    def __init__(
        self,
        dlid: int = 0,
        sl: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        is_global: int = 0,
        port_num: int = 1,
        gr: GlobalRoute | None = None,
    ) -> None:
        ib.AHAttr.__init__(
            self, dlid, port_num, sl, is_global=bool(is_global), src_path_bits=src_path_bits, static_rate=static_rate
        )
        if not is_global:
            return
        if gr is None:
            raise PyverbsUserError("Global AH Attr is created but gr parameter is None")
        self.dgid, self.flow_label, self.sgid_index = gr.dgid, gr.flow_label, gr.sgid_index
        self.hop_limit, self.traffic_class = gr.hop_limit, gr.traffic_class

    @classmethod
    def of(cls, attr: ib.AHAttr) -> AHAttr:
        """The same in pyverbs' shape."""
        made = cls()
        for name in ib.AHAttr.__dataclass_fields__:
            setattr(made, name, getattr(attr, name))
        if made.is_global:
            made.dgid = GID.of(attr.dgid).gid
        return made

    def __str__(self) -> str:
        rows: dict[str, object] = {
            "port num": self.port_num,
            "sl": self.sl,
            "source path bits": self.src_path_bits,
            "dlid": self.dlid,
            "static rate": self.static_rate,
            "is global": int(self.is_global),
        }
        if self.is_global:
            rows |= {
                "dgid": self.dgid,
                "flow label": self.flow_label,
                "sgid index": self.sgid_index,
                "hop limit": self.hop_limit,
                "traffic_class": self.traffic_class,
            }
        return table(rows, indent="  ")


class AH(Handle, verbs.AH, PyverbsCM):
    """An address handle: of an `attr`, or to answer a datagram: `wc`, and `grh`, the address of the 40 bytes in front
    of it in the receive buffer (or a GRH). Raises PyverbsRDMAError, on Ethernet EINVAL without a global route."""

    _CLOSING = "Failed to destroy AH"

    def __init__(self, pd: Any, **kwargs: Any) -> None:
        with refused_as("Failed to create AH"):
            if "attr" in kwargs:
                verbs.AH.__init__(self, pd, attr=kwargs["attr"])
            else:
                grh = _header(kwargs.get("grh"))
                verbs.AH.__init__(self, pd, wc=kwargs["wc"], grh=grh, port_num=kwargs.get("port_num", 1))
        adopt(pd, self)


def _header(grh: GRH | int | None) -> Grh | None:
    if isinstance(grh, GRH):
        return grh.header()
    if not grh:
        return None
    try:
        return Grh.from_bytes(ctypes.string_at(grh, GRH_BYTES))
    except RemoteProtocolError as error:
        raise PyverbsRDMAError(f"Failed to create AH: at 0x{grh:x} {error}", errno.EINVAL) from None
