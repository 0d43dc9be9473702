"""Connections as with librdmacm, in the shape of pyverbs' cmid module: listen, connect, accept, reject, disconnect."""

from fauxrdma.verbs.cm.cmid import CMID
from fauxrdma.verbs.cm.events import CMEvent, CMEventChannel
from fauxrdma.verbs.cm.parameters import AddrInfo, ConnParam, EventType, PortSpace, UDParam

__all__ = ["CMID", "AddrInfo", "CMEvent", "CMEventChannel", "ConnParam", "EventType", "PortSpace", "UDParam"]
