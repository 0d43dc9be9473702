"""Attribute structures of the verbs: what devices, ports and queue pairs are told and tell.

Names follow libibverbs' structs (`ibv_device_attr`, `ibv_port_attr`, `ibv_qp_attr`, `ibv_qp_cap`).
"""

from __future__ import annotations

import errno
import ipaddress
from dataclasses import dataclass, field

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import AtomicCap, DeviceCapFlags, LinkLayer, Mtu, PortCapFlags, PortState, QpState
from fauxrdma.ib.enums import QpAttrMask as M

__all__ = [
    "ACK_TIMEOUT_UNIT_NS",
    "DATA_LANES",
    "FIRST_MULTICAST_LID",
    "GSI_QPN",
    "LAST_MULTICAST_LID",
    "RNR_TIMER_NS",
    "AHAttr",
    "DeviceAttr",
    "PortAttr",
    "QPAttr",
    "QPCap",
    "SrqAttr",
    "ack_timeout_ns",
    "lane_of_sl",
]

ACK_TIMEOUT_UNIT_NS = 4096
"""Local ACK timeout = 4.096 us x 2^timeout (IBTA vol. 1, 9.7.6.1.3)."""

_RNR_MS = (
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
    2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52,
)  # fmt: skip
RNR_TIMER_NS = tuple(round(ms * 1e6) for ms in _RNR_MS)
"""Receiver-not-ready delay in ns by its 5-bit code (IBTA vol. 1, table 47)."""


def ack_timeout_ns(timeout: int) -> int:
    """The local ACK timeout for the 5-bit attribute `timeout`, in ns; 0 means wait for ever."""
    return 0 if timeout == 0 else ACK_TIMEOUT_UNIT_NS << timeout


@dataclass(slots=True)
class QPCap:
    """Queue sizes, with pyverbs' defaults. Counts of work requests and of scatter/gather entries; inline in bytes."""

    max_send_wr: int = 1
    max_recv_wr: int = 10
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass(slots=True)
class SrqAttr:
    """Attributes of a shared receive queue, with pyverbs' defaults: receives, SGEs of each, and the armed limit (0 when
    not armed; ignored when the queue is created, as by ibv_create_srq)."""

    max_wr: int = 100
    max_sge: int = 1
    srq_limit: int = 0


GSI_QPN = 1
"""The queue pair of every port that management datagrams go to (general services interface)."""

FIRST_MULTICAST_LID = 0xC000
LAST_MULTICAST_LID = 0xFFFE
"""0xFFFF is the permissive LID; 1 to 0xBFFF are unicast (IBTA vol. 1, 4.1.3)."""


DATA_LANES = 8
"""Data lanes of a port, VL0 to VL7, as OpenSM finds them on ibsim and as common switches have."""


def lane_of_sl(sl: int) -> int:
    """The virtual lane of a service level: SL to VL maps are OpenSM's usual ones, lane n for level n, counted modulo
    the lanes there are."""
    return sl % DATA_LANES


