"""Connections by the thousand, stale ones, and programs that never decide: what the manager holds, and how long."""

from __future__ import annotations

import gc

import pytest
from manager_pair import SERVICE, Pair

from fauxrdma.cm import CmMessage, Kind, Reject, State
from fauxrdma.cm.connection import MOST_TRIES, RESPONSE_NS, SERVICE_TIMEOUT, timeout_ns
from fauxrdma.cm.steps import TIMEWAIT_NS

EMPTY = {"connections": 0, "in_timewait": 0, "by_peer": 0, "by_queue_pair": 0, "deadlines": 0}


def test_5000_connections_one_after_the_other_leave_nothing() -> None:
    """While they come, what is held is what TIMEWAIT keeps; afterwards there is nothing."""
    pair = Pair()
    each_ns, cycles = 20_000_000, 5000
    kept = TIMEWAIT_NS // each_ns + 2
    objects: list[int] = []
    for i in range(cycles):
        mine, his = pair.established((100 + i, 100_000 + i))
        pair.do(i % 2 + 1, "disconnect", (mine, his)[i % 2], pair.now)
        pair.run(pair.now + each_ns)
        assert [pair.state(1, mine), pair.state(2, his)] == [State.TIMEWAIT] * 2
        assert pair.whats(1)[-1] == "disconnected"
        assert pair.whats(2)[-1] == "disconnected"
        for lid in (1, 2):
            pair.do(lid, "forget", (mine, his)[lid - 1], pair.now)
            pair.told[lid].clear()
            sizes = pair.managers[lid].book.sizes()
            assert sizes["connections"] == sizes["in_timewait"] <= kept
            assert sizes["deadlines"] <= 2 * kept
        pair.sent.clear()
        if i in (cycles // 5, cycles - 1):
            gc.collect()
            objects.append(len(gc.get_objects()))
    assert objects[1] - objects[0] < cycles // 50, objects
    pair.run()
    assert [manager.book.sizes() for manager in pair.managers.values()] == [EMPTY, EMPTY]


def test_a_deadline_costs_the_same_among_many_connections() -> None:
    """With 3,000 connections open the one that asks is the only one that is looked at."""
    pair = Pair()
    for i in range(3000):
        pair.established((100 + i, 100_000 + i))
        pair.told[2].clear()
    book = pair.managers[1].book
    assert len(book) == 3000
    assert book.next_deadline_ns() is None
    pair.dead.add(2)
    asking = pair.connect(qpn=99)
    assert book.next_deadline_ns() == pair.now + RESPONSE_NS
    assert [each.number for each in book.due(pair.now + RESPONSE_NS)] == [asking]
    assert book.sizes()["deadlines"] == 0


# ---- a queue pair that is believed connected (IBTA 12.9.8.3.1) -------------------------------------------------------


def restart(pair: Pair, lid: int) -> None:
    """The node of a manager comes back and knows nothing."""
    fresh = Pair(seed=99).managers[lid]
    pair.managers[lid] = fresh
    pair.told[lid].clear()


def test_a_request_from_a_queue_pair_that_is_connected_is_stale() -> None:
    """The peer has restarted: it is told, our side of the old connection is parted, and the next request succeeds."""
    pair = Pair()
    _, old = pair.established((17, 18))
    restart(pair, 1)
    pair.connect(qpn=17)
    pair.run(pair.now + 10_000)
    (tell,) = pair.told[1]
    assert tell.what == "rejected"
    assert tell.message is not None
    assert (tell.message.reason, tell.message.answered) == (Reject.STALE_CONNECTION, 0)
    assert pair.whats(2) == ["request", "established", "disconnected"]
    assert pair.state(2, old) == State.TIMEWAIT
    assert (2, Kind.DREQ) in pair.sent
    assert (1, Kind.DREP) in pair.sent  # of a connection that it does not know
    mine, his = pair.established((17, 19))
    assert [pair.state(1, mine), pair.state(2, his)] == [State.ESTABLISHED] * 2


def test_a_reply_from_a_queue_pair_that_is_connected_is_stale() -> None:
    pair = Pair()
    old, _ = pair.established((17, 18))
    restart(pair, 2)
    pair.managers[2].listen(SERVICE, 4)
    mine = pair.connect(qpn=27)
    pair.run(pair.now + 5000)
    pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP, qpn=18), pair.now)
    pair.run(pair.now + 10_000)
    assert pair.whats(1) == ["response", "established", "disconnected", "rejected"] or pair.whats(1) == [
        "response", "established", "rejected", "disconnected",
    ]  # fmt: skip
    assert pair.state(1, mine) is None
    assert pair.state(1, old) == State.TIMEWAIT
    (tell,) = [tell for tell in pair.told[2] if tell.what == "rejected"]
    assert tell.message is not None
    assert (tell.message.reason, tell.message.answered) == (Reject.STALE_CONNECTION, 1)


def test_a_connection_that_is_over_makes_nothing_stale() -> None:
    """TIMEWAIT keeps the numbers of a connection, not those of its queue pairs."""
    pair = Pair()
    mine, _ = pair.established((17, 18))
    pair.do(1, "disconnect", mine, pair.now)
    pair.run(pair.now + 5000)
    again, his = pair.established((17, 18))
    assert [pair.state(1, again), pair.state(2, his)] == [State.ESTABLISHED] * 2


def test_a_request_that_waits_is_not_parted_by_a_stale_one() -> None:
    """Nothing is established yet: the newer request is refused, the program may still decide about the older."""
    pair = Pair()
    pair.managers[2].listen(SERVICE, 4)
    for _ in range(2):
        pair.connect(qpn=17)
    pair.run(pair.now + 5000)
    assert pair.whats(2) == ["request"]
    assert [tell.message.reason for tell in pair.told[1] if tell.message] == [Reject.STALE_CONNECTION]
    assert pair.state(2, pair.requested()) == State.REQ_RCVD


@pytest.mark.parametrize("given", [0])
def test_requests_without_a_queue_pair_are_never_stale(given: int) -> None:
    pair = Pair()
    first = pair.established((given, given))
    second = pair.established((given, given))
    assert [pair.state(1, first[0]), pair.state(1, second[0])] == [State.ESTABLISHED] * 2


# ---- programs that are stopped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["requested", "accepted"])
def test_who_never_decides_is_given_up(step: str) -> None:
    """A program that is stopped keeps its peer waiting as long as its manager's MRAs say, and no longer."""
    pair = Pair()
    most = MOST_TRIES * (timeout_ns(SERVICE_TIMEOUT) + 2 * RESPONSE_NS)
    pair.managers[2].listen(SERVICE, 4)
    pair.connect()
    pair.run(pair.now + 5000)
    waits, other = 1, 2
    if step == "accepted":  # and it is the one who asked that never goes on
        pair.do(2, "accept", pair.requested(), CmMessage(Kind.REP, qpn=18), pair.now)
        waits, other = 2, 1
    pair.run(pair.now + most)
    assert (other, Kind.MRA) in pair.sent
    assert pair.whats(waits)[-1] == "unreachable"
    assert "rejected" in pair.whats(other)  # REJ, timeout: what the other finds when it goes on
    assert pair.sent.count((waits, Kind.REQ if waits == 1 else Kind.REP)) <= MOST_TRIES
    for lid in (1, 2):
        for number in list(pair.managers[lid].connections):
            pair.do(lid, "forget", number, pair.now)
    pair.run()
    assert [manager.book.sizes() for manager in pair.managers.values()] == [EMPTY, EMPTY]
