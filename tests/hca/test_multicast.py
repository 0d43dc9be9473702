"""Multicast: a datagram to a group reaches every queue pair attached to it, on every HCA, and no other."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from datagram_rig import QKEY, Station
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.errors import VerbsError
from fauxrdma.hca.ud import MULTICAST_QPN
from fauxrdma.ib.attributes import AHAttr, DeviceAttr
from fauxrdma.ib.enums import IBV_WC_GRH, IBV_WC_RECV
from fauxrdma.sim.world import World
from fauxrdma.wire.grh import Grh, gid_bytes

GROUP, LID = "ff12:401b:ffff::1", 0xC001


def join(station: Station, gid: str = GROUP, lid: int = LID) -> None:
    station.hca.engine.datagrams.attach(station.qp.qp, gid, lid)


def leave(station: Station, gid: str = GROUP, lid: int = LID) -> None:
    station.hca.engine.datagrams.detach(station.qp.qp, gid, lid)


def shout(station: Station, length: int = 100, gid: str = GROUP, lid: int = LID, **fields: Any) -> None:
    ah = station.hca.create_ah(AHAttr(lid, is_global=True, dgid=gid))
    station.post(ah, MULTICAST_QPN, length, **fields)


def heard(station: Station) -> list[int]:
    return [wc.byte_len - 40 for wc in station.qp.completions if wc.opcode == IBV_WC_RECV]


def test_every_member_hears_it_also_several_on_one_hca_and_nobody_else() -> None:
    world = World(3, seed=1)
    sender, member, second, third, outsider = (Station(world, at) for at in (0, 1, 1, 2, 2))
    for station in (sender, member, second, third, outsider):
        station.receive()
    for station in (member, second, third):
        join(station)
    shout(sender)
    world.run()
    for station in (member, second, third):
        (wc,) = station.qp.completions
        assert (wc.status, wc.byte_len, wc.src_qp, wc.slid, wc.wc_flags) == (0, 140, sender.qpn, 1, IBV_WC_GRH)
        assert station.inbox[40:140] == sender.data[:100]
        grh = Grh.from_bytes(station.inbox)
        assert (grh.sgid, grh.dgid) == (gid_bytes("fe80::1"), gid_bytes(GROUP))
    assert heard(outsider) == heard(sender) == []
    assert sender.statuses == [(1, 0)]


def test_the_sender_hears_itself_only_when_attached() -> None:
    world = World(1, seed=1)
    sender, neighbour = Station(world, 0), Station(world, 0)
    for _ in range(2):
        sender.receive()
        neighbour.receive()
    join(neighbour)
    shout(sender, 10)
    world.run()
    assert (heard(sender), heard(neighbour)) == ([], [10])
    join(sender)
    shout(sender, 20)
    world.run()
    assert (heard(sender), heard(neighbour)) == ([20], [10, 20])


def test_leaving_and_destroying_end_it() -> None:
    world = World(3, seed=1)
    sender, member, doomed = (Station(world, at) for at in range(3))
    member.receive()
    join(member)
    join(doomed)
    leave(member)
    doomed.hca.engine.destroy_qp(doomed.qpn)
    assert world.hcas[1].engine.datagrams.multicast.lids() == world.hcas[2].engine.datagrams.multicast.lids() == set()
    shout(sender)
    world.run()
    assert heard(member) == []
    assert sender.statuses == [(1, 0)]
    assert not any("->lid" in line for line in world.trace)


def test_groups_are_told_apart_by_gid_and_the_qkey_counts() -> None:
    world = World(2, seed=1)
    sender, member, other = Station(world, 0), Station(world, 1), Station(world, 1, qkey=QKEY + 1)
    for station in (member, other):
        station.receive()
        join(station)
    shout(sender, 10, gid="ff12:401b:ffff::2")  # the same LID, another group
    shout(sender, 20)
    world.run()
    assert heard(member) == [20]
    assert heard(other) == []
    assert world.hcas[1].engine.port.counters.qkey_violations == 1


def test_a_member_without_a_receive_takes_nothing_from_the_others() -> None:
    world = World(2, seed=1)
    sender, member, empty = Station(world, 0), Station(world, 1), Station(world, 1)
    join(empty)
    join(member)
    member.receive()
    shout(sender)
    world.run()
    assert heard(member) == [100]
    assert world.hcas[1].engine.port.counters.no_receive == 1


@pytest.mark.parametrize(
    ("gid", "lid", "words"),
    [
        ("fe80::1", LID, "not a multicast GID"),
        ("nothing", LID, "is not a GID"),
        (GROUP, 0xBFFF, "LID 0xbfff is not a multicast LID"),
        (GROUP, 0xFFFF, "LID 0xffff is not a multicast LID"),
    ],
)
def test_what_is_no_group_is_refused(gid: str, lid: int, words: str) -> None:
    station = Station(World(1), 0)
    for verb in (join, leave):
        with pytest.raises(VerbsError, match=words) as caught:
            verb(station, gid, lid)
        assert caught.value.errno == errno.EINVAL


def test_attaching_twice_is_once_and_detaching_what_is_not_attached_is_refused() -> None:
    station = Station(World(1), 0)
    join(station)
    join(station)
    leave(station)
    with pytest.raises(VerbsError, match="is not attached to ff12"):
        leave(station)
    assert station.hca.engine.datagrams.multicast.lids() == set()


def test_other_queue_pairs_hear_no_groups() -> None:
    world = World(1)
    qp = world.hcas[0].create_qp()
    with pytest.raises(VerbsError, match="it is IBV_QPT_RC, only IBV_QPT_UD"):
        world.hcas[0].engine.datagrams.attach(qp.qp, GROUP, LID)


def test_the_limits_hold() -> None:
    world = World(1)
    a, b = Station(world, 0), Station(world, 0)
    world.hcas[0].engine.datagrams._attributes = DeviceAttr(max_mcast_grp=1, max_mcast_qp_attach=1)
    join(a)
    join(a)
    with pytest.raises(VerbsError, match="max_mcast_qp_attach is 1") as caught:
        join(b)
    assert caught.value.errno == errno.ENOMEM
    with pytest.raises(VerbsError, match="max_mcast_grp is 1"):
        join(b, "ff12::9")


memberships = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2]), st.booleans()), max_size=30)


@given(memberships, st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2])), max_size=10))
def test_membership_is_what_was_said_last(moves: list[tuple[int, int, bool]], shouts: list[tuple[int, int]]) -> None:
    world = World(3, seed=1)
    stations = [Station(world, at % 3) for at in range(6)]
    groups = [("ff12::1", 0xC001), ("ff12::2", 0xC001), ("ff15::1", 0xC002)]
    members: set[tuple[int, int]] = set()
    for who, group, joins in moves:
        if joins:
            join(stations[who], *groups[group])
            members.add((who, group))
        elif (who, group) in members:
            leave(stations[who], *groups[group])
            members.discard((who, group))
    expected: list[list[int]] = [[] for _ in stations]
    for i, (who, group) in enumerate(shouts):
        for at, station in enumerate(stations):
            station.receive()
            if (at, group) in members:
                expected[at].append(i)
        gid, lid = groups[group]
        shout(stations[who], i, gid, lid)
        world.run()
    assert [heard(station) for station in stations] == expected
