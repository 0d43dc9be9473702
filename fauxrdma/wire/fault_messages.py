"""Messages about faults: what to do to the fabric, what became of it, and what daemons need to know (as in
`fauxrdma.wire.fabric_messages`)::

    lab                             subnet manager
      FaultEvent           ->
                           <-       FaultAnswer        (when every daemon goes by it)
      FaultClear           ->
                           <-       FaultAnswer
      FaultQuery           ->
                           <-       FaultList

    daemon                          subnet manager
                           <-       PathsChanged       (paths that are slower, lose packets, are paused, lead nowhere)
                           <-       HcaChanged
                           <-       ManagerAway
                           <-       ManagerRestarted
      Counters             ->                          (with what the links it sends over did to packets)
"""

from __future__ import annotations

from dataclasses import field

from fauxrdma.wire.control import Message, message

__all__ = [
    "FaultAnswer",
    "FaultClear",
    "FaultEvent",
    "FaultList",
    "FaultQuery",
    "FaultRecord",
    "Hazard",
    "HcaChanged",
    "LinkErrors",
    "ManagerAway",
    "ManagerRestarted",
]


@message
class FaultEvent(Message):
    """A fault: what befalls `target` (a cable, switch, HCA or GPU by its name, "" where there is none), of the kinds in
    `fauxrdma.topology.fault_events`. `at_ns` is on the fabric's timeline, -1: now. It lasts `for_ns`, 0: until it is
    cleared. The other fields are those of its kind, and unset in the others: `rate_bps` in bits/s, `loss` the
    probability that a packet is lost, `bit_errors` that a bit is wrong, `factor` how many times slower, `priority` -1
    for all, every `every_ns` `times` times, `groups` of HCAs that reach their own only."""

    kind: str
    target: str = ""
    at_ns: int = -1
    for_ns: int = 0
    rate_bps: int = 0
    latency_ns: int = 0
    loss: float = 0.0
    bit_errors: float = 0.0
    factor: float = 0.0
    priority: int = -1
    every_ns: int = 0
    times: int = 1
    groups: list[list[str]] = field(default_factory=list)


@message
class FaultAnswer(Message):
    """What was asked for is in force, or on the timeline: `numbers` of the faults. `error` says why nothing was done,
    "" if it was."""

    numbers: list[int]
    error: str = ""


@message
class FaultClear(Message):
    """End a fault, or take it off the timeline; 0: all."""

    number: int


@message
class FaultQuery(Message):
    """Answered by FaultList."""


@message
class FaultRecord(Message):
    """A fault as it went: fabric ns since the fabric's start, -1 for what has not happened; `state` is waiting, active
    or over."""

    number: int
    kind: str
    target: str
    text: str
    state: str
    began_ns: int
    ended_ns: int


@message
class LinkErrors(Message):
    """What one link did to packets: those it damaged (PortCounters.SymbolErrorCounter), how often it had to be trained
    again (LinkErrorRecoveryCounter), and the frames that were lost for it."""

    link: str
    symbol_errors: int
    link_error_recoveries: int
    frames_lost: int


@message
class FaultList(Message):
    """Every fault there was, is or will be, in the order in which they were declared, and what links did. `now_ns` is
    fabric time; `zero_ns` when the timeline began, -1 before."""

    now_ns: int
    zero_ns: int
    faults: list[FaultRecord]
    errors: list[LinkErrors]


@message
class Hazard(Message):
    """What a link on a path does to packets: loses them with probability `loss`, gets a bit wrong with `bit_errors`."""

    link: str
    loss: float
    bit_errors: float


@message
class HcaChanged(Message):
    """The daemon's HCA with `lid` has failed, or works again; `pkeys` is the P_Key table the manager gives it, [] for
    the one it has."""

    lid: int
    failed: bool
    pkeys: list[int]


@message
class ManagerAway(Message):
    """The subnet manager leaves: it answers no question for a path until it has restarted."""


@message
class ManagerRestarted(Message):
    """The subnet manager was away and has started again: it asks to be told anew what it was told."""
