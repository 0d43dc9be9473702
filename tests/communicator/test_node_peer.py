"""Shared memory between ranks of one node: the staging's words, the bell, and both ends of a connection."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading

import msgpack
import numpy as np
import pytest

from fauxrdma.collectives.executor import PutMessage
from fauxrdma.communicator.bell import Bell, BellRope
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.communicator.shared_inbox import SharedInbox
from fauxrdma.errors import CollectiveError, RemoteProtocolError
from fauxrdma.fabric.peer_port import PeerPort
from fauxrdma.fabric.peer_way import PeerWay
from fauxrdma.units import Rate

SLOTS, SLOT_BYTES = 4, 4096


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


class TestInbox:
    def test_what_is_announced_is_seen_and_credits_come_back(self) -> None:
        inbox = SharedInbox.create(SLOTS, SLOT_BYTES)
        sender = SharedInbox.attach(os.getpid(), inbox.fd, SLOTS, SLOT_BYTES)
        sender.memory[SLOT_BYTES : SLOT_BYTES + 3] = (1, 2, 3)
        for number in range(6):
            sender.announce(number, 100 + number, 7 * number, number)
        assert inbox.put == 6
        assert [inbox.message(number) for number in range(2, 6)] == [
            (102, 14, 2),
            (103, 21, 3),
            (104, 28, 4),
            (105, 35, 5),
        ]
        assert inbox.memory[SLOT_BYTES : SLOT_BYTES + 4].tolist() == [1, 2, 3, 0]
        inbox.give_back(3)
        inbox.give_back(1)
        assert sender.credits == 4
        assert not inbox.sender_left
        sender.leave()
        assert inbox.sender_left
        sender.close()
        sender.close()
        inbox.close()

    def test_memory_that_is_no_inbox_is_refused(self) -> None:
        inbox = SharedInbox.create(SLOTS, SLOT_BYTES)
        with pytest.raises(RemoteProtocolError, match="were agreed"):
            SharedInbox.attach(os.getpid(), inbox.fd, SLOTS + 1, SLOT_BYTES)
        fd = os.memfd_create("other")
        os.ftruncate(fd, os.fstat(inbox.fd).st_size)
        with pytest.raises(RemoteProtocolError, match="no inbox"):
            SharedInbox.attach(os.getpid(), fd, SLOTS, SLOT_BYTES)
        with pytest.raises(OSError, match="No such file"):
            SharedInbox.attach(os.getpid(), 999_999, SLOTS, SLOT_BYTES)
        os.close(fd)
        inbox.close()


class TestBell:
    def test_only_a_sleeper_is_rung(self) -> None:
        bell = Bell()
        rope = BellRope(bell.description)
        rope.ring()
        assert not readable(bell.fd)
        bell.about_to_sleep()
        rope.ring()
        rope.ring()
        assert readable(bell.fd)
        bell.awake()
        assert not readable(bell.fd)
        rope.ring()
        assert not readable(bell.fd)
        rope.close()
        rope.close()
        bell.close()
        bell.close()

    def test_a_full_pipe_and_a_dead_sleeper_do_no_harm(self) -> None:
        bell = Bell()
        rope = BellRope(bell.description)
        bell.about_to_sleep()
        for _ in range(70_000):  # more than a pipe holds
            rope.ring()
        bell.close()
        rope.ring()
        rope.close()


def pair(way: PeerWay | None = None, slots: int = SLOTS) -> tuple[NodePeer, NodePeer]:
    """Rank 0's connection to rank 1 and rank 1's to rank 0, both in this process."""
    ends = [NodePeer(1 - peer, peer, Bell(), PeerPort(), slots=slots, slot_bytes=SLOT_BYTES) for peer in (1, 0)]
    cards = [end.description() for end in ends]
    for end, card in zip(ends, reversed(cards), strict=True):
        end.connect(card)
        end.way = way
        end.timed = way is not None
    return ends[0], ends[1]


def put(end: NodePeer, data: bytes, now_ns: int = 0, credits: int = 0) -> None:
    """What a plan does: prepare the outbox slot, then put it."""
    channel = end.channel
    assert channel is not None
    number = channel.sent
    assert channel.may_put(number)
    channel.slot_views(np.dtype(np.uint8))[1][number % end_slots(end)][: len(data)] = np.frombuffer(data, np.uint8)
    channel.sent += 1
    end.put(PutMessage(1, number, len(data), credits, None, 0, True), None, now_ns)


def end_slots(end: NodePeer) -> int:
    assert end.channel is not None
    return end.channel.slots


class TestPair:
    def test_a_message_lands_without_being_copied_and_its_slot_comes_back(self) -> None:
        a, b = pair()
        assert a.channel is not None
        assert b.channel is not None
        for _ in range(3):
            for number in range(SLOTS):
                put(a, bytes([number] * 10))
            assert not a.channel.may_put(a.channel.sent)
            assert b.poll(0)
            assert not b.poll(0)
            assert b.channel.arrived == a.channel.sent
            first = b.channel.arrived - SLOTS
            slots = b.channel.slot_views(np.dtype(np.uint8))[0]
            for number in range(SLOTS):
                assert b.channel.length(first + number) == 10
                assert slots[(first + number) % SLOTS][:11].tolist() == [number] * 10 + [0]
                b.channel.release(first + number)
            b.return_credits(b.channel.take_credits(SLOTS))
            assert a.poll(0)
            assert a.channel.completed == a.channel.sent
        a.close()
        b.close()

    def test_a_forwarded_message_is_copied_from_inbox_to_inbox(self) -> None:
        a, b = pair()
        c, d = pair()
        put(a, b"forward me")
        b.poll(0)
        assert c.channel is not None
        assert b.channel is not None
        c.channel.forward(0, b.channel, 0)
        c.channel.sent += 1
        b.channel.release(0)
        c.put(PutMessage(1, 0, 10, 0, 0, 0, True), b.channel, 0)
        assert b.channel.credits_owed == 1  # the put completed at once, so the slot is free
        d.poll(0)
        assert d.channel is not None
        assert d.channel.slot_views(np.dtype(np.uint8))[0][0][:10].tobytes() == b"forward me"
        for end in (a, b, c, d):
            end.close()

    def test_credits_ride_on_messages(self) -> None:
        a, b = pair()
        put(a, b"x")
        b.poll(0)
        assert b.channel is not None
        assert a.channel is not None
        b.channel.release(0)
        put(b, b"y", credits=b.channel.take_credits(7))
        a.poll(0)
        assert a.channel.credits_received == 1
        assert a.channel.arrived == 1
        a.close()
        b.close()

    def test_modelled_messages_are_there_when_they_are_due(self) -> None:
        a, b = pair(PeerWay((("x",),), 600, Rate.gbps(80)))  # 10 bytes per ns
        put(a, bytes(1000), now_ns=50)
        put(a, bytes(1000), now_ns=60)
        assert b.channel is not None
        assert not b.poll(749)
        assert b.next_due_ns == 750
        assert b.poll(750)
        assert b.channel.arrived == 1
        assert b.next_due_ns == 850
        assert b.poll(900)
        assert b.channel.arrived == 2
        assert b.next_due_ns is None
        a.close()
        b.close()

    def test_what_was_put_before_leaving_still_arrives(self) -> None:
        a, b = pair(PeerWay((("x",),), 600, Rate.gbps(80)))
        put(a, b"last words", now_ns=0)
        a.disconnect("its daemon died")
        assert not b.poll(0)
        assert b.failure is None
        assert b.poll(10_000)
        assert b.channel is not None
        assert b.channel.arrived == 1
        assert b.failure is not None
        assert "whose communicator broke (its daemon died)" in b.failure
        a.close()
        b.close()

    def test_different_staging_is_refused_in_words(self) -> None:
        a = NodePeer(0, 1, Bell(), PeerPort(), slots=4, slot_bytes=SLOT_BYTES)
        b = NodePeer(1, 0, Bell(), PeerPort(), slots=8, slot_bytes=SLOT_BYTES)
        with pytest.raises(CollectiveError, match="8 slots of 4096 bytes, this rank 4"):
            a.connect(b.description())
        a.close()
        b.close()

    def test_a_process_that_ends_is_noticed(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        a, b = pair()
        card = msgpack.unpackb(b.description())
        card["bell"]["pid"] = child.pid
        c = NodePeer(0, 1, Bell(), PeerPort(), slots=SLOTS, slot_bytes=SLOT_BYTES)
        with pytest.raises(OSError, match="No such file"):
            c.connect(msgpack.packb(card))  # the child holds no such descriptors, but its end can be watched
        assert c.check_alive()
        child.kill()
        child.wait()
        assert not c.check_alive()
        assert c.failure == (
            f"rank 0 lost rank 1: shared memory (path unknown) with process {child.pid}, which has ended"
        )
        for end in (a, b, c):
            end.close()

    def test_threads_at_both_ends_lose_nothing(self) -> None:
        """20,000 messages with numbers in them, one side writing while the other reads."""
        a, b = pair(slots=8)
        failures: list[str] = []
        count = 20_000

        def write() -> None:
            assert a.channel is not None
            for number in range(count):
                while not a.channel.may_put(number):
                    a.poll(0)
                put(a, number.to_bytes(8, "little"))

        writer = threading.Thread(target=write)
        writer.start()
        assert b.channel is not None
        slots = b.channel.slot_views(np.dtype(np.uint64))[0]
        taken = 0
        while taken < count and not failures:
            b.poll(0)
            while taken < b.channel.arrived:
                if int(slots[taken % 8][0]) != taken:
                    failures.append(f"message {taken} holds {int(slots[taken % 8][0])}")
                b.channel.release(taken)
                taken += 1
            if b.channel.credits_owed >= 4:
                b.return_credits(b.channel.take_credits(100))
        writer.join()
        assert not failures
        a.close()
        b.close()
