"""UD: datagrams of one MTU, 40 bytes in front, Q_Keys, address handles; what nobody can use is counted (A2, A3, A6)."""

from __future__ import annotations

import errno
from collections import Counter
from typing import Any

import pytest
from datagram_rig import QKEY, SIZE, Station
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.ib.attributes import AHAttr, DeviceAttr, QPAttr
from fauxrdma.ib.enums import (
    IBV_QP_QKEY,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_QPS_SQE,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_GRH,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_RECV,
    IBV_WC_SEND,
    IBV_WC_WITH_IMM,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
    GidType,
)
from fauxrdma.memory.regions import ProtectionDomain
from fauxrdma.sim.world import LinkFaults, World
from fauxrdma.wire.grh import Grh, gid_bytes
from fauxrdma.wire.headers import Frame, decode_header, encode_header, frame_lengths

SIGNALED = int(IBV_SEND_SIGNALED)


def stations(**options: Any) -> tuple[World, Station, Station]:
    world = World(2, seed=11, **options)
    return world, Station(world, 0), Station(world, 1)


@pytest.mark.parametrize("length", [0, 1, 100, 4095, 4096])
@pytest.mark.parametrize("opcode", [IBV_WR_SEND, IBV_WR_SEND_WITH_IMM])
@pytest.mark.parametrize("routed", [False, True])
def test_a_datagram_of_every_length(length: int, opcode: int, routed: bool) -> None:
    world, a, b = stations()
    b.receive()
    b.data[SIZE:] = b"\xee" * SIZE
    ah = a.global_ah(b, sl=5, hop_limit=9, traffic_class=3, flow_label=77) if routed else a.ah(b, sl=5)
    a.post(ah, b.qpn, length, opcode=opcode, imm=0xABCD)
    world.run()
    (sent,) = a.qp.completions
    assert (sent.wr_id, sent.status, sent.opcode) == (1, 0, IBV_WC_SEND)
    (wc,) = b.qp.completions
    assert (wc.wr_id, wc.status, wc.opcode) == (7, 0, IBV_WC_RECV)
    assert wc.byte_len == length + 40
    assert (wc.src_qp, wc.slid, wc.sl, wc.pkey_index) == (a.qpn, 1, 5, 0)
    with_imm = opcode == IBV_WR_SEND_WITH_IMM
    assert wc.wc_flags == (IBV_WC_GRH if routed else 0) | (IBV_WC_WITH_IMM if with_imm else 0)
    assert wc.imm_data == (0xABCD if with_imm else 0)
    assert b.inbox[40 : 40 + length] == a.data[:length]
    assert b.inbox[40 + length :] == b"\xee" * (SIZE - 40 - length)
    if routed:
        grh = Grh.from_bytes(b.inbox)
        behind = 12 + 8 + (4 if with_imm else 0) + length + -length % 4 + 4
        assert grh == Grh(gid_bytes("fe80::1"), gid_bytes("fe80::2"), behind, 9, 3, 77)
    else:
        assert b.inbox[:40] == b"\xee" * 40


@pytest.mark.parametrize("gids", [("fe80::1", "fe80::2"), ("::ffff:10.0.0.1", "::ffff:10.0.0.2")])
def test_roce_v2_ports_put_an_ip_header_there(gids: tuple[str, str]) -> None:
    world, a, b = stations()
    for hca, gid in zip(world.hcas, gids, strict=True):
        hca.engine.port.gids = [(gid_bytes(gid), GidType.IBV_GID_TYPE_ROCE_V2)]
    b.receive()
    a.post(a.global_ah(b, hop_limit=64), b.qpn, 100)
    world.run()
    (wc,) = b.qp.completions
    assert wc.wc_flags == IBV_WC_GRH
    grh = Grh.from_bytes(b.inbox)
    assert (grh.sgid, grh.dgid, grh.hop_limit) == (gid_bytes(gids[0]), gid_bytes(gids[1]), 64)
    assert grh.is_ipv4 == ("." in gids[0])
    assert (b.inbox[:20] == bytes(20)) == grh.is_ipv4


def test_the_source_gid_is_the_one_at_sgid_index() -> None:
    world, a, b = stations()
    port = a.hca.engine.port
    port.gids.append((gid_bytes("fe80::77"), GidType.IBV_GID_TYPE_IB))
    b.receive()
    ah = a.global_ah(b, sgid_index=1)
    a.post(ah, b.qpn, 100)
    world.run()
    assert Grh.from_bytes(b.inbox).sgid == gid_bytes("fe80::77")
    # It is heard there, too, and once it is gone nothing can be sent from it.
    a.receive(8)
    b.post(b.ah(a, is_global=True, dgid="fe80::77"), a.qpn, 50)
    world.run()
    assert [wc.byte_len for wc in a.qp.completions if wc.opcode == IBV_WC_RECV] == [90]
    del port.gids[1]
    a.post(ah, b.qpn, 100, 3)
    world.run()
    assert a.statuses[-1] == (3, IBV_WC_LOC_QP_OP_ERR)