@dataclass(slots=True)
class AHAttr:
    """Address vector. On InfiniBand `dlid` routes, on Ethernet `dgid`; with `is_global` the packets carry a GRH made of
    `dgid`, the GID at `sgid_index`, `flow_label`, `hop_limit` and `traffic_class` (ibv_ah_attr and its
    ibv_global_route)."""

    dlid: int = 0
    port_num: int = 1
    sl: int = 0
    dgid: str = "::"
    is_global: bool = False
    sgid_index: int = 0
    flow_label: int = 0
    hop_limit: int = 1
    traffic_class: int = 0
    src_path_bits: int = 0
    static_rate: int = 0

    @property
    def is_multicast(self) -> bool:
        """Whether it names a multicast group."""
        return FIRST_MULTICAST_LID <= self.dlid <= LAST_MULTICAST_LID

    def check(self, verb: str, *, multicast: bool, gids: int = 1, ethernet: bool = False) -> None:
        """Raise VerbsError(EINVAL), naming the field, unless packets can be sent to this address from a port with
        that many GIDs, whose link layer is `ethernet` or InfiniBand."""
        for name, limit in (
            ("sl", 15),
            ("sgid_index", gids - 1),
            ("flow_label", 0xFFFFF),
            ("hop_limit", 0xFF),
            ("traffic_class", 0xFF),
        ):
            value = getattr(self, name)
            if not 0 <= value <= limit:
                raise VerbsError(errno.EINVAL, f"{verb}: {name} is {value}, legal are 0 to {limit}")
        if self.port_num != 1:
            raise VerbsError(errno.EINVAL, f"{verb}: port_num is {self.port_num}, this device has port 1")
        try:
            dgid = ipaddress.IPv6Address(self.dgid)
        except ValueError:
            raise VerbsError(errno.EINVAL, f"{verb}: dgid {self.dgid!r} is not a GID") from None
        if ethernet:
            self._check_global(verb, dgid, multicast=multicast)
        elif multicast and self.is_multicast:
            if not self.is_global or not dgid.is_multicast:
                raise VerbsError(
                    errno.EINVAL,
                    f"{verb}: dlid 0x{self.dlid:x} is a multicast group, which needs is_global and its GID (ff..) in"
                    f" dgid; is_global is {self.is_global}, dgid {self.dgid}",
                )
        elif not 1 <= self.dlid < FIRST_MULTICAST_LID:
            raise VerbsError(
                errno.EINVAL, f"{verb}: dlid {self.dlid} is not a unicast LID, on InfiniBand 1 to 0xBFFF route"
            )

    def _check_global(self, verb: str, dgid: ipaddress.IPv6Address, *, multicast: bool) -> None:
        """On Ethernet (RoCE) only GIDs are addresses (IBTA annexes A16 and A17)."""
        if not self.is_global:
            raise VerbsError(
                errno.EINVAL,
                f"{verb}: is_global is False, but the port's link layer is Ethernet (RoCE), where LIDs do not route: "
                "set is_global, dgid to the peer's GID and sgid_index to an entry of this port's GID table",
            )
        if dgid.is_unspecified or (dgid.is_multicast and not multicast):
            raise VerbsError(errno.EINVAL, f"{verb}: dgid {self.dgid} is not the address of a port")


@dataclass(slots=True)
class QPAttr:
    """Attributes for `modify_qp`. Only those named in the mask are read. `path_mtu` is an Mtu code, not bytes."""

    qp_state: int = QpState.IBV_QPS_RESET
    cur_qp_state: int = QpState.IBV_QPS_RESET
    path_mtu: int = Mtu.IBV_MTU_1024
    qkey: int = 0
    rq_psn: int = 0
    sq_psn: int = 0
    dest_qp_num: int = 0
    qp_access_flags: int = 0
    pkey_index: int = 0
    port_num: int = 1
    en_sqd_async_notify: int = 0
    max_rd_atomic: int = 1
    max_dest_rd_atomic: int = 1
    min_rnr_timer: int = 12
    timeout: int = 14
    retry_cnt: int = 7
    rnr_retry: int = 7
    ah_attr: AHAttr = field(default_factory=AHAttr)

    def check_ranges(self, mask: int = -1, device: DeviceAttr | None = None) -> None:
        """Raise VerbsError(EINVAL) naming the first attribute of the mask whose value the device does not accept."""
        device = device or DeviceAttr()
        for name, bit, limit in (
            ("rq_psn", M.IBV_QP_RQ_PSN, 0xFFFFFF),
            ("sq_psn", M.IBV_QP_SQ_PSN, 0xFFFFFF),
            ("dest_qp_num", M.IBV_QP_DEST_QPN, 0xFFFFFF),
            ("qkey", M.IBV_QP_QKEY, 0xFFFFFFFF),
            ("min_rnr_timer", M.IBV_QP_MIN_RNR_TIMER, 31),
            ("timeout", M.IBV_QP_TIMEOUT, 31),
            ("retry_cnt", M.IBV_QP_RETRY_CNT, 7),
            ("rnr_retry", M.IBV_QP_RNR_RETRY, 7),
            ("max_rd_atomic", M.IBV_QP_MAX_QP_RD_ATOMIC, device.max_qp_init_rd_atom),
            ("max_dest_rd_atomic", M.IBV_QP_MAX_DEST_RD_ATOMIC, device.max_qp_rd_atom),
            ("pkey_index", M.IBV_QP_PKEY_INDEX, 0),
        ):
            value = getattr(self, name)
            if mask & bit and not 0 <= value <= limit:
                raise VerbsError(errno.EINVAL, f"Failed to modify QP: {name} is {value}, legal are 0 to {limit}")
        if mask & M.IBV_QP_PORT and self.port_num != 1:
            raise VerbsError(errno.EINVAL, f"Failed to modify QP: port_num is {self.port_num}, this device has port 1")
        if mask & M.IBV_QP_PATH_MTU and not 1 <= self.path_mtu <= 5:
            raise VerbsError(
                errno.EINVAL,
                f"Failed to modify QP: path_mtu is {self.path_mtu}, legal are the codes 1 (256) to 5 (4096)",
            )


