"""Messages between HCA daemons, the subnet manager and the lab that started them (TCP, msgpack, see control.py).

Conversation of an HCA daemon with the subnet manager::

    daemon                          subnet manager
      NodeHello            ->
                           <-       NodeWelcome        (or Refusal)
                           <-       Directory          (when every expected node is in; again on change)
      PathQuery            ->
                           <-       PathAnswer
      GidQuery             ->                          (on Ethernet, before the PathQuery)
                           <-       GidAnswer
      GidsChanged          ->                          (an application gave a port more addresses, or took them)
                           <-       GidsKnown
      FlowStart            ->
                           <-       RateGrant          (also whenever another flow changes this one's rate)
      FlowStop             ->
      FlowLanding          ->                          (what arrives goes into another memory, and so by another way)
      FlowsForgotten       ->                          (queue pairs that are gone)
                           <-       PathsChanged       (a link or a table changed a path that was asked for)
      Counters             ->                          (what went the old way)
      PathsApplied         ->
      PeerTraffic          ->                          (what ranks of the node sent each other without an HCA)
      MulticastJoin        ->
                           <-       MulticastMembers   (to every daemon, at every change)
      MulticastApplied     ->
                           <-       MulticastJoined    (when every daemon has applied it)
      MulticastLeave       ->
                           <-       FlushRequest       (a report is wanted)
      Counters, FlushDone  ->

Conversation of the lab (or the CLI) with the subnet manager::

    lab                             subnet manager
      LabHello             ->
                           <-       LabWelcome
      ReadyQuery           ->
                           <-       FabricReady        (once all nodes are in)
      ReportQuery          ->
                           <-       FabricReport       (after flushing every daemon)
      LinkChange           ->
                           <-       LinkChanged        (when every daemon loses what crosses the link, or no more)
      SweepQuery           ->
                           <-       SweepReport        (once no sweep is due and its paths are applied)
"""

from __future__ import annotations

from dataclasses import field

from fauxrdma.wire.control import Message, message
from fauxrdma.wire.fault_messages import FaultRecord, Hazard, LinkErrors

__all__ = [
    "CONTROL_VERSION",
    "ClockGo",
    "ClockLook",
    "ClockRanks",
    "ClockRanksKnown",
    "ClockTurn",
    "ClockWord",
    "Counters",
    "Directory",
    "DirectoryEntry",
    "FabricReady",
    "FabricReport",
    "FlowLanding",
    "FlowStart",
    "FlowStop",
    "FlowsForgotten",
    "FlushDone",
    "FlushRequest",
    "GidAnswer",
    "GidQuery",
    "GidsChanged",
    "GidsKnown",
    "HcaInfo",
    "LabHello",
    "LabWelcome",
    "LandedCounter",
    "LinkChange",
    "LinkChanged",
    "LinkReport",
    "MulticastApplied",
    "MulticastJoin",
    "MulticastJoined",
    "MulticastLeave",
    "MulticastMembers",
    "NodeHello",
    "NodeWelcome",
    "PairCounter",
    "PairReport",
    "PathAnswer",
    "PathQuery",
    "PathsApplied",
    "PathsChanged",
    "PeerTraffic",
    "PortChange",
    "RateGrant",
    "ReadyQuery",
    "Refusal",
    "ReportQuery",
    "SprayCounter",
    "SweepQuery",
    "SweepReport",
]

CONTROL_VERSION = 9
"""Version of these messages. A hello with another version is answered with Refusal and the connection is closed."""


@message
class Refusal(Message):
    """The request cannot be served; `reason` is a sentence for a person. The sender closes the connection."""

    reason: str


@message
class NodeHello(Message):
    """First message of an HCA daemon. `host`:`port` is where other daemons reach its HCA listener."""

    version: int
    node: int
    host: str
    port: int
    host_identity: str
    pid: int


@message
class HcaInfo(Message):
    """One emulated HCA as the subnet manager configured it. `rate_bps` in bits/s; `mtu` in bytes; the GPUs
    `gpus` use it (none: it is for storage). `name` is the device name applications open (hca1, hca2, ...); `link_layer`
    an IBV_LINK_LAYER_*, `transport` one of `fauxrdma.fabric.transport.TRANSPORTS`, `subnet` the number
    of its IP subnet."""

    name: str
    index: int
    lid: int
    guid: int
    gid: str
    rate_bps: int
    mtu: int
    gpus: list[int]
    leaf: str
    leaf_port: int
    link_layer: int = 1
    transport: str = "infiniband"
    subnet: int = 0


