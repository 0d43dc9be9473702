"""Names for people: what libibverbs' ``ibv_*_str`` functions say, word for word, and pyverbs' ``*_to_str``."""

from __future__ import annotations

from fauxrdma.ib.enums import (
    AccessFlags,
    AtomicCap,
    CreateCqWcFlags,
    DeviceCapFlags,
    GidType,
    LinkLayer,
    MigState,
    Mtu,
    MwType,
    NodeType,
    QpState,
    QpType,
    SendFlags,
    SrqType,
    WcFlags,
    WcOpcode,
    WrOpcode,
)

__all__ = [
    "access_flags_to_str",
    "atomic_cap_to_str",
    "cqe_flags_to_str",
    "cqe_opcode_to_str",
    "cqe_status_to_str",
    "create_wc_flags_to_str",
    "device_cap_flags_to_str",
    "event_type_str",
    "gid_type_to_str",
    "guid_to_str",
    "link_layer_to_str",
    "mig_state_to_str",
    "mtu_to_str",
    "mw_type_to_str",
    "node_type_str",
    "phys_state_to_str",
    "port_state_str",
    "port_state_to_str",
    "qp_state_to_str",
    "qp_type_to_str",
    "send_flags_to_str",
    "speed_to_str",
    "srq_type_to_str",
    "wc_status_str",
    "width_to_str",
    "wr_opcode_to_str",
]

_WC_STATUS = (
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory management operation error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
    "local RDD violation error",
    "remote invalid RD request",
    "aborted error",
    "invalid EE context number",
    "invalid EE context state",
    "fatal error",
    "response timeout error",
    "general error",
)

_EVENT_TYPE = (
    "CQ error",
    "local work queue catastrophic error",
    "invalid request local work queue error",
    "local access violation work queue error",
    "communication established",
    "send queue drained",
    "path migrated",
    "path migration request error",
    "local catastrophic error",
    "port active",
    "port error",
    "LID change",
    "P_Key change",
    "SM change",
    "SRQ catastrophic error",
    "SRQ limit reached",
    "last WQE reached",
    "client reregistration",
    "GID table change",
)

_PORT_STATE = ("no state change (NOP)", "down", "init", "armed", "active", "active defer")

_NODE_TYPE = {
    NodeType.IBV_NODE_CA: "InfiniBand channel adapter",
    NodeType.IBV_NODE_SWITCH: "InfiniBand switch",
    NodeType.IBV_NODE_ROUTER: "InfiniBand router",
    NodeType.IBV_NODE_RNIC: "iWARP NIC",
}

_CQE_STATUS = (
    "success",
    "local length error",
    "local QP op error",
    "local EEC op error",
    "local protection error",
    "WR flush error",
    "memory window bind error",
    "bad response error",
    "local access error",
    "remote invalidate request error",
    "remote access error",
    "remote op error",
    "retry exceeded error",
    "RNR retry exceeded",
    "local RDD violation error",
    "remote invalidate RD request error",
    "remote abort error",
    "invalidate EECN error",
    "invalidate EEC state error",
    "WC fatal error",
    "response timeout error",
    "general error",
)

_CQE_OPCODE = {
    WcOpcode.IBV_WC_SEND: "Send",
    WcOpcode.IBV_WC_RDMA_WRITE: "RDMA write",
    WcOpcode.IBV_WC_RDMA_READ: "RDMA read",
    WcOpcode.IBV_WC_COMP_SWAP: "Compare and swap",
    WcOpcode.IBV_WC_FETCH_ADD: "Fetch and add",
    WcOpcode.IBV_WC_BIND_MW: "Bind Memory window",
    WcOpcode.IBV_WC_LOCAL_INV: "Local invalidate",
    WcOpcode.IBV_WC_RECV: "Receive",
    WcOpcode.IBV_WC_RECV_RDMA_WITH_IMM: "Receive RDMA with immediate",
}

_WC_FLAGS = {
    WcFlags.IBV_WC_GRH: "GRH",
    WcFlags.IBV_WC_WITH_IMM: "With immediate",
    WcFlags.IBV_WC_WITH_INV: "With invalidate",
}

