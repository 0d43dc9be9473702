"""The control verbs: requests an application sends its HCA daemon over the Unix socket, and the answers.

Framing as in wire/control.py. One request is answered by one message, in order; descriptors travel as SCM_RIGHTS with
the message they belong to. A verb that fails is answered by VerbFailed with the errno libibverbs would set.
"""

from __future__ import annotations

from dataclasses import asdict

from fauxrdma.ib.attributes import AHAttr
from fauxrdma.wire.control import Message, message
from fauxrdma.wire.fabric_messages import HcaInfo

__all__ = [
    "AddressVector",
    "AllocDm",
    "AllocMw",
    "AllocPd",
    "AsyncEventNotice",
    "AttachMcast",
    "ClientHello",
    "CmAccept",
    "CmChannel",
    "CmConnect",
    "CmDisconnect",
    "CmEstablish",
    "CmListen",
    "CmListening",
    "CmNotice",
    "CmParameters",
    "CmReject",
    "CmResolve",
    "CmResolved",
    "CopyFromDm",
    "CopyToDm",
    "CountPeerTraffic",
    "CreateAh",
    "CreateChannel",
    "CreateCq",
    "CreateQp",
    "CreateSrq",
    "CreateTimer",
    "Created",
    "Destroy",
    "DetachMcast",
    "DmData",
    "Done",
    "DropCounters",
    "HcaList",
    "InjectFailure",
    "ListHcas",
    "ModifyCq",
    "ModifyQp",
    "ModifySrq",
    "MrKeys",
    "MwKey",
    "Opened",
    "PortStatus",
    "ProbeMemory",
    "QpCreated",
    "QpState",
    "QueryCounters",
    "QueryPath",
    "QueryPort",
    "QueryQp",
    "QuerySrq",
    "RegDmMr",
    "RegMr",
    "ReregMr",
    "ResizeCq",
    "SetPort",
    "SrqState",
    "VerbFailed",
]


@message
class VerbFailed(Message):
    """The verb was refused and changed nothing. `errno_` as libibverbs; `text` is a sentence."""

    errno_: int
    text: str


@message
class Done(Message):
    """The verb succeeded and has nothing to return."""


@message
class ListHcas(Message):
    """Which HCAs does this daemon emulate? Legal before ClientHello. Answer: HcaList."""

    version: int


@message
class HcaList(Message):
    version: int
    node: int
    fabric: str
    clock: str
    dilation: float
    profile: str
    hcas: list[HcaInfo]


@message
class ClientHello(Message):
    """Open the HCA called `hca`. Answer: Opened with three descriptors (doorbell memory, doorbell eventfd, read end of
    the async-event pipe)."""

    version: int
    hca: str
    pid: int


@message
class Opened(Message):
    """Fabric time = (CLOCK_MONOTONIC - epoch_ns) / dilation. `profile` as in ib/profiles.py: what the device can do.
    `host_shape`: what is inside the emulated host (HostShape.to_dict in topology/host_shape.py)."""

    version: int
    node: int
    fabric: str
    clock: str
    epoch_ns: int
    dilation: float
    profile: str
    hca: HcaInfo
    host_shape: dict[str, int | bool | None]


@message
class AllocPd(Message):
    """Answer: Created (handle of the protection domain)."""


@message
class Created(Message):
    """A handle. For CreateCq one descriptor (the ring's memory), for CreateChannel one (read end of the event pipe)."""

    handle: int


@message
class RegMr(Message):
    """Register memory. `provider` memfd or staged: one descriptor comes along, a memfd sealed against shrinking whose
    bytes from `offset` on are those at `addr`. `provider` process_vm: none; ProbeMemory must have succeeded before.
    `gpu` is the GPU whose memory this stands for, or nil. Answer: MrKeys."""

    pd: int
    addr: int
    length: int
    access: int
    provider: str
    offset: int
    gpu: int | None


@message
class ReregMr(Message):
    """Change a region: `flags` is an or of IBV_REREG_MR_CHANGE_*; what they do not name is ignored. With
    CHANGE_TRANSLATION a descriptor comes along as for RegMr. Answer: MrKeys, the same handle and new keys."""

    handle: int
    flags: int
    pd: int
    addr: int
    length: int
    access: int
    provider: str


@message
class ProbeMemory(Message):
    """May the daemon reach the application's memory? `token` are bytes the application has put at `addr`; the daemon
    reads them and writes them there in reverse order. Answer: Done, or VerbFailed(EPERM)."""

    addr: int
    token: bytes