@message
class NodeWelcome(Message):
    """The node is in the fabric. Fabric time = (CLOCK_MONOTONIC - epoch_ns) / dilation, in ns.

    `clock` is 'paced' or 'none'; with 'none' dilation is 1 and nothing is shaped. `quantum` is the largest burst in
    bytes when shaped. `seed` feeds every random choice of the daemon (mixed with its node number). `host_shape` is what
    is inside each host (HostShape.to_dict in topology/host_shape.py), `routing` the engine that chooses ways. `boot_id`
    is that of the manager's machine and `monotonic_ns` its CLOCK_MONOTONIC now: on another machine it is another clock.
    """

    version: int
    fabric: str
    clock: str
    epoch_ns: int
    dilation: float
    quantum: int
    seed: int
    hcas: list[HcaInfo]
    host_shape: dict[str, int | bool | None]
    routing: str = ""
    boot_id: str = ""
    monotonic_ns: int = 0


@message
class DirectoryEntry(Message):
    """Where the HCA with `lid` is: the daemon's TCP address, its node number and HCA name."""

    lid: int
    host: str
    port: int
    node: int
    hca: str


@message
class Directory(Message):
    """Every HCA of the fabric. Sent when all nodes are in, and again whenever a node leaves (its entries are gone)."""

    entries: list[DirectoryEntry]


@message
class PathQuery(Message):
    """Ask for the path from one LID to another; on Ethernet, of the flow with this label."""

    slid: int
    dlid: int
    label: int = 0


@message
class GidsChanged(Message):
    """The port of the daemon's HCA with `lid` has the addresses `gids` besides its own now. Answered by GidsKnown with
    the same token."""

    lid: int
    gids: list[str]
    token: int


@message
class GidsKnown(Message):
    """Others find the port by its new addresses; or nothing was changed, since another port has the address `taken`."""

    token: int
    taken: str = ""


@message
class GidQuery(Message):
    """Which port has this address? What neighbour discovery (ARP, ND) is to an Ethernet. Answered by GidAnswer."""

    gid: str
    token: int


@message
class GidAnswer(Message):
    """The LID of the HCA whose port has the address, 0 if none has, and the number of its IP subnet."""

    token: int
    lid: int
    subnet: int = 0


@message
class FlowsForgotten(Message):
    """Flows that were asked for by PathQuery and are gone: source LIDs, destination LIDs and labels, in step. What they
    sent has been counted."""

    slids: list[int]
    dlids: list[int]
    labels: list[int]


@message
class PathAnswer(Message):
    """A path: `links` are link names in order (source GPU to destination GPU); `switches` counts the fabric switches
    crossed; `latency_ns` is one-way for a small message, NIC overheads included; `rate_bps` is the payload rate of the
    narrowest link after header efficiency, in bits/s. `reachable` False when there is no route. `lost_at`: the link or
    switch at which packets vanish for now, "" if they arrive.

    Where packets are sprayed they take `ways` ways in turn, of which those numbered `lost_ways` lose them for now
    (`lost_at`: all do); `links` are those of all.

    `sl` is the service level that the path record asks for: with it packets take the virtual lane that keeps the routes
    free of deadlock (dfsssp).

    To a multicast LID: `links` are those of the tree, `latency_ns` 0, and `members` has the one-way latency in ns to
    every HCA that is reached, by LID.

    `hazards` are its links that lose or damage packets, `stopped` the priorities that do not move for now."""

    slid: int
    dlid: int
    reachable: bool
    switches: int
    links: list[str]
    latency_ns: int
    rate_bps: int
    lost_at: str = ""
    members: dict[int, int] = field(default_factory=dict)
    label: int = 0
    ways: int = 1
    lost_ways: list[int] = field(default_factory=list)
    sl: int = 0
    hazards: list[Hazard] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)


@message
class PortChange(Message):
    """The port of the daemon's HCA with `lid` is in `state` now, an IBV_PORT_*."""

    lid: int
    state: int