_PHYS_STATE = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "Port configuration training",
    5: "Link up",
    6: "Link error recovery",
    7: "Phy test",
}
_WIDTH = {1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
_SPEED = {1: "2.5", 2: "5.0", 4: "10.0", 8: "10.0", 16: "14.0", 32: "25.0", 64: "50.0", 128: "100.0", 256: "200.0"}
_GID_TYPE = {
    GidType.IBV_GID_TYPE_IB: "IB",
    GidType.IBV_GID_TYPE_ROCE_V1: "RoCE v1",
    GidType.IBV_GID_TYPE_ROCE_V2: "RoCE v2",
}


def _listed(names: tuple[str, ...], value: int, otherwise: str) -> str:
    return names[value] if 0 <= value < len(names) else otherwise


def _short(name: str | None, prefix: str) -> str:
    return (name or "").removeprefix(prefix)


def _flags(value: int, names: dict[int, str]) -> str:
    return " ".join(name for bit, name in names.items() if value & bit)


def wc_status_str(status: int) -> str:
    """As ibv_wc_status_str."""
    return _listed(_WC_STATUS, status, "unknown")


def event_type_str(event: int) -> str:
    """As ibv_event_type_str."""
    return _listed(_EVENT_TYPE, event, "unknown")


def port_state_str(state: int) -> str:
    """As ibv_port_state_str."""
    return _listed(_PORT_STATE, state, "unknown")


def node_type_str(node_type: int) -> str:
    """As ibv_node_type_str."""
    return {int(kind): text for kind, text in _NODE_TYPE.items()}.get(node_type, "unknown")


def cqe_status_to_str(status: int) -> str:
    """As pyverbs."""
    return _listed(_CQE_STATUS, status, "Unknown CQE status")


def cqe_opcode_to_str(opcode: int) -> str:
    """As pyverbs."""
    return {int(op): text for op, text in _CQE_OPCODE.items()}.get(opcode, f"Unknown CQE opcode {opcode}")


def cqe_flags_to_str(flags: int) -> str:
    """As pyverbs: the flags of a completion."""
    return _flags(flags, {int(bit): name for bit, name in _WC_FLAGS.items()})


def create_wc_flags_to_str(flags: int) -> str:
    """As pyverbs: the fields an extended completion queue was made for."""
    return _flags(flags, {int(flag): flag.name or "" for flag in CreateCqWcFlags})


def qp_state_to_str(state: int) -> str:
    """As pyverbs: RESET, INIT, RTR, RTS, SQD, SQE, ERR."""
    try:
        return _short(QpState(state).name, "IBV_QPS_")
    except ValueError:
        return f"Unknown ({state})"


def qp_type_to_str(qp_type: int) -> str:
    """As pyverbs: RC, UC, UD."""
    try:
        return _short(QpType(qp_type).name, "IBV_QPT_")
    except ValueError:
        return f"Unknown ({qp_type})"


def access_flags_to_str(flags: int) -> str:
    """As pyverbs: LOCAL_WRITE REMOTE_READ and so on."""
    return _flags(flags, {int(flag): _short(flag.name, "IBV_ACCESS_") for flag in AccessFlags})


def send_flags_to_str(flags: int) -> str:
    """As pyverbs: IBV_SEND_SIGNALED and so on."""
    return _flags(flags, {int(flag): flag.name or "" for flag in SendFlags})


def wr_opcode_to_str(opcode: int) -> str:
    """RDMA_WRITE, SEND and so on."""
    try:
        return _short(WrOpcode(opcode).name, "IBV_WR_")
    except ValueError:
        return f"Unknown ({opcode})"


def mtu_to_str(mtu: int) -> str:
    """As pyverbs: `1024 (3)`."""
    try:
        return f"{Mtu(mtu).nbytes} ({mtu})"
    except ValueError:
        return "Invalid MTU"


def port_state_to_str(state: int) -> str:
    """As pyverbs: `Active (4)`."""
    names = ("NOP", "Down", "Init", "Armed", "Active", "Defer")
    return f"{names[state]} ({state})" if 0 <= state < len(names) else "Invalid state"


def phys_state_to_str(state: int) -> str:
    """As pyverbs: `Link up (5)`."""
    return f"{_PHYS_STATE[state]} ({state})" if state in _PHYS_STATE else "Invalid physical state"


def width_to_str(width: int) -> str:
    """As pyverbs: `4X (2)`."""
    return f"{_WIDTH[width]} ({width})" if width in _WIDTH else "Invalid width"


def speed_to_str(speed: int) -> str:
    """As pyverbs, of one lane: `50.0 Gbps (64)`."""
    return f"{_SPEED[speed]} Gbps ({speed})" if speed in _SPEED else "Invalid speed"


def link_layer_to_str(link_layer: int) -> str:
    """As pyverbs: InfiniBand, Ethernet, Unspecified."""
    return {
        int(LinkLayer.IBV_LINK_LAYER_UNSPECIFIED): "Unspecified",
        int(LinkLayer.IBV_LINK_LAYER_INFINIBAND): "InfiniBand",
        int(LinkLayer.IBV_LINK_LAYER_ETHERNET): "Ethernet",
    }.get(link_layer, "Invalid link layer")


def gid_type_to_str(gid_type: int) -> str:
    """IB, RoCE v1, RoCE v2, as the kernel's sysfs files and ibv_devinfo name them."""
    return {int(kind): text for kind, text in _GID_TYPE.items()}.get(gid_type, f"Unknown ({gid_type})")


def atomic_cap_to_str(cap: int) -> str:
    """ATOMIC_NONE, ATOMIC_HCA, ATOMIC_GLOB, as ibv_devinfo prints them."""
    try:
        return _short(AtomicCap(cap).name, "IBV_")
    except ValueError:
        return f"invalid atomic capability ({cap})"


def device_cap_flags_to_str(flags: int) -> str:
    """IBV_DEVICE_* names, separated by spaces."""
    return _flags(flags, {int(flag): flag.name or "" for flag in DeviceCapFlags})


def mw_type_to_str(mw_type: int) -> str:
    """As pyverbs' mwtype2str: IBV_MW_TYPE_1, IBV_MW_TYPE_2."""
    try:
        return MwType(mw_type).name
    except ValueError:
        return f"Unknown ({mw_type})"


def mig_state_to_str(state: int) -> str:
    """Path migration: MIGRATED, REARM, ARMED."""
    try:
        return _short(MigState(state).name, "IBV_MIG_")
    except ValueError:
        return f"Unknown ({state})"


def srq_type_to_str(srq_type: int) -> str:
    """BASIC, XRC, TM."""
    try:
        return _short(SrqType(srq_type).name, "IBV_SRQT_")
    except ValueError:
        return f"Unknown ({srq_type})"


def guid_to_str(guid: int) -> str:
    """A GUID in four groups: `0002:c903:0000:0001`."""
    digits = f"{guid:016x}"
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))
