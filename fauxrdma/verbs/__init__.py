"""The application's verbs: open a device, register memory, make queue pairs, post and poll. Shaped like pyverbs."""

from fauxrdma.ib.attributes import AHAttr, DeviceAttr, PortAttr, QPAttr, QPCap, SrqAttr
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.verbs.completion import CQ, CompChannel
from fauxrdma.verbs.device import AsyncEvent, Context, get_device_list, list_node
from fauxrdma.verbs.memory import MR, PD
from fauxrdma.verbs.queue_pair import QP, QPInitAttr
from fauxrdma.verbs.shared_receive import SRQ, SrqInitAttr

__all__ = [
    "CQ",
    "MR",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "AHAttr",
    "AsyncEvent",
    "CompChannel",
    "Context",
    "DeviceAttr",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "QPInitAttr",
    "RecvWR",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "get_device_list",
    "list_node",
]