@message
class PathsChanged(Message):
    """Paths that the daemon asked for and that are others now, and ports whose state changed. The daemon sends Counters
    of what went the old way, goes by the new ones and answers PathsApplied with the same token."""

    token: int
    paths: list[PathAnswer]
    ports: list[PortChange]


@message
class PathsApplied(Message):
    token: int


@message
class FlowStart(Message):
    """A flow (one queue pair's traffic in one direction) has bytes to send. `flow` is unique within the daemon.
    `label` is what Ethernet switches tell flows apart by: the queue pair, on Ethernet. `flowlet`: nothing of the flow
    is under way, and what it sent before has been counted. `memory` is the one of the node that the bytes are read from
    (`fauxrdma.memory.location`; None: what the HCA usually serves), `dqpn` the queue pair that they go to. A flow that
    reads from another memory now starts again. `vl` is the virtual lane of its packets."""

    flow: int
    slid: int
    dlid: int
    weight: float
    label: int = 0
    flowlet: bool = True
    memory: int | None = None
    dqpn: int = 0
    vl: int = 0


@message
class FlowLanding(Message):
    """What arrives for queue pair `qpn` of the daemon's HCA with `lid` goes into another memory of the node than before
    (`fauxrdma.memory.location`); None: the queue pair is gone. Not sent when nothing is shaped."""

    lid: int
    qpn: int
    memory: int | None


@message
class FlowStop(Message):
    """The flow has nothing more to send. The manager forgets it."""

    flow: int


@message
class RateGrant(Message):
    """New payload rates in bits/s, by flow id (the daemon's own ids)."""

    rates: dict[int, int]


@message
class MulticastJoin(Message):
    """The HCA with `lid` is to hear multicast LID `group`. Answered by MulticastJoined with the same token."""

    lid: int
    group: int
    token: int


@message
class MulticastJoined(Message):
    """Every daemon delivers to the new member now."""

    token: int


@message
class MulticastLeave(Message):
    """The HCA with `lid` is to hear `group` no more. Not answered."""

    lid: int
    group: int


@message
class MulticastMembers(Message):
    """Who hears multicast LID `group` now: LIDs of HCAs. To be answered by MulticastApplied with the same token."""

    group: int
    lids: list[int]
    token: int


@message
class MulticastApplied(Message):
    token: int


@message
class PairCounter(Message):
    """Payload bytes and frames sent from slid to dlid out of one memory of the node (`fauxrdma.memory.location`) since
    the last report (deltas). `busy_ns`: fabric time during which any of them was being sent; 0 when nothing is
    shaped. `vl`: the virtual lane they took."""

    slid: int
    dlid: int
    nbytes: int
    frames: int
    busy_ns: int
    label: int = 0
    memory: int = 0
    vl: int = 0


@message
class LandedCounter(Message):
    """Payload bytes that arrived at the HCA with LID `lid` and went into one memory of the node since the last
    report."""

    lid: int
    memory: int
    nbytes: int


@message
class SprayCounter(Message):
    """Payload bytes that a sprayed flow sent since the last report, by the ways of its cycle (deltas)."""

    slid: int
    dlid: int
    label: int
    nbytes: list[int]


@message
class Counters(Message):
    """What a daemon sent, and what it laid into memory, since its last Counters: each end knows the way between its
    HCAs and its memories, the sender also what lies between. `debt_permille` are samples of fidelity debt: (real -
    modelled) time over the modelled time of the operation, in thousandths. `retransmits` counts frames sent again.
    `sprayed` tells of sprayed flows over which ways their bytes went; `pairs` has them too. `errors` is what links with
    a fault did to its packets."""

    pairs: list[PairCounter]
    debt_permille: list[int]
    retransmits: int
    sprayed: list[SprayCounter] = field(default_factory=list)
    landed: list[LandedCounter] = field(default_factory=list)
    errors: list[LinkErrors] = field(default_factory=list)


@message
class PeerTraffic(Message):
    """Payload bytes that GPU `source` of the node sent to its GPU `target` over NVLink or PCIe since the last such
    message. `busy_ns`: fabric time it took to send them; 0 when nothing is shaped."""

    source: int
    target: int
    nbytes: int
    busy_ns: int


