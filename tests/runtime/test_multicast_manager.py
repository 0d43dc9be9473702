"""Joining and leaving multicast groups at the subnet manager, spoken over real connections."""

from __future__ import annotations

import pytest
from fabric_peers import Peer
from test_subnet_manager import Serve, serve

from fauxrdma.runtime import pending_changes
from fauxrdma.wire.control import Message
from fauxrdma.wire.fabric_messages import (
    Directory,
    MulticastApplied,
    MulticastJoin,
    MulticastJoined,
    MulticastLeave,
    MulticastMembers,
    Refusal,
)

__all__ = ["serve"]

GROUP = 0xC001


async def pair(serve: Serve) -> tuple[Peer, int, Peer, int]:
    """Two daemons that are in, with the LID of the first HCA of each."""
    _, address = await serve()
    a, welcome_a = await Peer.node(address, 0)
    b, welcome_b = await Peer.node(address, 1)
    await a.recv(Directory)
    await b.recv(Directory)
    return a, welcome_a.hcas[0].lid, b, welcome_b.hcas[0].lid


async def members(peer: Peer) -> MulticastMembers:
    return await peer.recv(MulticastMembers)


async def test_a_join_is_answered_when_every_daemon_has_applied_it(serve: Serve) -> None:
    a, lid_a, b, lid_b = await pair(serve)
    a.send(MulticastJoin(lid_a, GROUP, 77))
    told_a, told_b = await members(a), await members(b)
    assert (told_a.group, told_a.lids) == (told_b.group, told_b.lids) == (GROUP, [lid_a])
    a.send(MulticastApplied(told_a.token))
    # Another join, so that an answer to the first that came too early would be seen before this one's news.
    b.send(MulticastJoin(lid_b, GROUP, 5))
    second_a, second_b = await members(a), await members(b)
    assert second_a.lids == second_b.lids == [lid_a, lid_b]
    b.send(MulticastApplied(told_b.token))
    assert (await a.recv(MulticastJoined)).token == 77
    a.send(MulticastApplied(second_a.token))
    b.send(MulticastApplied(second_b.token), MulticastApplied(second_b.token), MulticastApplied(12345))
    assert (await b.recv(MulticastJoined)).token == 5


async def test_leaving_is_told_and_leaving_twice_is_harmless(serve: Serve) -> None:
    a, lid_a, b, lid_b = await pair(serve)
    a.send(MulticastJoin(lid_a, GROUP, 1))
    b.send(MulticastJoin(lid_b, GROUP, 2))
    for peer in (a, b):
        await members(peer)
        await members(peer)
    a.send(MulticastLeave(lid_a, GROUP), MulticastLeave(lid_a, GROUP), MulticastLeave(lid_a, 0xC002))
    b.send(MulticastLeave(lid_b, GROUP))
    for peer in (a, b):
        left = [(await members(peer)).lids for _ in range(2)]
        assert left[1] == []
        assert left[0] in ([lid_a], [lid_b])


async def test_a_lost_daemon_leaves_and_is_not_waited_for(serve: Serve) -> None:
    a, lid_a, b, lid_b = await pair(serve)
    b.send(MulticastJoin(lid_b, GROUP, 1))
    await members(a)
    await members(b)
    a.send(MulticastJoin(lid_a, GROUP, 9))
    change = await members(a)
    a.send(MulticastApplied(change.token))
    await b.close()
    seen: list[Message | None] = [await a.next() for _ in range(3)]
    assert [m.lids for m in seen if isinstance(m, MulticastMembers)] == [[lid_a]]
    assert [m.token for m in seen if isinstance(m, MulticastJoined)] == [9]
    assert any(isinstance(m, Directory) for m in seen)


async def test_a_daemon_that_comes_in_is_told_of_the_groups(serve: Serve) -> None:
    _, address = await serve()
    a, welcome = await Peer.node(address, 0)
    lid = welcome.hcas[0].lid
    a.send(MulticastJoin(lid, GROUP, 1))
    a.send(MulticastApplied((await members(a)).token))
    assert (await a.recv(MulticastJoined)).token == 1
    b, _ = await Peer.node(address, 1)
    assert (await members(b)).lids == [lid]


async def test_a_stuck_daemon_is_waited_for_only_so_long(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_changes, "APPLY_TIMEOUT_S", 0.05)
    a, lid_a, b, _ = await pair(serve)
    a.send(MulticastJoin(lid_a, GROUP, 3))
    a.send(MulticastApplied((await members(a)).token))
    assert (await a.recv(MulticastJoined)).token == 3
    await b.close()  # it was there all the time, and said nothing


@pytest.mark.parametrize(
    ("lid", "group", "says"),
    [(999, GROUP, "has no HCA with LID 999"), (0, 0xBFFF, "LID 0xbfff as a multicast"), (0, 0xFFFF, "LID 0xffff")],
)
@pytest.mark.parametrize("joins", [True, False])
async def test_what_is_no_group_or_not_ones_own_is_refused(
    serve: Serve, lid: int, group: int, says: str, joins: bool
) -> None:
    a, lid_a, b, _ = await pair(serve)
    lid = lid or lid_a
    a.send(MulticastJoin(lid, group, 1) if joins else MulticastLeave(lid, group))
    assert says in (await a.recv(Refusal)).reason
    await b.close()
