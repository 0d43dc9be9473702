"""What flows would match (pyverbs.spec). The device has no flow steering, so specs only keep what they are told."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.base import PyverbsObject

__all__ = ["EspSpec", "EthSpec", "Ipv4ExtSpec", "Ipv6Spec", "Spec", "TcpUdpSpec"]

_INNER = 0x100


class Spec(PyverbsObject):
    """Base of the others, which name their fields; each field has a mask, `<field>_mask`."""

    SPEC_TYPE = 0
    FIELDS: tuple[str, ...] = ()

    def __init__(self, is_inner: bool = False, **values: Any) -> None:
        if type(self) is Spec:
            raise NotImplementedError("This class is abstract.")
        known = {name for field in self.FIELDS for name in (field, f"{field}_mask")}
        unknown = values.keys() - known
        if unknown:
            raise TypeError(
                f"{type(self).__name__} has no {', '.join(sorted(unknown))}; it has {', '.join(self.FIELDS)}"
            )
        self.spec_type = self.SPEC_TYPE | (_INNER if is_inner else 0)
        for name in known:
            setattr(self, name, values.get(name))


class EthSpec(Spec):
    """An Ethernet header."""

    SPEC_TYPE = 0x20
    FIELDS = ("dst_mac", "src_mac", "ether_type", "vlan_tag")


class Ipv4ExtSpec(Spec):
    """An IPv4 header."""

    SPEC_TYPE = 0x32
    FIELDS = ("dst_ip", "src_ip", "proto", "tos", "ttl", "flags")


class Ipv6Spec(Spec):
    """An IPv6 header."""

    SPEC_TYPE = 0x31
    FIELDS = ("dst_ip", "src_ip", "flow_label", "next_hdr", "traffic_class", "hop_limit")


class TcpUdpSpec(Spec):
    """A TCP or UDP header: `spec_type` is IBV_FLOW_SPEC_TCP or IBV_FLOW_SPEC_UDP."""

    FIELDS = ("dst_port", "src_port")

    def __init__(self, spec_type: int, is_inner: bool = False, **values: Any) -> None:
        super().__init__(is_inner, **values)
        self.spec_type |= spec_type


class EspSpec(Spec):
    """An ESP header."""

    SPEC_TYPE = 0x34
    FIELDS = ("spi", "seq")