@message
class FlushRequest(Message):
    """The manager wants Counters now, then FlushDone with the same token."""

    token: int


@message
class FlushDone(Message):
    token: int


@message
class LabHello(Message):
    """First message of a lab, CLI or test that watches the fabric."""

    version: int


@message
class LabWelcome(Message):
    version: int
    fabric: str
    clock: str
    dilation: float
    nodes: int


@message
class ReadyQuery(Message):
    """Answered by FabricReady as soon as all nodes are in (immediately if they already are)."""


@message
class FabricReady(Message):
    entries: list[DirectoryEntry]


@message
class ReportQuery(Message):
    """Flush all daemons, then answer with FabricReport. `reset` zeroes the counters afterwards."""

    reset: bool


@message
class LinkChange(Message):
    """A cable fails (`up` False) or is plugged in again. `link`: its name, either way, or the HCA for its own."""

    link: str
    up: bool


@message
class LinkChanged(Message):
    """The cable's state is in force. `link` is its full name; `error` says why nothing was done, "" if it was."""

    link: str
    error: str


@message
class SweepQuery(Message):
    """Answered by SweepReport when no trap is under way, no sweep is running, and every daemon goes by the tables."""


@message
class SweepReport(Message):
    """Sweeps since the start, and of the last: when it began and ended (fabric ns), how many forwarding entries it
    changed, and the cables it found down."""

    sweeps: int
    started_ns: int
    ended_ns: int
    changed: int
    down: list[str]


@message
class LinkReport(Message):
    """One directed link: payload bytes carried, its rate (bits/s), and the mean utilisation over the time it had any
    active flow's traffic (0..1; 0 when clock is 'none'). `vl_nbytes`, of a cable, are the bytes by virtual lane."""

    name: str
    src: str
    dst: str
    kind: str
    rate_bps: int
    nbytes: int
    utilisation: float
    vl_nbytes: dict[int, int] = field(default_factory=dict)


@message
class PairReport(Message):
    """Traffic between two HCAs, with the route it took."""

    src: str
    dst: str
    nbytes: int
    frames: int
    switches: int
    latency_ns: int


@message
class FabricReport(Message):
    """What the fabric carried. `elapsed_ns` is fabric time since start or the last reset. Debt figures in percent.
    `routing` is the engine really used, `routing_messages` why it is another than the wanted one, and warnings.
    `faults` are those of the fabric since its start, `link_errors` what links did to packets since then."""

    fabric: str
    clock: str
    dilation: float
    elapsed_ns: int
    links: list[LinkReport]
    pairs: list[PairReport]
    debt_p50_percent: float
    debt_p99_percent: float
    debt_samples: int
    retransmits: int
    lost_nodes: list[int]
    routing: str = ""
    routing_messages: list[str] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    link_errors: list[LinkErrors] = field(default_factory=list)


# Virtual time (clock `virtual`, fabric/timekeeper.py).


@message
class ClockGo(Message):
    """Subnet manager to daemon: fabric time is `now_ns`; carry out what is due and answer with ClockWord."""

    step: int
    now_ns: int


@message
class ClockTurn(Message):
    """Subnet manager to daemon: fabric time is `now_ns` for the messages that follow, of what was due there."""

    now_ns: int


@message
class ClockLook(Message):
    """Subnet manager to daemon: do all applications sleep? Answer: ClockWord with `look` and `phase`."""

    number: int
    phase: int


@message
class ClockWord(Message):
    """Daemon to subnet manager: see NodeWord in fabric/timekeeper.py for the first fields. `look` and `phase` say which
    ClockLook it answers (0: none), `asleep` what it found; `blocked` are sentences about who waits for what, with
    the answers that found all asleep."""

    step: int
    heard: int
    sent: dict[int, int]
    received: dict[int, int]
    due_ns: int | None
    woke: bool
    polling: bool
    participants: int
    look: int
    phase: int
    asleep: bool
    blocked: list[str]


@message
class ClockRanks(Message):
    """Lab to subnet manager (answer: ClockRanksKnown), which passes on to each daemon those of its node: the processes
    that time waits for from now on, also before they have opened a device. Lists of the same length."""

    nodes: list[int]
    pids: list[int]
    names: list[str]


@message
class ClockRanksKnown(Message):
    """The daemons have been told."""
