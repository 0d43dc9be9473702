"""The constants of librdmacm (rdma/rdma_cma.h): flat, and in classes with the names of the C enums."""

from __future__ import annotations

from typing import Any

from fauxrdma.compat.enum_table import enum_classes

_TABLE = """
rdma_cm_event_type: RDMA_CM_EVENT_ADDR_RESOLVED=0 RDMA_CM_EVENT_ADDR_ERROR=1 RDMA_CM_EVENT_ROUTE_RESOLVED=2
  RDMA_CM_EVENT_ROUTE_ERROR=3 RDMA_CM_EVENT_CONNECT_REQUEST=4 RDMA_CM_EVENT_CONNECT_RESPONSE=5
  RDMA_CM_EVENT_CONNECT_ERROR=6 RDMA_CM_EVENT_UNREACHABLE=7 RDMA_CM_EVENT_REJECTED=8 RDMA_CM_EVENT_ESTABLISHED=9
  RDMA_CM_EVENT_DISCONNECTED=10 RDMA_CM_EVENT_DEVICE_REMOVAL=11 RDMA_CM_EVENT_MULTICAST_JOIN=12
  RDMA_CM_EVENT_MULTICAST_ERROR=13 RDMA_CM_EVENT_ADDR_CHANGE=14 RDMA_CM_EVENT_TIMEWAIT_EXIT=15
  RDMA_CM_EVENT_ADDRINFO_RESOLVED=16 RDMA_CM_EVENT_ADDRINFO_ERROR=17
rdma_port_space: RDMA_PS_IPOIB=0x2 RDMA_PS_TCP=0x106 RDMA_PS_UDP=0x111 RDMA_PS_IB=0x13f
rdma_cm_join_mc_attr_mask: RDMA_CM_JOIN_MC_ATTR_ADDRESS=1 RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS=2
rdma_cm_mc_join_flags: RDMA_MC_JOIN_FLAG_FULLMEMBER=0 RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER=1
-: RAI_PASSIVE=1 RAI_NUMERICHOST=2 RAI_NOROUTE=4 RAI_FAMILY=8 RAI_SA=0x10 RAI_DNS=0x20 RDMA_OPTION_ID=0
  RDMA_OPTION_IB=1 RDMA_OPTION_ID_TOS=0 RDMA_OPTION_ID_REUSEADDR=1 RDMA_OPTION_ID_AFONLY=2
  RDMA_OPTION_ID_ACK_TIMEOUT=3
"""

_members, _classes = enum_classes(_TABLE)
globals().update(_members)
globals().update(_classes)

__all__ = [*_members, *_classes]


def __getattr__(name: str) -> Any:
    """For type checkers: the names are made from the table."""
    raise AttributeError(f"librdmacm has no constant {name}")