def test_pieces_inline_and_solicited() -> None:
    frames: list[Frame] = []
    world, a, b = stations(fault_rule=lambda frame: frames.append(frame) or "ok")  # type: ignore[func-returns-value]
    b.qp.post_recv(7, ((b.region.base + SIZE, 30, b.region.lkey), (b.region.base + SIZE + 30, 200, b.region.lkey)))
    a.send(b, flags=SIGNALED | int(IBV_SEND_INLINE | IBV_SEND_SOLICITED), inline=b"hello, datagram", sges=())
    world.run()
    assert b.statuses == [(7, 0)]
    assert b.inbox[40:55] == b"hello, datagram"  # across the border of two pieces
    assert frames[0].solicited
    b.receive()
    parts = tuple((a.region.base + at, 10, a.region.lkey) for at in (500, 0, 250))
    a.send(b, sges=parts)
    world.run()
    assert b.inbox[40:70] == a.data[500:510] + a.data[:10] + a.data[250:260]


def test_the_completion_means_that_the_memory_is_the_senders_again() -> None:
    world, a, b = stations()
    b.receive()
    sent = bytes(a.data[:100])
    a.hca.on_completion = lambda wc: a.data.__setitem__(slice(0, 100), bytes(100))
    a.send(b)
    world.run()
    assert b.inbox[40:140] == sent


def test_to_oneself_and_to_a_neighbour_on_the_same_hca() -> None:
    world = World(1, seed=1)
    a, b = Station(world, 0), Station(world, 0)
    a.receive()
    b.receive()
    a.send(a, 50, 1)
    a.send(b, 60, 2)
    world.run()
    assert [(wc.wr_id, wc.byte_len, wc.src_qp) for wc in a.qp.completions if wc.wr_id == 7] == [(7, 90, a.qpn)]
    assert [(wc.wr_id, wc.byte_len, wc.src_qp) for wc in b.qp.completions] == [(7, 100, a.qpn)]


def test_one_queue_pair_talks_to_many() -> None:
    world = World(4, seed=1)
    a, *others = [Station(world, at) for at in range(4)]
    for other in others:
        other.receive()
    for wr_id, other in enumerate(others):
        a.send(other, 10 + wr_id, wr_id)
    world.run()
    assert a.statuses == [(0, 0), (1, 0), (2, 0)]
    assert [other.qp.completions[0].byte_len for other in others] == [50, 51, 52]


# ---- Q_Keys ------------------------------------------------------------------------------------------------------


def test_a_wrong_qkey_is_dropped_and_counted() -> None:
    world, a, b = stations()
    b.receive()
    a.send(b, qkey=QKEY ^ 1)
    a.send(b, 50, 2)
    world.run()
    assert a.statuses == [(1, 0), (2, 0)]
    assert [wc.byte_len for wc in b.qp.completions] == [90]
    assert b.hca.engine.port.counters.qkey_violations == 1
    assert "Q_Key 0x11111110 is not this queue pair's 0x11111111" in b.qp.qp.last_error


def test_a_qkey_with_the_top_bit_stands_for_the_queue_pairs_own() -> None:
    world, a, b = stations()
    for _ in range(2):
        b.receive()
    a.send(b, 10, qkey=0x80000000)
    world.run()
    assert len(b.qp.completions) == 1
    # A privileged Q_Key can be had that way alone: the queue pair's own, with the top bit set.
    privileged = 0x80010000
    world.modify(a.qp, QPAttr(qkey=privileged), IBV_QP_QKEY)
    world.modify(b.qp, QPAttr(qkey=privileged), IBV_QP_QKEY)
    a.send(b, 11, qkey=0xFFFFFFFF)
    a.send(b, 12, qkey=0x10000)
    world.run()
    assert [wc.byte_len for wc in b.qp.completions] == [50, 51]
    assert b.hca.engine.port.counters.qkey_violations == 1


# ---- what is dropped ---------------------------------------------------------------------------------------------


