"""HCA profiles: what a kind of adapter can do, and where it differs from the letter of the IBTA specification.

The default, `ibta`, follows the specification wherever devices differ. The others take their limits from what
`ibv_devinfo -v` prints for such an adapter and their differences from public reports (REFERENCE A6): a program that
passes under all of them does not lean on one vendor's habits.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fauxrdma.errors import ConfigError
from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.units import Rate

__all__ = ["DEFAULT_PROFILE", "PROFILES", "HcaProfile", "parse_profile"]


@dataclass(frozen=True, slots=True)
class HcaProfile:
    """Limits (`attributes`) and habits of an adapter; `spec` is what :func:`parse_profile` made it from.

    - `port_rate_gbps`: the fastest its port signals, in Gb/s; 0: as fast as any cable. A cable between two ports runs
      at the slower one's rate.
    - `missing_access_is_invalid_request`: an operation that the queue pair's access flags lack is answered by "invalid
      request" (REM_INV_REQ_ERR) and not by "remote access error" (REM_ACCESS_ERR).
    - `big_endian_atomic_replies`: the original value of an atomic arrives in big-endian order.
    - `last_wqe_event`: IBV_EVENT_QP_LAST_WQE_REACHED is raised.
    - `writes_overtake_reads`: a READ with more behind it may be answered late, so that an unfenced WRITE behind it is
      seen in what it reads: allowed to every device, and a bug in programs that count on the opposite. Which ones is
      chosen by the fabric's seed.
    - `write_bytes_in_order`: the bytes of a WRITE land in the order of addresses, the last byte last, as programs that
      poll it expect. Without, some WRITEs of several packets, chosen by the fabric's seed, have their first bytes last.
    - `inline_errno`: what post_send says of more inline data than the queue pair takes (EINVAL or ENOMEM).
    - `memlock_bytes`: how many bytes may be registered at a time, all regions together (ENOMEM beyond); 0: no limit.
    """

    spec: str
    attributes: DeviceAttr = field(default_factory=DeviceAttr)
    port_rate_gbps: int = 0
    missing_access_is_invalid_request: bool = False
    big_endian_atomic_replies: bool = False
    last_wqe_event: bool = True
    writes_overtake_reads: bool = True
    write_bytes_in_order: bool = False
    inline_errno: int = errno.EINVAL
    memlock_bytes: int = 0

    @property
    def port_rate(self) -> Rate | None:
        """The fastest its port signals, or None: as fast as any cable."""
        return Rate.gbps(self.port_rate_gbps) if self.port_rate_gbps > 0 else None

    def device_attributes(self, guid: int) -> DeviceAttr:
        """The attributes of one device of this kind."""
        return replace(self.attributes, node_guid=guid, sys_image_guid=guid)


_IBTA = DeviceAttr()


def _mellanox(spec: str, rate_gbps: int, part: int, fw_ver: str, max_qp: int) -> HcaProfile:
    return HcaProfile(
        spec,
        replace(
            _IBTA,
            fw_ver=fw_ver,
            vendor_id=0x02C9,
            vendor_part_id=part,
            max_qp_wr=32768,
            max_sge=30,
            max_sge_rd=30,
            max_srq_sge=31,
            max_cq=1 << 24,
            max_cqe=(1 << 22) - 1,
            max_mr=1 << 24,
            max_mw=1 << 24,
            max_pd=1 << 24,
            max_srq=1 << 23,
            max_srq_wr=32767,
            local_ca_ack_delay=16,
            max_qp=max_qp,
        ),
        port_rate_gbps=rate_gbps,
        missing_access_is_invalid_request=True,
        write_bytes_in_order=True,
        inline_errno=errno.ENOMEM,
    )


PROFILES: dict[str, HcaProfile] = {
    "ibta": HcaProfile("ibta", _IBTA),
    "cx4-edr": replace(_mellanox("cx4-edr", 100, 4115, "12.28.2006", max_qp=131072), big_endian_atomic_replies=True),
    "cx6-hdr": _mellanox("cx6-hdr", 200, 4123, "20.35.1012", max_qp=262144),
    "cx7-ndr": _mellanox("cx7-ndr", 400, 4129, "28.39.1002", max_qp=131072),
    "cx8-xdr": _mellanox("cx8-xdr", 800, 4131, "40.44.1036", max_qp=262144),
    "rxe-like": HcaProfile(
        "rxe-like",
        replace(
            _IBTA,
            fw_ver="0.0.0",
            vendor_id=0xFFFFFF,
            vendor_part_id=0,
            max_qp=0x100000 - 16,
            max_qp_wr=0x100000 // 64,
            max_sge=32,
            max_sge_rd=32,
            max_srq_sge=27,
            max_cqe=(1 << 15) - 1,
            max_qp_rd_atom=128,
            max_qp_init_rd_atom=128,
            max_inline_data=512,
            num_comp_vectors=1,
        ),
        missing_access_is_invalid_request=True,
        last_wqe_event=False,
        write_bytes_in_order=True,
    ),
}
"""Every profile by name."""

DEFAULT_PROFILE = "ibta"

_HABITS: dict[str, type] = {f.name: type(getattr(PROFILES["ibta"], f.name)) for f in fields(HcaProfile)[2:]}
_LIMITS = {f.name: type(getattr(_IBTA, f.name)) for f in fields(DeviceAttr)}
_SWITCH = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def parse_profile(spec: str) -> HcaProfile:
    """The profile that ``NAME[,FIELD=VALUE...]`` describes: a named one with fields of :class:`HcaProfile` or
    :class:`DeviceAttr` changed, such as ``cx6-hdr,max_qp=4,last_wqe_event=no``; `inline_errno` takes EINVAL or ENOMEM.

    Raises ConfigError for an unknown name, field or value.
    """
    name, *changes = (part.strip() for part in spec.split(","))
    base = PROFILES.get(name)
    if base is None:
        raise ConfigError(f"there is no HCA profile {name!r}: choose {', '.join(PROFILES)}")
    habits: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    for change in changes:
        key, equals, text = (part.strip() for part in change.partition("="))
        known = _HABITS.get(key) or _LIMITS.get(key)
        if not equals or known is None:
            raise ConfigError(
                f"HCA profile {spec!r}: {change!r} is not FIELD=VALUE with one of {', '.join((*_HABITS, *_LIMITS))}"
            )
        (habits if key in _HABITS else limits)[key] = _value(spec, key, text, known)
    return replace(base, spec=spec, attributes=replace(base.attributes, **limits), **habits)


def _value(spec: str, key: str, text: str, kind: type) -> Any:
    try:
        if key == "inline_errno":
            return {"EINVAL": errno.EINVAL, "ENOMEM": errno.ENOMEM}[text]
        if kind is bool:
            return _SWITCH[text]
        return text if kind is str else kind(int(text, 0))
    except (KeyError, ValueError):
        raise ConfigError(f"HCA profile {spec!r}: {key} cannot be {text!r}") from None