@dataclass(frozen=True)
class DeviceAttr:
    """What one emulated HCA can do (struct ibv_device_attr, with pyverbs' names); the limits are enforced.

    Counts, but for: sizes in bytes (`max_mr_size`, `max_inline_data`), `page_size_cap` a bit mask of page sizes and
    `local_ca_ack_delay` a power of two of 4.096 us. `max_inline_data` and `num_comp_vectors` are not in that struct;
    libibverbs tells them elsewhere.
    """

    fw_ver: str = "0.1.0"
    node_guid: int = 0
    sys_image_guid: int = 0
    max_mr_size: int = 1 << 40
    page_size_cap: int = 0xFFFFF000
    vendor_id: int = 0xFA0
    vendor_part_id: int = 4
    hw_ver: int = 0
    max_qp: int = 65536
    max_qp_wr: int = 16384
    device_cap_flags: DeviceCapFlags = (
        DeviceCapFlags.IBV_DEVICE_BAD_PKEY_CNTR
        | DeviceCapFlags.IBV_DEVICE_BAD_QKEY_CNTR
        | DeviceCapFlags.IBV_DEVICE_CURR_QP_STATE_MOD
        | DeviceCapFlags.IBV_DEVICE_PORT_ACTIVE_EVENT
        | DeviceCapFlags.IBV_DEVICE_SYS_IMAGE_GUID
        | DeviceCapFlags.IBV_DEVICE_RC_RNR_NAK_GEN
        | DeviceCapFlags.IBV_DEVICE_SRQ_RESIZE
        | DeviceCapFlags.IBV_DEVICE_MEM_WINDOW
        | DeviceCapFlags.IBV_DEVICE_MEM_MGT_EXTENSIONS
        | DeviceCapFlags.IBV_DEVICE_MEM_WINDOW_TYPE_2B
    )
    max_sge: int = 16
    max_sge_rd: int = 16
    max_cq: int = 65536
    max_cqe: int = 1 << 20
    max_mr: int = 65536
    max_pd: int = 16384
    max_qp_rd_atom: int = 16
    max_ee_rd_atom: int = 0
    max_res_rd_atom: int = 65536 * 16
    max_qp_init_rd_atom: int = 16
    max_ee_init_rd_atom: int = 0
    atomic_caps: AtomicCap = AtomicCap.IBV_ATOMIC_HCA
    max_ee: int = 0
    max_rdd: int = 0
    max_mw: int = 65536
    max_raw_ipv6_qp: int = 0
    max_raw_ethy_qp: int = 0
    max_mcast_grp: int = 8192
    max_mcast_qp_attach: int = 240
    max_total_mcast_qp_attach: int = 8192 * 240
    max_ah: int = 65536
    max_fmr: int = 0
    max_map_per_fmr: int = 0
    max_srq: int = 16384
    max_srq_wr: int = 16384
    max_srq_sge: int = 16
    max_pkeys: int = 128
    local_ca_ack_delay: int = 15
    phys_port_cnt: int = 1
    max_inline_data: int = 512
    num_comp_vectors: int = 8
    max_dm_size: int = 1 << 18


@dataclass(frozen=True, slots=True)
class PortAttr:
    """The state of port 1 (struct ibv_port_attr, with pyverbs' names).

    MTUs are Mtu codes; `active_width` and `active_speed` the codes of IBTA's PortInfo (4x is 2; EDR 32 and so on);
    `phys_state` 5 is link up, 3 disabled; `sm_lid` is 0 while there is no subnet manager. `speed_gbps` is the signalled
    rate in Gb/s, which libibverbs leaves to be multiplied.
    """

    state: PortState
    max_mtu: Mtu
    active_mtu: Mtu
    gid_tbl_len: int
    port_cap_flags: PortCapFlags
    max_msg_sz: int
    bad_pkey_cntr: int
    qkey_viol_cntr: int
    pkey_tbl_len: int
    lid: int
    sm_lid: int
    lmc: int
    max_vl_num: int
    sm_sl: int
    subnet_timeout: int
    init_type_reply: int
    active_width: int
    active_speed: int
    phys_state: int
    link_layer: LinkLayer
    flags: int
    port_cap_flags2: int
    speed_gbps: float