def test_no_receive_and_a_receive_too_short_are_counted_and_the_receive_stays() -> None:
    world, a, b = stations()
    a.send(b)
    world.run()
    assert b.hca.engine.port.counters.no_receive == 1
    b.receive(7, 139)
    a.send(b, 100)
    world.run()
    assert b.hca.engine.port.counters.receive_too_short == 1
    assert "needs 140 B, the posted receive has 139 B" in b.qp.qp.last_error
    a.send(b, 99, 3)
    world.run()
    assert [(wc.wr_id, wc.byte_len) for wc in b.qp.completions] == [(7, 139)]
    assert b.qp.qp.state == IBV_QPS_RTS
    assert b.hca.async_events == []


def test_datagrams_for_nobody_are_counted() -> None:
    world, a, b = stations()
    rc = b.hca.create_qp()
    for qpn in (0xABCDE, rc.qp.qpn, 0):
        a.post(a.ah(b), qpn)
    a.post(a.ah(b, is_global=True, dgid="fe80::77"), b.qpn)
    world.run()
    counters = b.hca.engine.port.counters
    assert (counters.no_queue_pair, counters.wrong_address) == (3, 1)
    assert a.statuses == [(1, 0)] * 4


def test_a_queue_pair_before_rtr_hears_nothing() -> None:
    world, a, b = stations()
    world.modify(b.qp, QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    world.modify(b.qp, QPAttr(qp_state=IBV_QPS_INIT, qkey=QKEY), IBV_QP_STATE | 16 | 32 | IBV_QP_QKEY)
    b.receive()
    a.send(b)
    world.run()
    assert b.qp.completions == []
    assert len(b.qp.rq) == 1


def test_a_broken_receive_is_told_to_its_owner_alone() -> None:
    world, a, b = stations()
    b.qp.post_recv(7, ((b.region.base, 500, b.region.lkey ^ 1),))
    b.receive(8)
    a.send(b)
    world.run()
    assert a.statuses == [(1, 0)]
    assert b.statuses == [(7, IBV_WC_LOC_PROT_ERR), (8, IBV_WC_WR_FLUSH_ERR)]
    assert b.qp.qp.state == IBV_QPS_ERR


# ---- local errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["mtu", "lkey", "write", "read", "no handle", "other pd", "destroyed handle"])
def test_a_local_error_is_sqe_and_sqe_to_rts_recovers(wrong: str) -> None:
    world, a, b = stations()
    b.receive(7)
    good = a.ah(b)
    a.post(good, b.qpn, 10, 1)
    fields: dict[str, Any] = {}
    ah, length, status = good, 10, IBV_WC_LOC_QP_OP_ERR
    if wrong == "mtu":
        length, status = 4097, IBV_WC_LOC_LEN_ERR
    elif wrong == "lkey":
        fields["sges"], status = ((a.region.base, 10, a.region.lkey ^ 1),), IBV_WC_LOC_PROT_ERR
    elif wrong in ("write", "read"):
        fields["opcode"] = IBV_WR_RDMA_WRITE if wrong == "write" else IBV_WR_RDMA_READ
    elif wrong == "no handle":
        ah = 999
    elif wrong == "other pd":
        ah = a.hca.create_ah(AHAttr(2), ProtectionDomain(99))
    elif wrong == "destroyed handle":
        ah = a.ah(b)
        a.hca.engine.datagrams.destroy_ah(ah)
    a.post(ah, b.qpn, length, 2, **fields)
    a.post(good, b.qpn, 10, 3)
    world.run()
    assert a.statuses == [(1, 0), (2, status), (3, IBV_WC_WR_FLUSH_ERR)]
    assert a.qp.qp.state == IBV_QPS_SQE
    a.receive(50)
    b.send(a)
    a.post(good, b.qpn, 10, 4)
    world.run()
    assert a.statuses[3:] == [(4, IBV_WC_WR_FLUSH_ERR), (50, 0)]
    world.modify(a.qp, QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    b.receive(8)
    a.post(good, b.qpn, 20, 5)
    world.run()
    assert a.statuses[5:] == [(5, 0)]
    assert [(wc.wr_id, wc.byte_len) for wc in b.qp.completions if wc.opcode == IBV_WC_RECV] == [(7, 50), (8, 60)]


# ---- address handles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dlid": 0}, "dlid 0 is not a unicast LID"),
        ({"dlid": 0xFFFF}, "dlid 65535 is not a unicast LID"),
        ({"dlid": 0xC001}, "needs is_global and its GID"),
        ({"dlid": 0xC001, "is_global": True, "dgid": "fe80::1"}, "needs is_global and its GID"),
        ({"dlid": 2, "sl": 16}, "sl is 16, legal are 0 to 15"),
        ({"dlid": 2, "port_num": 2}, "port_num is 2"),
        ({"dlid": 2, "flow_label": 1 << 20}, "flow_label is 1048576"),
        ({"dlid": 2, "sgid_index": 1}, "sgid_index is 1"),
        ({"dlid": 2, "dgid": "here"}, "dgid 'here' is not a GID"),
    ],
)
def test_addresses_nothing_can_be_sent_to_are_refused(fields: dict[str, Any], words: str) -> None:
    world = World(1)
    with pytest.raises(VerbsError, match=words) as caught:
        world.hcas[0].create_ah(AHAttr(**fields))
    assert caught.value.errno == errno.EINVAL
    assert world.pds[1].children == 0


