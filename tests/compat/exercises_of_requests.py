"""What the rest of pyverbs does: requests, addresses, shared receive queues, memory, constants.

Each name is used here, and true; or refused as not offered. `OFFERED` holds functions of a World that return
something true; `NOT_OFFERED` those that must be EOPNOTSUPP.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pyverbs.device as d
import pyverbs.mem_alloc as mem
import pyverbs.providers.efa.efadv as efadv
import pyverbs.providers.mlx5.mlx5_enums as mlx5_enums
import pyverbs.providers.mlx5.mlx5dv as mlx5dv
from exercises_of_connections import connected_by_address, connected_by_events, datagram_service
from exercises_of_resources import gpu_region, over_address
from pyverbs import (
    addr,
    base,
    cm_enums,
    cmid,
    comp_cntr,
    cq,
    dmabuf,
    flow,
    fork,
    libibverbs_enums,
    librdmacm_enums,
    spec,
    srq,
    utils,
    wq,
    wr,
    xrcd,
)
from pyverbs import enums as e
from pyverbs import mr as m
from pyverbs import pyverbs_error as errors
from pyverbs import qp as q
from pyverbs_world import QKEY, World

Exercise = Callable[[World], object]
OFFERED: dict[str, Exercise] = {}
NOT_OFFERED: dict[str, Exercise] = {}


# ---- work requests, addresses --------------------------------------------------------------------------------------


def chained(w: World) -> bool:
    w.b.post_recv(wr.RecvWR(1, 1, [w.sge()], next_wr=w.recv(3)))
    w.a.post_send(w.send(2, next_wr=w.send(4)))
    return [wc.wr_id for wc in w.completions(4)] == [1, 2, 3, 4]


def by_rdma(w: World) -> bool:
    w.mr.write("requests", 8)
    request = w.send(opcode=e.IBV_WR_RDMA_WRITE)
    request.set_wr_rdma(*w.remote())
    w.a.post_send(request)
    w.completions()
    return bool(w.mr.read(8, 2048) == b"requests")


def by_atomic(w: World) -> bool:
    w.mr.write((1).to_bytes(8, "little"), 8, 2048)
    request = w.send(opcode=e.IBV_WR_ATOMIC_FETCH_AND_ADD)
    request.set_wr_atomic(*w.remote(), 4)
    w.a.post_send(request)
    w.completions()
    return bool(w.mr.read(1, 2048) == b"\5")


def by_datagram(w: World) -> bool:
    """There and, by the completion's address, back."""
    a, b = w.kept = w.pair(q.QP, w.cq, e.IBV_QPT_UD)
    for qp in (a, b):
        qp.post_recv(w.recv())
    there = w.send()
    there.set_wr_ud(addr.AH(w.pd, attr=w.address()), b.qp_num, QKEY)
    a.post_send(there)
    received = w.completions(2)[0]
    back = w.send()
    back.set_wr_ud(addr.AH(w.pd, wc=received, grh=w.mr.buf + 1024, port_num=1), received.src_qp, QKEY)
    b.post_send(back)
    return w.completions(2)[0].src_qp == b.qp_num


def window_by_request(w: World) -> bool:
    with m.MW(w.pd, e.IBV_MW_TYPE_2) as window:
        request = wr.SendWR(wr_id=1, opcode=e.IBV_WR_BIND_MW)
        request.set_bind_wr(window, m.MWBindInfo(w.mr, w.mr.buf, 64, e.IBV_ACCESS_REMOTE_WRITE))
        w.a.post_send(request)
        return w.completions()[0].opcode == e.IBV_WC_BIND_MW and request.rkey == base.inc_rkey(window.rkey)


def routed(w: World) -> bool:
    attr = w.address()
    return attr.dgid == w.ctx.query_gid(1, 0).gid and "dgid" in str(attr) and attr.hop_limit == 64