@message
class AllocDm(Message):
    """Allocate device memory. Answer: Created."""

    length: int
    log_align_req: int
    comp_mask: int


@message
class CopyToDm(Message):
    """Answer: Done."""

    dm: int
    offset: int
    data: bytes


@message
class CopyFromDm(Message):
    """Answer: DmData."""

    dm: int
    offset: int
    length: int


@message
class DmData(Message):
    data: bytes


@message
class RegDmMr(Message):
    """Register device memory; addresses in the region count from 0. Answer: MrKeys."""

    pd: int
    dm: int
    offset: int
    length: int
    access: int


@message
class MrKeys(Message):
    handle: int
    lkey: int
    rkey: int


@message
class AllocMw(Message):
    """`mw_type` is IBV_MW_TYPE_1 or 2. Answer: MwKey."""

    pd: int
    mw_type: int


@message
class MwKey(Message):
    """A memory window and its first rkey, which grants nothing: it is not bound yet."""

    handle: int
    rkey: int


@message
class CreateChannel(Message):
    """Answer: Created with the read end of a pipe that carries 8-byte completion-queue handles."""


@message
class CreateTimer(Message):
    """Clock virtual: something to wait for fabric time with. Answer: Created, with the timer's page (abi/timer_page.py)
    and its eventfd."""


@message
class CreateCq(Message):
    """`channel` is a completion channel's handle or None; `comp_vector` 0 to Opened's comp_vectors - 1. Answer: Created
    with the ring's memory."""

    entries: int
    channel: int | None
    comp_vector: int


@message
class ResizeCq(Message):
    """Another size; what is pending moves along. Nothing may be polled or armed meanwhile. Answer: Done with the memory
    that takes the old one's place."""

    cq: int
    entries: int


@message
class ModifyCq(Message):
    """Moderate events: one for every `count` completions, or `period_us` (fabric time) after the first that had none.
    Either 0: an event for every completion. Answer: Done."""

    cq: int
    count: int
    period_us: int


@message
class CreateQp(Message):
    """`srq` is a shared receive queue's handle or None. Answer: QpCreated with the rings' memory."""

    qp_type: int
    pd: int
    send_cq: int
    recv_cq: int
    srq: int | None
    max_send_wr: int
    max_recv_wr: int
    max_send_sge: int
    max_recv_sge: int
    max_inline_data: int
    sq_sig_all: bool


@message
class CreateSrq(Message):
    """A shared receive queue. Answer: Created with the ring's memory."""

    pd: int
    max_wr: int
    max_sge: int


@message
class ModifySrq(Message):
    """`mask` of IBV_SRQ_MAX_WR (another size: one descriptor comes with the answer, the memory that takes the old one's
    place) and IBV_SRQ_LIMIT (arm the limit event). Nothing may be posted or polled meanwhile. Answer: Done."""

    srq: int
    mask: int
    max_wr: int
    srq_limit: int


@message
class QuerySrq(Message):
    """Answer: SrqState."""

    srq: int


@message
class SrqState(Message):
    max_wr: int
    max_sge: int
    srq_limit: int


@message
class QpCreated(Message):
    qpn: int


@message
class AddressVector(Message):
    """ibv_ah_attr, its ibv_global_route included."""

    dlid: int
    port_num: int
    sl: int
    dgid: str
    is_global: bool
    sgid_index: int
    flow_label: int
    hop_limit: int
    traffic_class: int
    src_path_bits: int
    static_rate: int

    @classmethod
    def of(cls, attr: AHAttr) -> AddressVector:
        """The message that carries `attr`."""
        return cls(**{**asdict(attr), "is_global": bool(attr.is_global)})

    def attr(self) -> AHAttr:
        """What it carries."""
        return AHAttr(**{name: getattr(self, name) for name in AHAttr.__dataclass_fields__})


@message
class ModifyQp(Message):
    """`attr` maps attribute names of ibv_qp_attr to values; `av` is ah_attr. Answer: Done."""

    qpn: int
    mask: int
    attr: dict[str, int]
    av: AddressVector


@message
class CreateAh(Message):
    """An address handle. Answer: Created."""

    pd: int
    av: AddressVector


@message
class AttachMcast(Message):
    """Let a UD queue pair hear a multicast group. Answered when every daemon of the fabric delivers to it: Done."""

    qpn: int
    gid: str
    lid: int


@message
class DetachMcast(Message):
    """Undo AttachMcast. Answer: Done."""

    qpn: int
    gid: str
    lid: int