def test_address_handles_count_in_their_domain_and_have_a_limit() -> None:
    world = World(1)
    engine = world.hcas[0].engine
    engine.datagrams._attributes = DeviceAttr(max_ah=2)
    handles = [world.hcas[0].create_ah(AHAttr(1)) for _ in range(2)]
    assert world.pds[1].children == 2
    with pytest.raises(VerbsError, match="max_ah = 2") as caught:
        world.hcas[0].create_ah(AHAttr(1))
    assert caught.value.errno == errno.ENOMEM
    for handle in handles:
        engine.datagrams.destroy_ah(handle)
    assert world.pds[1].children == 0


# ---- the wire ----------------------------------------------------------------------------------------------------


def test_the_header_carries_grh_and_service_level() -> None:
    grh = Grh(gid_bytes("fe80::1"), gid_bytes("fe80::2"), 128).to_bytes()
    for opcode in (0x64, 0x65):
        frame = Frame(opcode, 1, 2, 3, 4, nbytes=100, qkey=5, src_qpn=6, imm=7 if opcode == 0x65 else 0, sl=9, grh=grh)
        wire = encode_header(frame)
        assert frame_lengths(wire) == (len(wire), 100)
        assert wire[24:64] == grh
        assert decode_header(wire) == frame
    assert decode_header(encode_header(Frame(0x64, 1, 2, 3, 4))) == Frame(0x64, 1, 2, 3, 4)


# ---- whatever the link does --------------------------------------------------------------------------------------

chance = st.floats(0, 0.3)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4096), st.booleans()), min_size=1, max_size=20),
    st.integers(0, 2**32), chance, chance, chance, st.integers(0, 12),
)  # fmt: skip
def test_datagrams_are_whole_or_absent(
    plan: list[tuple[int, int, bool]], seed: int, loss: float, duplicate: float, delay: float, receives: int
) -> None:
    """Every send succeeds, in order. Each receive that completes holds one datagram that was sent to this queue pair,
    whole; a datagram is delivered no more often than the link delivered it, and under loss alone in order."""
    delivered: Counter[int] = Counter()

    world = World(3, seed=seed, faults=LinkFaults(loss, duplicate, delay))
    everybody = [Station(world, at) for at in range(3)]
    a = everybody[0]
    handles = [a.ah(to) for to in everybody]
    got: list[tuple[int, int, bytes]] = []

    def watch(to: Station) -> Any:
        def note(wc: Any) -> None:
            if wc.opcode == IBV_WC_RECV:
                assert wc.status == 0
                got.append((to.qpn, wc.imm_data, to.inbox[40 : wc.byte_len]))

        return note

    for to in everybody:
        to.hca.on_completion = watch(to)
        for wr_id in range(receives):
            to.receive(100 + wr_id)
    sent = []
    for i, (to, length, _) in enumerate(plan):
        data = bytes([i + 1]) * length
        flags = SIGNALED | int(IBV_SEND_INLINE)
        a.post(handles[to], everybody[to].qpn, 0, i, opcode=IBV_WR_SEND_WITH_IMM, imm=i, inline=data, flags=flags)
        sent.append((everybody[to].qpn, i, data))
    world.run()
    assert [wc.wr_id for wc in a.qp.completions if wc.opcode == IBV_WC_SEND] == list(range(len(plan)))
    assert all(datagram in sent for datagram in got)
    delivered.update(imm for _, imm, _ in got)
    assert all(count <= (2 if duplicate else 1) for count in delivered.values())
    counters = [to.hca.engine.port.counters.no_receive for to in everybody]
    for to, dropped in zip(everybody, counters, strict=True):
        here = [datagram for datagram in got if datagram[0] == to.qpn]
        mine = [datagram for datagram in sent if datagram[0] == to.qpn]
        assert len(here) <= receives
        assert dropped == 0 or len(here) == receives
        if not duplicate and not delay:
            rest = iter(mine)
            assert all(datagram in rest for datagram in here)
            if not loss:
                assert len(here) + dropped == len(mine)