OFFERED |= {
    "wr.SGE": lambda w: wr.SGE(1, 2, 3).lkey == 3,
    "wr.SGE.read": lambda w: w.sge(8, 64).read(4, 2) == w.mr.read(4, 66),
    "wr.SendWR": lambda w: w.send(7).wr_id == 7 and w.send().num_sge == 1 and w.send().send_flags == 2,
    "wr.SendWR.set_wr_ud": by_datagram,
    "wr.SendWR.set_wr_rdma": by_rdma,
    "wr.SendWR.set_wr_atomic": by_atomic,
    "wr.SendWR.set_bind_wr": window_by_request,
    "wr.SendWR.next_wr": chained,
    "wr.RecvWR": chained,
    "wr.send_flags_to_str": lambda w: wr.send_flags_to_str(2) == "IBV_SEND_SIGNALED ",
    "addr.GID": lambda w: addr.GID("0001:0002:0003:0004:0005:0006:0007:0008").gid.endswith("7:0008"),
    "addr.GRH": lambda w: addr.GRH(addr.GID(), addr.GID(), hop_limit=3).hop_limit == 3,
    "addr.GlobalRoute": routed,
    "addr.AHAttr": routed,
    "addr.AH(attr)": lambda w: addr.AH(w.pd, attr=w.address()).close() is None,
    "addr.AH(wc)": by_datagram,
}
NOT_OFFERED |= {
    "wr.SendWR.set_qp_type_xrc": lambda w: w.send().set_qp_type_xrc(1),
}

# ---- shared receive queues -----------------------------------------------------------------------------------------


def shared(w: World) -> bool:
    with srq.SRQ(w.pd, srq.SrqInitAttr(srq.SrqAttr(max_wr=8))) as queue:
        queue.post_recv(w.recv(11))
        init = w.plain(srq=queue)
        a, b = (q.QP(w.pd, init, w.attr()) for _ in range(2))
        a.to_rts(w.path(b))
        b.to_rts(w.path(a))
        a.post_send(w.send(12))
        return [wc.wr_id for wc in w.completions(2)] == [11, 12]


def limited(w: World) -> bool:
    with srq.SRQ(w.pd, srq.SrqInitAttr(srq.SrqAttr(max_wr=8))) as queue:
        for _ in range(4):
            queue.post_recv(w.recv())
        queue.modify(srq.SrqAttr(srq_limit=2), e.IBV_SRQ_LIMIT)
        return (queue.query().srq_limit, queue.query().max_wr >= 8, queue.get_srq_num() > 0) == (2, True, True)


def shared_of_context(w: World) -> bool:
    attr = srq.SrqInitAttrEx(max_wr=4)
    attr.pd = w.pd
    attr.comp_mask = e.IBV_SRQ_INIT_ATTR_PD
    return srq.SRQ(w.ctx, attr).query().max_wr >= 4


OFFERED |= {
    "srq.SRQ(pd)": shared,
    "srq.SRQ(ctx)": shared_of_context,
    "srq.SrqAttr": lambda w: (srq.SrqAttr().max_wr, srq.SrqAttr().max_sge, srq.SrqAttr().srq_limit) == (100, 1, 0),
    "srq.SrqInitAttr": lambda w: srq.SrqInitAttr(srq.SrqAttr(5)).max_wr == 5,
    "srq.SrqInitAttrEx": lambda w: srq.SrqInitAttrEx().max_wr == 100,
    "srq.OpsWr": lambda w: srq.OpsWr(wr_id=3).wr_id == 3,
    "srq.SRQ.post_recv": shared,
    "srq.SRQ.modify": limited,
    "srq.SRQ.query": limited,
    "srq.SRQ.get_srq_num": limited,
}
NOT_OFFERED |= {
    "srq.SRQ.post_srq_ops": lambda w: srq.SRQ(w.pd, srq.SrqInitAttr()).post_srq_ops(srq.OpsWr()),
}

# ---- what Ethernet adapters have, and the rest ---------------------------------------------------------------------


def allocated(w: World) -> bool:
    at = mem.malloc(64)
    mem.write(at, b"\x01\x02\x03\x04", 4)
    assert mem.read32(at) == 0x04030201
    assert mem.readbe32(at) == 0x01020304
    mem.writebe32(at, 5, 1)
    mem.writebe64(at, 6, 1)
    mem.write32(at, 7, 4)
    mem.write64(at, 8, 3)
    found = (mem.read(at + 4, 4), mem.readbe64(at, 1), mem.read32(at, 4), mem.read64(at, 3))
    mem.free(at)
    return found == (b"\0\0\0\5", 6, 7, 8)


def mapped(w: World) -> bool:
    at = mem.mmap(length=8192)
    mem.write(at, "text", 4, 4096)
    found = mem.read(at, 4, 4096)
    mem.madvise(at, 8192, mem.MADV_DONTNEED_)
    found += mem.read(at, 4, 4096)
    mem.munmap(at, 8192)
    return found == b"text\0\0\0\0"


