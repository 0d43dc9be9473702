"""The names of pyverbs that programs use, by module: the checklist read from pyverbs 65, with the differences of 44.

`Class.member` stands for a member; `Class(argument)` for a way to construct.
"""

from __future__ import annotations

__all__ = ["NAMES"]

_TABLE = """
device  get_device_list rdma_get_devices Device Device.name Context(name) Context(cmid) Context(cmd_fd) DeviceAttr
        DeviceAttrEx ODPCaps TSOCaps RSSCaps TMCaps PacketPacingCaps PCIAtomicCaps CQModerationCaps QueryDeviceExInput
        PortAttr GIDEntry AllocDmAttr DM DM.copy_to_dm DM.copy_from_dm AsyncEvent port_state_to_str phys_state_to_str
        width_to_str speed_to_str translate_mtu translate_link_layer translate_node_type translate_transport_type
        translate_event_type translate_gid_type translate_device_caps translate_port_cap_flags
        translate_port_cap_flags2 str_from_flags guid_format guid_to_hex Context.query_device Context.query_device_ex
        Context.query_port Context.query_port_speed Context.query_gid Context.query_gid_type Context.query_gid_table
        Context.query_gid_ex Context.query_pkey Context.get_pkey_index Context.query_rt_values_ex
        Context.get_async_event Context.cmd_fd Context.name Context.num_comp_vectors Context.close Context.__enter__
pd      PD(ctx) PD(cmid) PD(handle) PD.advise_mr PD.handle PD.unimport ParentDomain ParentDomainInitAttr
        ParentDomainContext
mr      MR(length) MR(address) MR(implicit) MR(handle) MR.buf MR.lkey MR.rkey MR.length MR.handle MR.write MR.read
        MR.rereg MREx(iova) MREx(fd) MREx(dmah) MREx(buf) DMMR DmaBufMR MW MWBind MWBindInfo Buf BufMR DMAHandle
        DmaHandleInitAttr mwtype2str
cq      CQ CQ.poll CQ.req_notify CQ.ack_events CQ.resize CQ.cqe CQEX CQEX.start_poll CQEX.poll_next CQEX.end_poll
        CQEX.status CQEX.wr_id CQEX.read_opcode CQEX.read_vendor_err CQEX.read_byte_len CQEX.read_imm_data
        CQEX.read_qp_num CQEX.read_src_qp CQEX.read_wc_flags CQEX.read_slid CQEX.read_sl CQEX.read_dlid_path_bits
        CQEX.read_timestamp CQEX.read_cvlan CQEX.read_flow_tag CQEX.read_tm_info CQEX.read_completion_wallclock_ns
        CqInitAttrEx PollCqAttr CompChannel CompChannel.get_cq_event CompChannel.fd WC WcTmInfo cqe_status_to_str
        cqe_opcode_to_str cqe_flags_to_str
qp      QP(pd) QP(ctx) QP(cmid) QP(attr) QP.to_init QP.to_rtr QP.to_rts QP.modify QP.query QP.post_send QP.post_recv
        QP.bind_mw QP.query_data_in_order QP.set_ece QP.query_ece QPEx QPCap QPInitAttr QPInitAttrEx QPAttr ECE
        QPRateLimitAttr DataBuffer QPEx.wr_start QPEx.wr_complete QPEx.wr_abort QPEx.wr_id QPEx.wr_flags
        QPEx.wr_rdma_write QPEx.wr_rdma_write_imm QPEx.wr_rdma_read QPEx.wr_send QPEx.wr_send_imm QPEx.wr_send_inv
        QPEx.wr_send_tso QPEx.wr_atomic_cmp_swp QPEx.wr_atomic_fetch_add QPEx.wr_atomic_write QPEx.wr_flush
        QPEx.wr_local_inv QPEx.wr_bind_mw QPEx.wr_set_sge QPEx.wr_set_sge_list QPEx.wr_set_inline_data
        QPEx.wr_set_inline_data_list QPEx.wr_set_ud_addr QPEx.wr_set_xrc_srqn
wr      SGE SGE.read SendWR SendWR.set_wr_ud SendWR.set_wr_rdma SendWR.set_wr_atomic SendWR.set_bind_wr
        SendWR.set_qp_type_xrc SendWR.next_wr RecvWR send_flags_to_str
addr    GID GRH GlobalRoute AHAttr AH(attr) AH(wc)
srq     SRQ(pd) SRQ(ctx) SrqAttr SrqInitAttr SrqInitAttrEx OpsWr SRQ.post_recv SRQ.modify SRQ.query SRQ.get_srq_num
        SRQ.post_srq_ops
xrcd    XRCD XRCDInitAttr
wq      WQ WQAttr WQInitAttr RwqIndTable RwqIndTableInitAttr RxHashConf
flow    Flow FlowAttr FlowAction
spec    EthSpec Ipv4ExtSpec Ipv6Spec TcpUdpSpec EspSpec
dmabuf  DmaBuf DrmDmaBuf
comp_cntr  CompCntr CompCntrInitAttr
cmid    CMID CMID(channel) CMEventChannel CMEvent AddrInfo ConnParam UDParam JoinMCAttrEx CMID.listen CMID.get_request
        CMID.accept CMID.connect CMID.disconnect CMID.reject CMID.establish CMID.bind_addr CMID.resolve_addr
        CMID.resolve_route CMID.create_qp CMID.query_qp CMID.reg_msgs CMID.reg_read CMID.reg_write CMID.post_recv
        CMID.post_send CMID.post_read CMID.post_write CMID.post_ud_send CMID.get_send_comp CMID.get_recv_comp
        CMID.init_qp_attr CMID.join_multicast CMID.leave_multicast CMID.set_option CMID.set_local_ece
        CMID.resolve_addrinfo CMID.query_addrinfo
mem_alloc  malloc posix_memalign free mmap munmap madvise read write read32 read64 readbe32 readbe64 write32 write64
        writebe32 writebe64
fork    fork_init is_fork_initialized
base    PyverbsRDMAErrno inc_rkey PyverbsObject PyverbsCM
pyverbs_error  PyverbsError PyverbsUserError PyverbsRDMAError PyverbsRDMAError.error_code
utils   gid_str gid_str_to_array qp_type_to_str qp_state_to_str mtu_to_str access_flags_to_str mig_state_to_str
libibverbs_enums  ibv_qp_type ibv_access_flags IBV_QPT_RC
librdmacm_enums   rdma_cm_event_type rdma_port_space RAI_PASSIVE
enums   IBV_QPT_RC IBV_WR_RDMA_WRITE IBV_GID_TYPE_SYSFS_ROCE_V2
cm_enums  RDMA_PS_TCP
providers.mlx5.mlx5dv  Mlx5Context Mlx5DVContextAttr Mlx5QP Mlx5Context.query_mlx5_port
providers.mlx5.mlx5_enums  MLX5DV_QP_CREATE_TUNNEL_OFFLOADS
providers.efa.efadv  EfaContext SRDQP
"""


def _names() -> list[str]:
    found: list[str] = []
    module = ""
    for line in _TABLE.strip().splitlines():
        words = line.split()
        if not line[0].isspace():
            module = words.pop(0)
        found += [f"{module}.{word}" for word in words]
    return found


NAMES = _names()
"""`module.name`, `module.Class.member` or `module.Class(argument)`."""
