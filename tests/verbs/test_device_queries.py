"""What a program can ask of a device and its port, over a daemon."""

from __future__ import annotations

import dataclasses
import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from fauxrdma.abi.control_verbs import PortStatus
from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.ib.enums import AtomicCap, DeviceCapFlags, GidType, LinkLayer, Mtu, PortCapFlags, PortState
from fauxrdma.ib.gids import GIDEntry, gid_table
from fauxrdma.lab.local import LocalLab
from fauxrdma.runtime.emulated_hca import EmulatedHca
from fauxrdma.verbs import Context
from fauxrdma.verbs.port_queries import port_attributes
from fauxrdma.wire.fabric_messages import HcaInfo

# Fields of struct ibv_device_attr (libibverbs 44), in its order, atomic_cap under pyverbs' name.
DEVICE_FIELDS = [
    "fw_ver",
    "node_guid",
    "sys_image_guid",
    "max_mr_size",
    "page_size_cap",
    "vendor_id",
    "vendor_part_id",
    "hw_ver",
    "max_qp",
    "max_qp_wr",
    "device_cap_flags",
    "max_sge",
    "max_sge_rd",
    "max_cq",
    "max_cqe",
    "max_mr",
    "max_pd",
    "max_qp_rd_atom",
    "max_ee_rd_atom",
    "max_res_rd_atom",
    "max_qp_init_rd_atom",
    "max_ee_init_rd_atom",
    "atomic_caps",
    "max_ee",
    "max_rdd",
    "max_mw",
    "max_raw_ipv6_qp",
    "max_raw_ethy_qp",
    "max_mcast_grp",
    "max_mcast_qp_attach",
    "max_total_mcast_qp_attach",
    "max_ah",
    "max_fmr",
    "max_map_per_fmr",
    "max_srq",
    "max_srq_wr",
    "max_srq_sge",
    "max_pkeys",
    "local_ca_ack_delay",
    "phys_port_cnt",
]
# Fields of struct ibv_port_attr.
PORT_FIELDS = [
    "state",
    "max_mtu",
    "active_mtu",
    "gid_tbl_len",
    "port_cap_flags",
    "max_msg_sz",
    "bad_pkey_cntr",
    "qkey_viol_cntr",
    "pkey_tbl_len",
    "lid",
    "sm_lid",
    "lmc",
    "max_vl_num",
    "sm_sl",
    "subnet_timeout",
    "init_type_reply",
    "active_width",
    "active_speed",
    "phys_state",
    "link_layer",
    "flags",
    "port_cap_flags2",
]
STATUS = PortStatus(4, 5, 1, 0, 0, [], [], [])


def info(**changes: Any) -> HcaInfo:
    base = HcaInfo("hca1", 1, 7, 0x0002C90300000007, "fe80::2:c903:0:7", 200_000_000_000, 4096, [0], "leaf1", 1)
    return dataclasses.replace(base, **changes)


def refused(code: int, call: Callable[[], object], words: str = "Failed to") -> None:
    with pytest.raises(VerbsError, match=words) as caught:
        call()
    assert caught.value.errno == code


def test_device_attributes(unshaped: LocalLab) -> None:
    with Context("hca2", str(unshaped.socket_path(0))) as ctx:
        attr = ctx.query_device()
        assert [f.name for f in dataclasses.fields(attr)][: len(DEVICE_FIELDS)] == DEVICE_FIELDS
        assert attr.node_guid == attr.sys_image_guid == ctx.hca.guid
        assert attr.phys_port_cnt == 1
        assert attr.atomic_caps == AtomicCap.IBV_ATOMIC_HCA
        assert attr.device_cap_flags & DeviceCapFlags.IBV_DEVICE_SRQ_RESIZE
        assert ctx.num_comp_vectors == attr.num_comp_vectors == 8


def test_port_attributes(unshaped: LocalLab) -> None:
    with Context("hca2", str(unshaped.socket_path(0))) as ctx:
        port = ctx.query_port()
        assert [f.name for f in dataclasses.fields(port)][: len(PORT_FIELDS)] == PORT_FIELDS
        assert (port.state, port.phys_state, port.link_layer) == (PortState.IBV_PORT_ACTIVE, 5, 1)
        assert (port.lid, port.sm_lid, port.lmc) == (ctx.hca.lid, 1, 0)
        assert (port.active_width, port.active_speed, port.speed_gbps) == (2, 64, 200)  # 4x HDR
        assert (port.active_mtu, port.max_mtu) == (Mtu.IBV_MTU_4096, Mtu.IBV_MTU_4096)
        assert (port.bad_pkey_cntr, port.qkey_viol_cntr) == (0, 0)
        assert port.port_cap_flags & PortCapFlags.IBV_PORT_CLIENT_REG_SUP
        assert ctx.query_port_speed() == 2000
        refused(errno.EINVAL, lambda: ctx.query_port(2), "this device has port 1")
        refused(errno.EINVAL, lambda: ctx.query_port_speed(0), "this device has port 1")
        refused(errno.EINVAL, lambda: ctx.query_gid(2, 0), "this device has port 1")
        refused(errno.EINVAL, lambda: ctx.query_gid_ex(2, 0), "this device has port 1")
        refused(errno.EINVAL, lambda: ctx.query_pkey(2, 0), "this device has port 1")
        refused(errno.EINVAL, lambda: ctx.get_pkey_index(2, 0xFFFF), "this device has port 1")


