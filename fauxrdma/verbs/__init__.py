"""The application's verbs: open a device, register memory, make queue pairs, post and poll. Shaped like pyverbs."""

from fauxrdma.ib.attributes import AHAttr, DeviceAttr, PortAttr, QPAttr, QPCap, SrqAttr
from fauxrdma.ib.gids import GIDEntry
from fauxrdma.ib.work import SGE, WC, RecvWR, SendWR
from fauxrdma.verbs.address import AH, GRH
from fauxrdma.verbs.completion import CQ, CompChannel
from fauxrdma.verbs.device import AsyncEvent, Context, get_device_list, list_node
from fauxrdma.verbs.device_memory import DM, DMMR, AllocDmAttr
from fauxrdma.verbs.extended_cq import CQEX, CqInitAttrEx, PollCqAttr
from fauxrdma.verbs.extended_qp import DataBuffer, QPEx, QPInitAttrEx
from fauxrdma.verbs.memory import MR, PD, DmaBuf, DmaBufMR
from fauxrdma.verbs.memory_windows import MW, MWBind, MWBindInfo, inc_rkey
from fauxrdma.verbs.queue_pair import QP, QPInitAttr
from fauxrdma.verbs.shared_receive import SRQ, SrqInitAttr

__all__ = [
    "AH",
    "CQ",
    "CQEX",
    "DM",
    "DMMR",
    "GRH",
    "MR",
    "MW",
    "PD",
    "QP",
    "SGE",
    "SRQ",
    "WC",
    "AHAttr",
    "AllocDmAttr",
    "AsyncEvent",
    "CompChannel",
    "Context",
    "CqInitAttrEx",
    "DataBuffer",
    "DeviceAttr",
    "DmaBuf",
    "DmaBufMR",
    "GIDEntry",
    "MWBind",
    "MWBindInfo",
    "PollCqAttr",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "QPEx",
    "QPInitAttr",
    "QPInitAttrEx",
    "RecvWR",
    "SendWR",
    "SrqAttr",
    "SrqInitAttr",
    "get_device_list",
    "inc_rkey",
    "list_node",
]
