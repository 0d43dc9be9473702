"""What devices, regions, windows and completion queues of pyverbs do.

Each name is used here, and true; or refused as not offered. `OFFERED` holds functions of a World that return
something true; `NOT_OFFERED` those that must be EOPNOTSUPP.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Any

import pyverbs.device as d
import pyverbs.mem_alloc as mem
from pyverbs import (
    cmid,
    cq,
    dmabuf,
)
from pyverbs import enums as e
from pyverbs import mr as m
from pyverbs import pd as p
from pyverbs import qp as q
from pyverbs_world import ACCESS, World

Exercise = Callable[[World], object]
OFFERED: dict[str, Exercise] = {}
NOT_OFFERED: dict[str, Exercise] = {}


# ---- device --------------------------------------------------------------------------------------------------------


def context_from(**kwargs: Any) -> Exercise:
    return lambda w: d.Context(**kwargs)


def closed_twice(w: World) -> bool:
    ctx = d.Context(name="hca1")
    domain = p.PD(ctx)
    region = m.MR(domain, 64, 1)
    for thing in (ctx, ctx, region, domain):
        thing.close()
    return True


def used_as_context_manager(w: World) -> bool:
    with d.Context(name="hca1") as ctx:
        return bool(ctx.query_port(1).lid)


def device_memory(w: World) -> Any:
    return d.DM(w.ctx, d.AllocDmAttr(64))


def copies(w: World) -> bool:
    with device_memory(w) as dm:
        dm.copy_to_dm(8, b"12345678", 8)
        return bool(dm.copy_from_dm(8, 8) == b"12345678")


def async_event(w: World) -> Any:
    w.ctx.set_port(pkeys=[0xFFFF, 0x8001])
    event = w.ctx.get_async_event()
    event.ack()
    w.ctx.set_port(pkeys=[0xFFFF])
    w.ctx.get_async_event().ack()
    return event


OFFERED |= {
    "device.get_device_list": lambda w: len(d.get_device_list()) == 9,
    "device.rdma_get_devices": lambda w: d.rdma_get_devices()[0].node_type == e.IBV_NODE_CA,
    "device.Device": lambda w: "Device hca1, node type CA, transport type IB" in str(d.get_device_list()[0]),
    "device.Device.name": lambda w: d.get_device_list()[0].name == b"hca1",
    "device.Context(name)": lambda w: d.Context(name="hca2").close() is None,
    "device.DeviceAttr": lambda w: "FW version" in str(w.ctx.query_device()),
    "device.DeviceAttrEx": lambda w: w.ctx.query_device_ex().orig_attr.max_qp == w.ctx.query_device().max_qp,
    "device.ODPCaps": lambda w: w.ctx.query_device_ex().odp_caps == d.ODPCaps(),
    "device.TSOCaps": lambda w: w.ctx.query_device_ex().tso_caps.max_tso == 0,
    "device.RSSCaps": lambda w: w.ctx.query_device_ex().rss_caps.rx_hash_function == 0,
    "device.TMCaps": lambda w: w.ctx.query_device_ex().tm_caps.max_num_tags == 0,
    "device.PacketPacingCaps": lambda w: w.ctx.query_device_ex().packet_pacing_caps.qp_rate_limit_max == 0,
    "device.PCIAtomicCaps": lambda w: w.ctx.query_device_ex().pci_atomic_caps.compare_swap == 0,
    "device.CQModerationCaps": lambda w: w.ctx.query_device_ex().cq_mod_caps.max_cq_count == 65535,
    "device.QueryDeviceExInput": lambda w: w.ctx.query_device_ex(d.QueryDeviceExInput(0)).max_dm_size,
    "device.PortAttr": lambda w: "Active (4)" in str(w.port),
    "device.GIDEntry": lambda w: d.GIDEntry(0x80FE, 0, 3).gid_str() == "fe80:0000:0000:0000:0000:0000:0000:0000",
    "device.AllocDmAttr": lambda w: d.AllocDmAttr(64, comp_mask=0).length == 64,
    "device.DM": lambda w: device_memory(w).close() is None,
    "device.DM.copy_to_dm": copies,
    "device.DM.copy_from_dm": copies,
    "device.AsyncEvent": lambda w: "IBV_EVENT_PKEY_CHANGE" in str(async_event(w)),
    "device.port_state_to_str": lambda w: d.port_state_to_str(w.port.state) == "Active (4)",
    "device.phys_state_to_str": lambda w: d.phys_state_to_str(w.port.phys_state) == "Link up (5)",
    "device.width_to_str": lambda w: d.width_to_str(w.port.active_width) == "4X (2)",
    "device.speed_to_str": lambda w: d.speed_to_str(w.port.active_speed) == "50.0 Gbps (64)",
    "device.translate_mtu": lambda w: d.translate_mtu(e.IBV_MTU_1024) == "1024 (3)",
    "device.translate_link_layer": lambda w: d.translate_link_layer(w.port.link_layer) == "InfiniBand",
    "device.translate_node_type": lambda w: d.translate_node_type(1) == "CA",
    "device.translate_transport_type": lambda w: d.translate_transport_type(0) == "IB",
    "device.translate_event_type": lambda w: d.translate_event_type(0) == "IBV_EVENT_CQ_ERR",
    "device.translate_gid_type": lambda w: d.translate_gid_type(e.IBV_GID_TYPE_ROCE_V2) == "RoCEv2",
    "device.translate_device_caps": lambda w: "IBV_DEVICE_MEM_WINDOW\n" in d.translate_device_caps(1 << 17),
    "device.translate_port_cap_flags": lambda w: "IBV_PORT_CM_SUP" in d.translate_port_cap_flags(1 << 16),
    "device.translate_port_cap_flags2": lambda w: "IBV_PORT_VIRT_SUP" in d.translate_port_cap_flags2(4),
    "device.str_from_flags": lambda w: d.str_from_flags(2, {1: "one", 2: "two"}) == "\n  two\n  ",
    "device.guid_format": lambda w: (
        d.guid_format(w.ctx.query_device().node_guid).replace(":", "").lstrip("0")
        == d.guid_to_hex(d.get_device_list()[0].guid)
    ),
    "device.guid_to_hex": lambda w: d.guid_to_hex(0xFA0) == "fa0",
    "device.Context.query_device": lambda w: w.ctx.query_device().phys_port_cnt == 1,
    "device.Context.query_device_ex": lambda w: (
        w.ctx.query_device_ex().device_cap_flags_ex == w.ctx.query_device().device_cap_flags
    ),
    "device.Context.query_port": lambda w: w.ctx.query_port(1).state == e.IBV_PORT_ACTIVE,
    "device.Context.query_port_speed": lambda w: w.ctx.query_port_speed(1) == 2000,
    "device.Context.query_gid": lambda w: w.ctx.query_gid(1, 0).gid.startswith("fe80:0000:0000:0000:"),
    "device.Context.query_gid_type": lambda w: w.ctx.query_gid_type(1, 0) == e.IBV_GID_TYPE_SYSFS_IB_ROCE_V1,
    "device.Context.query_gid_table": lambda w: w.ctx.query_gid_table(8)[0].gid_str() == w.ctx.query_gid(1, 0).gid,
    "device.Context.query_gid_ex": lambda w: w.ctx.query_gid_ex(1, 0).gid_type == e.IBV_GID_TYPE_IB,
    "device.Context.query_pkey": lambda w: w.ctx.query_pkey(1, 0) == 0xFFFF,
    "device.Context.get_pkey_index": lambda w: w.ctx.get_pkey_index(1, 0xFFFF) == 0,
    "device.Context.query_rt_values_ex": lambda w: w.ctx.query_rt_values_ex() <= w.ctx.query_rt_values_ex(),
    "device.Context.get_async_event": lambda w: async_event(w).event_type == e.IBV_EVENT_PKEY_CHANGE,
    "device.Context.cmd_fd": lambda w: os.fstat(w.ctx.cmd_fd),
    "device.Context.name": lambda w: w.ctx.name == "hca1",
    "device.Context.num_comp_vectors": lambda w: w.ctx.num_comp_vectors > 0,
    "device.Context.close": closed_twice,
    "device.Context.__enter__": used_as_context_manager,
}
NOT_OFFERED |= {
    "device.Context(cmid)": context_from(cmid=object()),
    "device.Context(cmd_fd)": context_from(cmd_fd=0),
}

# ---- protection domains, regions, windows --------------------------------------------------------------------------

OFFERED |= {
    "pd.PD(ctx)": lambda w: p.PD(w.ctx).close() is None,
    "pd.PD(cmid)": lambda w: p.PD(cmid.CMID(context=w.ctx)).close() is None,
    "pd.PD.handle": lambda w: w.pd.handle,
    "pd.ParentDomainInitAttr": lambda w: p.ParentDomainInitAttr(w.pd).comp_mask == 0,
    "pd.ParentDomainContext": lambda w: p.ParentDomainContext(w.pd, None, None, 5).user_data == 5,
}
NOT_OFFERED |= {
    "pd.PD(handle)": lambda w: p.PD(w.ctx, handle=1),
    "pd.PD.advise_mr": lambda w: w.pd.advise_mr(e.IBV_ADVISE_MR_ADVICE_PREFETCH, 0, [w.sge()]),
    "pd.PD.unimport": lambda w: w.pd.unimport(),
    "pd.ParentDomain": lambda w: p.ParentDomain(w.ctx, p.ParentDomainInitAttr(w.pd)),
}


def over_address(w: World) -> bool:
    address = mem.posix_memalign(4096, 4096)
    with m.MR(w.pd, 4096, ACCESS, address) as region:
        region.write("text", 4)
        found = mem.read(address, 4) == b"text" and region.buf == address
    mem.free(address)
    return found


def written(w: World) -> bool:
    w.mr.write("hello", 5, 100)
    return bool(w.mr.read(5, 100) == b"hello")


def reregistered(w: World) -> bool:
    with m.MR(w.pd, 64, 1) as region, p.PD(w.ctx) as other:
        before = region.rkey
        region.rereg(e.IBV_REREG_MR_CHANGE_PD | e.IBV_REREG_MR_CHANGE_ACCESS, other, access=ACCESS)
        other.close()  # it lives there now, and is closed with it
        return region.rkey != before


def device_region(w: World) -> bool:
    with device_memory(w) as dm, m.DMMR(w.pd, 64, ACCESS, dm, 0) as region:
        region.write("abcd", 4, 4)
        return region.read(4, 4) == b"abcd" and isinstance(region, m.MR)


def gpu_region(w: World) -> bool:
    with m.DmaBufMR(w.pd, 4096, ACCESS, dmabuf.DrmDmaBuf(8192), 4096) as region:
        region.write("gpu", 3)
        return region.dmabuf.read(3, 4096) == b"gpu" and region.read(3, 0) == b"gpu"


def at_an_address_of_its_own(w: World) -> bool:
    with m.MREx(w.pd, 64, ACCESS, iova=0x1000) as region:
        w.mr.write("iova", 4)
        request = w.send(opcode=e.IBV_WR_RDMA_WRITE)
        request.set_wr_rdma(region.rkey, 0x1008)
        w.a.post_send(request)
        w.completions()
        return region.buf == 0x1000 and region.read(4, 8) == b"iova"


def descriptor_region(w: World) -> bool:
    buffer = dmabuf.DmaBuf(4096)
    with m.MREx(w.pd, 4096, ACCESS, fd=buffer.dmabuf_fd, fd_offset=0) as region:
        region.write("fd", 2)
        return bool(buffer.read(2) == b"fd")


def bound_window(w: World) -> bool:
    with m.MW(w.pd, e.IBV_MW_TYPE_1) as window:
        before = window.rkey
        w.a.bind_mw(window, m.MWBind(m.MWBindInfo(w.mr, w.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE), 2, wr_id=4))
        return w.completions()[0].opcode == e.IBV_WC_BIND_MW and window.rkey != before


def plain_buffer(w: World) -> bool:
    buffer = m.Buf(128)
    with m.BufMR(w.pd, buffer, ACCESS) as region:
        region.write("buf", 3, 8)
        return buffer.read(3, 8) == b"buf" and region.length == 128


OFFERED |= {
    "mr.MR(length)": lambda w: m.MR(w.pd, 100, 1).read(100, 0) == bytes(100),
    "mr.MR(address)": over_address,
    "mr.MR.buf": lambda w: ctypes.string_at(w.mr.buf, 4) == w.mr.read(4, 0),
    "mr.MR.lkey": lambda w: w.mr.lkey,
    "mr.MR.rkey": lambda w: w.mr.rkey,
    "mr.MR.length": lambda w: w.mr.length == 4096,
    "mr.MR.handle": lambda w: w.mr.handle,
    "mr.MR.write": written,
    "mr.MR.read": written,
    "mr.MR.rereg": reregistered,
    "mr.MREx(iova)": at_an_address_of_its_own,
    "mr.MREx(fd)": descriptor_region,
    "mr.MREx(buf)": lambda w: m.MREx(w.pd, access=1, buf=m.Buf(64)).length == 64,
    "mr.DMMR": device_region,
    "mr.DmaBufMR": gpu_region,
    "mr.MW": lambda w: "IBV_MW_TYPE_2" in str(m.MW(w.pd, e.IBV_MW_TYPE_2)),
    "mr.MWBind": bound_window,
    "mr.MWBindInfo": lambda w: m.MWBindInfo(w.mr, w.mr.buf, 64, 2).length == 64,
    "mr.Buf": lambda w: m.Buf(16).read(16) == bytes(16),
    "mr.BufMR": plain_buffer,
    "mr.DmaHandleInitAttr": lambda w: m.DmaHandleInitAttr(cpu_id=3).cpu_id == 3,
    "mr.mwtype2str": lambda w: m.mwtype2str(1) == "IBV_MW_TYPE_1",
}
NOT_OFFERED |= {
    "mr.MR(implicit)": lambda w: m.MR(w.pd, 0, e.IBV_ACCESS_ON_DEMAND, implicit=True),
    "mr.MR(handle)": lambda w: m.MR(w.pd, handle=1),
    "mr.MREx(dmah)": lambda w: m.MREx(w.pd, 64, 1, dmah=object()),
    "mr.DMAHandle": lambda w: m.DMAHandle(w.ctx, m.DmaHandleInitAttr()),
}

# ---- completions ---------------------------------------------------------------------------------------------------


def event(w: World) -> Any:
    w.cq.req_notify()
    w.a.post_send(w.send(opcode=e.IBV_WR_RDMA_WRITE))  # of nothing it may write: in error is complete, too
    w.channel.get_cq_event(w.cq)
    w.cq.ack_events(1)
    count, wcs = w.cq.poll(4)
    w.a.close()
    w.b.close()
    w.a, w.b = w.pair(q.QP, w.cq)
    return count == 1 and wcs[0].status == e.IBV_WC_REM_ACCESS_ERR


def polled(read: Callable[[Any], object]) -> Exercise:
    def exercise(w: World) -> object:
        queue = w.polled()
        try:
            return read(queue)
        finally:
            queue.end_poll()
            queue.close()

    return exercise


def resized(w: World) -> bool:
    with cq.CQ(w.ctx, 8) as queue:
        queue.resize(100)
        return queue.cqe >= 100


OFFERED |= {
    "cq.CQ": lambda w: cq.CQ(w.ctx, 8, None, None, 0).close() is None,
    "cq.CQ.poll": lambda w: w.cq.poll() == (0, []),
    "cq.CQ.req_notify": event,
    "cq.CQ.ack_events": event,
    "cq.CQ.resize": resized,
    "cq.CQ.cqe": lambda w: w.cq.cqe >= 64,
    "cq.CQEX": lambda w: not isinstance(cq.CQEX(w.ctx, None), cq.CQ),
    "cq.CQEX.start_poll": lambda w: cq.CQEX(w.ctx, None).start_poll(cq.PollCqAttr()) == errno.ENOENT,
    "cq.CQEX.poll_next": polled(lambda queue: queue.poll_next() == errno.ENOENT),
    "cq.CQEX.end_poll": polled(lambda queue: True),
    "cq.CQEX.status": polled(lambda queue: queue.status == e.IBV_WC_SUCCESS),
    "cq.CQEX.wr_id": polled(lambda queue: queue.wr_id == 9),
    "cq.CQEX.read_opcode": polled(lambda queue: queue.read_opcode() == e.IBV_WC_RECV),
    "cq.CQEX.read_vendor_err": polled(lambda queue: queue.read_vendor_err() == 0),
    "cq.CQEX.read_byte_len": polled(lambda queue: queue.read_byte_len() == 8),
    "cq.CQEX.read_imm_data": polled(lambda queue: queue.read_imm_data() == 5),
    "cq.CQEX.read_qp_num": polled(lambda queue: queue.read_qp_num()),
    "cq.CQEX.read_src_qp": polled(lambda queue: queue.read_src_qp() >= 0),
    "cq.CQEX.read_wc_flags": polled(lambda queue: queue.read_wc_flags() & e.IBV_WC_WITH_IMM),
    "cq.CQEX.read_slid": polled(lambda queue: queue.read_slid() >= 0),
    "cq.CQEX.read_sl": polled(lambda queue: queue.read_sl() == 0),
    "cq.CQEX.read_dlid_path_bits": polled(lambda queue: queue.read_dlid_path_bits() == 0),
    "cq.CQEX.read_timestamp": polled(lambda queue: queue.read_timestamp() > 0),
    "cq.CQEX.read_completion_wallclock_ns": polled(lambda queue: queue.read_completion_wallclock_ns() > 10**18),
    "cq.CqInitAttrEx": lambda w: cq.CqInitAttrEx().cqe == 100 and cq.CqInitAttrEx(channel=w.channel).comp_channel,
    "cq.PollCqAttr": lambda w: cq.PollCqAttr().comp_mask == 0,
    "cq.CompChannel": lambda w: cq.CompChannel(w.ctx).close() is None,
    "cq.CompChannel.get_cq_event": event,
    "cq.CompChannel.fd": lambda w: os.fstat(w.channel.fd),
    "cq.WC": lambda w: cq.WC(wr_id=3, dlid_path_bits=1).dlid_path_bits == 1 and "success" in str(cq.WC()),
    "cq.WcTmInfo": lambda w: cq.WcTmInfo().tag == 0,
    "cq.cqe_status_to_str": lambda w: cq.cqe_status_to_str(e.IBV_WC_RETRY_EXC_ERR) == "retry exceeded error",
    "cq.cqe_opcode_to_str": lambda w: cq.cqe_opcode_to_str(e.IBV_WC_RECV) == "Receive",
    "cq.cqe_flags_to_str": lambda w: "IBV_WC_GRH" in cq.cqe_flags_to_str(1) or "GRH" in cq.cqe_flags_to_str(1),
}
NOT_OFFERED |= {
    "cq.CQEX.read_cvlan": polled(lambda queue: queue.read_cvlan()),
    "cq.CQEX.read_flow_tag": polled(lambda queue: queue.read_flow_tag()),
    "cq.CQEX.read_tm_info": polled(lambda queue: queue.read_tm_info()),
}