@pytest.mark.parametrize(("gbps", "code"), [(40, 4), (56, 16), (100, 32), (200, 64), (400, 128), (800, 256), (123, 0)])
def test_speed_codes(gbps: int, code: int) -> None:
    port = port_attributes(info(rate_bps=gbps * 10**9), DeviceAttr(), STATUS)
    assert (port.active_width, port.active_speed, port.speed_gbps) == (2, code, gbps)


def test_the_gid_table_of_an_infiniband_port(unshaped: LocalLab) -> None:
    with Context("hca2", str(unshaped.socket_path(0))) as ctx:
        length = ctx.query_port().gid_tbl_len
        assert ctx.query_gid(1, 0) == ctx.hca.gid
        assert [ctx.query_gid(1, i) for i in range(1, length)] == ["::"] * (length - 1)
        assert ctx.query_gid_ex(1, 0) == GIDEntry(ctx.hca.gid, 0, 1, GidType.IBV_GID_TYPE_IB, 0)
        assert ctx.query_gid_type(1, 0) == GidType.IBV_GID_TYPE_IB
        assert ctx.query_gid_table() == ctx.query_gid_table(1) == [ctx.query_gid_ex(1, 0)]
        refused(errno.EINVAL, lambda: ctx.query_gid(1, length))
        refused(errno.EINVAL, lambda: ctx.query_gid(1, -1))
        refused(errno.EINVAL, lambda: ctx.query_gid_ex(1, length))
        refused(errno.ENODATA, lambda: ctx.query_gid_ex(1, 1))
        refused(errno.ENODATA, lambda: ctx.query_gid_type(1, length - 1))
        refused(errno.EINVAL, lambda: ctx.query_gid_ex(1, 0, 1))
        refused(errno.EINVAL, lambda: ctx.query_gid_table(0))
        refused(errno.EINVAL, lambda: ctx.query_gid_table(8, flags=1))


def test_the_gid_table_of_an_ethernet_port() -> None:
    ethernet = LinkLayer.IBV_LINK_LAYER_ETHERNET
    v1, v2 = GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_ROCE_V2
    assert gid_table(0x0002C90300000107, 0x0107, "unused", "rocev2") == [
        ("fe80::202:c9ff:fe00:107", v1),
        ("fe80::202:c9ff:fe00:107", v2),
        ("::ffff:10.64.1.7", v1),
        ("::ffff:10.64.1.7", v2),
    ]
    hca = EmulatedHca(info(link_layer=int(ethernet), transport="rocev2"), random.Random(1))
    assert [kind for _, kind in hca.port.gids] == [v1, v2, v1, v2]
    assert hca.port.with_gids(["2001:DB8::1"])[4:] == [("2001:db8::1", v1), ("2001:db8::1", v2)]
    refused(errno.EINVAL, lambda: hca.port.with_gids([f"2001:db8::{n}" for n in range(7)]), "18 GIDs, the table has 16")
    assert len(hca.port.gids) == 4
    port = port_attributes(hca.info, DeviceAttr(), STATUS)
    assert (port.link_layer, port.lid, port.sm_lid) == (ethernet, 0, 0)
    assert port.port_cap_flags & PortCapFlags.IBV_PORT_IP_BASED_GIDS


def test_the_gid_table_by_transport() -> None:
    guid, lid, ethernet = 0x0002C90300000107, 0x0107, int(LinkLayer.IBV_LINK_LAYER_ETHERNET)
    v1, ib = GidType.IBV_GID_TYPE_ROCE_V1, GidType.IBV_GID_TYPE_IB
    assert gid_table(guid, lid, "the GID") == [("the GID", ib)]
    assert gid_table(guid, lid, "", "rocev1", subnet=3) == [("fe80::202:c9ff:fe00:107", v1), ("::ffff:10.67.1.7", v1)]
    assert gid_table(guid, lid, "", "iwarp") == [("2:c900:107::", ib)]  # MAC 00:02:c9:00:01:07, then zeros
    rnic = EmulatedHca(info(link_layer=ethernet, transport="iwarp"), random.Random(1))
    refused(errno.EOPNOTSUPP, lambda: rnic.port.with_gids(["2001:db8::1"]), "has one entry, the MAC")


def test_pkeys(unshaped: LocalLab) -> None:
    with Context("hca2", str(unshaped.socket_path(0))) as ctx:
        length = ctx.query_port().pkey_tbl_len
        assert (ctx.query_pkey(1, 0), ctx.query_pkey(1, 1), ctx.query_pkey(1, length - 1)) == (0xFFFF, 0, 0)
        assert ctx.get_pkey_index(1, 0xFFFF) == 0
        refused(errno.EINVAL, lambda: ctx.query_pkey(1, length))
        refused(errno.EINVAL, lambda: ctx.query_pkey(1, -1))
        refused(errno.ENOENT, lambda: ctx.get_pkey_index(1, 0x8001))