@message
class QueryCounters(Message):
    """What the port dropped. Answer: DropCounters."""


@message
class DropCounters(Message):
    """Datagrams dropped since the daemon started, by counter name (hca/port.py)."""

    counters: dict[str, int]


@message
class QueryQp(Message):
    """Answer: QpState."""

    qpn: int


@message
class QpState(Message):
    """Attributes as set, plus the story of the first error (empty when there was none)."""

    attr: dict[str, int]
    av: AddressVector
    last_error: str


@message
class QueryPort(Message):
    """Answer: PortStatus."""

    port_num: int


@message
class PortStatus(Message):
    """What changes of a port: state IBV_PORT_*, physical state (5 link up, 3 disabled), the manager's LID (0: none),
    counters, the GID table with IBV_GID_TYPE_*, the P_Key table."""

    state: int
    phys_state: int
    sm_lid: int
    bad_pkey_cntr: int
    qkey_viol_cntr: int
    gids: list[str]
    gid_types: list[int]
    pkeys: list[int]


@message
class SetPort(Message):
    """For tests: take the port down or up (IBV_PORT_DOWN, IBV_PORT_ACTIVE), replace its P_Key table, give it more GIDs;
    nil leaves as it is. Every application of the HCA hears of it by events. Answer: Done."""

    port_num: int
    state: int | None
    pkeys: list[int] | None
    gids: list[str] | None


@message
class QueryPath(Message):
    """Answer: PathAnswer of the subnet manager."""

    dlid: int


@message
class CmChannel(Message):
    """Answer: Created with one descriptor, the read end of a pipe of CmNotice: what happens to this application's
    connections from now on."""


@message
class CmParameters(Message):
    """What the two ends of a connection agree on. `qpn`, `psn` and `qkey` are the sender's; `path_mtu` an Mtu code."""

    qpn: int
    psn: int
    qkey: int
    responder_resources: int
    initiator_depth: int
    flow_control: int
    retry_count: int
    rnr_retry_count: int
    srq: int
    path_mtu: int
    private: bytes


@message
class CmResolve(Message):
    """Who has this address? Answer: CmResolved. ENETUNREACH when nobody has."""

    gid: str


@message
class CmResolved(Message):
    lid: int


@message
class CmListen(Message):
    """Hear requests for a port (0: any that is free) of a port space (RDMA_PS_*). Answer: CmListening."""

    port_space: int
    port: int
    backlog: int


@message
class CmListening(Message):
    handle: int
    port: int


@message
class CmConnect(Message):
    """Ask who listens at `lid`. Answer: Created (the connection's number); notices follow."""

    lid: int
    gid: str
    port_space: int
    port: int
    parameters: CmParameters


@message
class CmAccept(Message):
    """Answer: Done."""

    handle: int
    parameters: CmParameters


@message
class CmReject(Message):
    """Answer: Done."""

    handle: int
    private: bytes


@message
class CmEstablish(Message):
    """The queue pair for an accepted request is ready. Answer: Done."""

    handle: int


@message
class CmDisconnect(Message):
    """Answer: Done."""

    handle: int


@message
class CmNotice(Message):
    """In the pipe: `what` happened to connection `handle` (fauxrdma.cm.Tell); `listener` of a request;
    `status` a reason of a rejection; `lid`, `gid` and `port` are the peer's."""

    handle: int
    what: str
    listener: int
    lid: int
    gid: str
    port: int
    status: int
    parameters: CmParameters


@message
class CountPeerTraffic(Message):
    """The application moved `nbytes` of payload from GPU `source` to GPU `target` of this node by itself, which takes
    `busy_ns` of fabric time: for the counters of the links between them. Answer: Done."""

    source: int
    target: int
    nbytes: int
    busy_ns: int


@message
class Destroy(Message):
    """`kind` is one of qp, cq, srq, mw, mr, dm, pd, ah, channel. Answer: Done, or VerbFailed(EBUSY) while used."""

    kind: str
    handle: int


@message
class InjectFailure(Message):
    """For tests: the verb (reg_mr, create_qp, dereg_mr, ...) called over this connection succeeds `after` times, then
    fails `count` times with this errno and changes nothing. Answer: Done."""

    verb: str
    errno_: int
    after: int
    count: int


@message
class AsyncEventNotice(Message):
    """What the async-event pipe carries: an AsyncEventType, the queue pair, completion queue or shared receive
    queue it is about (or the port), a story."""

    kind: int
    element: int
    text: str
