"""What each asynchronous event is about (IBTA vol. 1, 11.6.3; the ibv_get_async_event man page)."""

from __future__ import annotations

from fauxrdma.ib.enums import AsyncEventType as E

__all__ = ["PORT_EVENTS", "event_element"]

PORT_EVENTS = frozenset(
    (
        E.IBV_EVENT_PORT_ACTIVE,
        E.IBV_EVENT_PORT_ERR,
        E.IBV_EVENT_LID_CHANGE,
        E.IBV_EVENT_PKEY_CHANGE,
        E.IBV_EVENT_SM_CHANGE,
        E.IBV_EVENT_CLIENT_REREGISTER,
        E.IBV_EVENT_GID_CHANGE,
    )
)
"""Unaffiliated: every application that opened the HCA hears of them; the element is the port number."""

_QUEUES = {
    E.IBV_EVENT_CQ_ERR: "cq",
    E.IBV_EVENT_SRQ_ERR: "srq",
    E.IBV_EVENT_SRQ_LIMIT_REACHED: "srq",
}


def event_element(kind: int) -> str:
    """The kind of queue an event is about: qp, cq or srq; empty for events of a port or the device."""
    if kind in PORT_EVENTS or kind == E.IBV_EVENT_DEVICE_FATAL:
        return ""
    return _QUEUES.get(E(kind), "qp")