def raised(call: Callable[[], object], kind: type[Exception]) -> Exception:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{call} raised nothing")


def full_error(w: World) -> errors.PyverbsRDMAError:
    error = raised(lambda: cq.CQ(w.ctx, 0), errors.PyverbsRDMAError)
    assert isinstance(error, errors.PyverbsRDMAError)
    return error


OFFERED |= {
    "xrcd.XRCDInitAttr": lambda w: xrcd.XRCDInitAttr(3, os.O_CREAT, -1).fd == -1,
    "wq.WQAttr": lambda w: wq.WQAttr(wq_state=1).wq_state == 1,
    "wq.WQInitAttr": lambda w: wq.WQInitAttr().max_wr == 100,
    "wq.RwqIndTableInitAttr": lambda w: wq.RwqIndTableInitAttr(1, []).log_ind_tbl_size == 1,
    "wq.RxHashConf": lambda w: wq.RxHashConf(1, 2, [3, 4]).rx_hash_key == [3, 4],
    "flow.FlowAttr": lambda w: flow.FlowAttr(num_of_specs=1).specs == [],
    "spec.EthSpec": lambda w: spec.EthSpec(dst_mac="aa:bb:cc:dd:ee:ff").spec_type == e.IBV_FLOW_SPEC_ETH,
    "spec.Ipv4ExtSpec": lambda w: spec.Ipv4ExtSpec(dst_ip="1.2.3.4", is_inner=True).spec_type == 0x132,
    "spec.Ipv6Spec": lambda w: spec.Ipv6Spec(hop_limit=3).hop_limit == 3,
    "spec.TcpUdpSpec": lambda w: spec.TcpUdpSpec(e.IBV_FLOW_SPEC_UDP, dst_port=9).spec_type == e.IBV_FLOW_SPEC_UDP,
    "spec.EspSpec": lambda w: spec.EspSpec(spi=1).seq is None,
    "dmabuf.DmaBuf": lambda w: dmabuf.DmaBuf(4096).read(4) == bytes(4),
    "dmabuf.DrmDmaBuf": gpu_region,
    "comp_cntr.CompCntrInitAttr": lambda w: comp_cntr.CompCntrInitAttr(flags=1).flags == 1,
    "cmid.ConnParam": lambda w: cmid.ConnParam(retry=3).retry_count == 3,
    "cmid.CMID": connected_by_address,
    "cmid.CMEventChannel": connected_by_events,
    "cmid.CMEvent": connected_by_events,
    "cmid.AddrInfo": connected_by_address,
    "cmid.UDParam": datagram_service,
    "cmid.JoinMCAttrEx": lambda w: cmid.JoinMCAttrEx(comp_mask=1).comp_mask == 1,
    **{f"mem_alloc.{name}": allocated for name in ("malloc", "free", "read32", "read64", "readbe32", "readbe64")},
    **{f"mem_alloc.{name}": allocated for name in ("write32", "write64", "writebe32", "writebe64")},
    **{f"mem_alloc.{name}": mapped for name in ("mmap", "munmap", "madvise", "read", "write")},
    "mem_alloc.posix_memalign": over_address,
    "fork.fork_init": lambda w: fork.fork_init() is None,
    "fork.is_fork_initialized": lambda w: fork.is_fork_initialized() == e.IBV_FORK_UNNEEDED,
    "base.PyverbsRDMAErrno": lambda w: full_error(w) and base.PyverbsRDMAErrno("again").error_code == errno.EINVAL,
    "base.inc_rkey": lambda w: base.inc_rkey(0x1FF) == 0x100,
    "base.PyverbsObject": lambda w: isinstance(w.port, base.PyverbsObject),
    "base.PyverbsCM": lambda w: isinstance(w.a, base.PyverbsCM),
    "pyverbs_error.PyverbsError": lambda w: str(errors.PyverbsError("no", 22)) == "no. Errno: 22, Invalid argument",
    "pyverbs_error.PyverbsUserError": lambda w: raised(d.Context, errors.PyverbsUserError),
    "pyverbs_error.PyverbsRDMAError": lambda w: str(full_error(w)).startswith("Failed to create a CQ"),
    "pyverbs_error.PyverbsRDMAError.error_code": lambda w: full_error(w).error_code == errno.EINVAL,
    "utils.gid_str": lambda w: utils.gid_str(0x80FE, 1).startswith("fe80:"),
    "utils.gid_str_to_array": lambda w: utils.gid_str_to_array(w.ctx.query_gid(1, 0).gid)[:2] == ["fe", "80"],
    "utils.qp_type_to_str": lambda w: utils.qp_type_to_str(w.a.qp_type) == "RC",
    "utils.qp_state_to_str": lambda w: utils.qp_state_to_str(w.a.qp_state) == "RTS",
    "utils.mtu_to_str": lambda w: utils.mtu_to_str(3) == 1024,
    "utils.access_flags_to_str": lambda w: utils.access_flags_to_str(3) == "Local write Remote write ",
    "utils.mig_state_to_str": lambda w: utils.mig_state_to_str(0) == "Migrated",
    "libibverbs_enums.ibv_qp_type": lambda w: w.a.qp_type == libibverbs_enums.ibv_qp_type.IBV_QPT_RC,
    "libibverbs_enums.ibv_access_flags": lambda w: int(libibverbs_enums.ibv_access_flags(3)) == 3,
    "libibverbs_enums.IBV_QPT_RC": lambda w: libibverbs_enums.IBV_QPT_RC == 2,
    "librdmacm_enums.rdma_cm_event_type": lambda w: librdmacm_enums.rdma_cm_event_type.RDMA_CM_EVENT_ESTABLISHED == 9,
    "librdmacm_enums.rdma_port_space": lambda w: librdmacm_enums.rdma_port_space.RDMA_PS_TCP == 0x106,
    "librdmacm_enums.RAI_PASSIVE": lambda w: librdmacm_enums.RAI_PASSIVE == 1,
    "enums.IBV_QPT_RC": lambda w: e.IBV_QPT_RC == 2,
    "enums.IBV_WR_RDMA_WRITE": lambda w: e.IBV_WR_RDMA_WRITE == 0,
    "enums.IBV_GID_TYPE_SYSFS_ROCE_V2": lambda w: e.IBV_GID_TYPE_SYSFS_ROCE_V2 == 1,
    "cm_enums.RDMA_PS_TCP": lambda w: cm_enums.RDMA_PS_TCP == 0x106,
    "providers.mlx5.mlx5dv.Mlx5DVContextAttr": lambda w: mlx5dv.Mlx5DVContextAttr(flags=1).flags == 1,
    "providers.mlx5.mlx5_enums.MLX5DV_QP_CREATE_TUNNEL_OFFLOADS": lambda w: {
        mlx5_enums.MLX5DV_QP_CREATE_TUNNEL_OFFLOADS: 1, mlx5_enums.MLX5DV_CONTEXT_FLAGS_CQE_V1: 2
    }[mlx5_enums.MLX5DV_CONTEXT_FLAGS_CQE_V1] == 2,
}  # fmt: skip
NOT_OFFERED |= {
    "xrcd.XRCD": lambda w: xrcd.XRCD(w.ctx, xrcd.XRCDInitAttr(3, os.O_CREAT, -1)),
    "wq.WQ": lambda w: wq.WQ(w.ctx, wq.WQInitAttr()),
    "wq.RwqIndTable": lambda w: wq.RwqIndTable(w.ctx, wq.RwqIndTableInitAttr(1, [])),
    "flow.Flow": lambda w: flow.Flow(w.a, flow.FlowAttr()),
    "flow.FlowAction": lambda w: flow.FlowAction(),
    "comp_cntr.CompCntr": lambda w: comp_cntr.CompCntr(w.ctx, comp_cntr.CompCntrInitAttr()),
    "providers.mlx5.mlx5dv.Mlx5Context": lambda w: mlx5dv.Mlx5Context(mlx5dv.Mlx5DVContextAttr(), "hca1"),
    "providers.mlx5.mlx5dv.Mlx5Context.query_mlx5_port": lambda w: mlx5dv.Mlx5Context.query_mlx5_port(w.ctx, 1),
    "providers.mlx5.mlx5dv.Mlx5QP": lambda w: mlx5dv.Mlx5QP(w.ctx, w.extended(), None),
    "providers.efa.efadv.EfaContext": lambda w: efadv.EfaContext(name="hca1"),
    "providers.efa.efadv.SRDQP": lambda w: efadv.SRDQP(w.pd, w.plain()),
}
