"""Views of a deregistered region that frames on their way hold: copied when they wait to be sent, let go of when they
are being received into."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fauxrdma.fabric.link_scheduler import LinkScheduler
from fauxrdma.hca.events import FrameReceived
from fauxrdma.ib.enums import BthOpcode
from fauxrdma.runtime.frame_receiver import FrameReceiver
from fauxrdma.runtime.peer_links import LocalLink, TcpLink
from fauxrdma.runtime.revocation import copy_payload
from fauxrdma.sim.world import World
from fauxrdma.wire.headers import Frame, encode_header, frame_lengths
from fauxrdma.wire.link_hello import HELLO_BYTES, encode_answer, encode_hello

LENGTH = 200_000


class Transport:
    """As much of a transport as a receiver needs."""

    def write(self, data: bytes) -> None:
        self.written = data


def feed(receiver: FrameReceiver, data: bytes) -> None:
    """What asyncio does with bytes from the kernel."""
    while data:
        buffer = receiver.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        receiver.buffer_updated(size)
        data = data[size:]


@pytest.mark.parametrize("indirect", [False, True])
def test_a_frame_that_is_half_received_goes_nowhere(indirect: bool) -> None:
    world = World(burst=LENGTH)
    a, b = world.pair()
    region, data = b.hca.alloc(LENGTH)
    if indirect:  # another region of the device is not mapped: that changes nothing for this one
        b.hca.engine.keys.indirect += 1
    engine = b.hca.engine
    answers: list[Any] = []
    receiver = FrameReceiver(
        0,
        engine.place,
        lambda frame: answers.extend(engine.handle(FrameReceived(frame), 0)),
        lambda write, payload: False,
        lambda receiver: None,
        lambda receiver: None,
    )
    receiver.connection_made(Transport())  # type: ignore[arg-type]
    feed(receiver, encode_hello(0, 0))
    frame = Frame(
        BthOpcode.RC_RDMA_WRITE_ONLY, 1, 2, b.qp.qpn, a.qp.attr.sq_psn, ack_req=True,
        va=region.base, rkey=region.rkey, dma_len=LENGTH, nbytes=LENGTH,
    )  # fmt: skip
    feed(receiver, encode_header(frame) + b"x" * (LENGTH // 2))
    assert data.count(b"x") == LENGTH // 2
    engine.deregister(region, 0)
    receiver.let_go(region.memory)
    feed(receiver, b"y" * (LENGTH - LENGTH // 2))
    assert b"y" not in data
    assert [action.frame.opcode for action in answers if hasattr(action, "frame")] == [BthOpcode.RC_ACKNOWLEDGE]
    assert answers[0].frame.syndrome == 0x60 | 2  # NAK, remote access error
    assert b.qp.state.name == "IBV_QPS_ERR"


async def test_what_waits_in_a_link_is_sent_as_it_was() -> None:
    """A peer that does not read: the region goes while most of the frame waits."""
    received = bytearray()
    go_on = asyncio.Event()
    done = asyncio.Event()
    memory = bytearray(b"k" * (4 << 20))
    frames = 4
    frame = Frame(BthOpcode.RC_SEND_ONLY, 1, 2, 3, 4, nbytes=len(memory), payload=(memoryview(memory),))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(HELLO_BYTES)
        writer.write(encode_answer(1, 0))
        await go_on.wait()
        size = len(encode_header(frame)) + len(memory)
        received.extend(await reader.readexactly(frames * size))
        writer.close()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    ready = asyncio.Event()
    link = TcpLink(asyncio.get_running_loop(), server.sockets[0].getsockname()[:2], 0, 0, lambda link: ready.set())
    async with asyncio.timeout(20):
        await ready.wait()
        for _ in range(frames):
            link.send(frame)
        assert not link.writable
        link.let_go(memory)
        memory[:] = bytes(len(memory))
        go_on.set()
        await done.wait()
    link.close()
    server.close()
    size, nbytes = frame_lengths(received)
    assert nbytes == len(memory)
    assert received == frames * (received[:size] + b"k" * len(memory))


async def test_what_waits_in_the_daemon_and_in_the_pacing_is_copied() -> None:
    memory, other = bytearray(b"one"), bytearray(b"two")

    def frame() -> Frame:
        return Frame(BthOpcode.RC_SEND_ONLY, 1, 1, 3, 4, nbytes=6, payload=(memoryview(memory), memoryview(other)))

    arrived: list[Frame] = []
    link = LocalLink(asyncio.get_running_loop(), arrived.append, lambda link: None)
    link.send(frame())
    scheduler = LinkScheduler()
    scheduler.open(1, 10**9, 1000)
    scheduler.submit(1, frame(), 6, 0)
    scheduler.submit(1, frame(), 6, 0)
    scheduler.submit(1, "something else", 0, 0)
    link.let_go(memory)
    copy_payload(scheduler.items(), memory)
    memory[:] = other[:] = b"???"
    await asyncio.sleep(0)
    released = [departure.item for departure in scheduler.poll(10**9)]
    frames = [item for item in [*arrived, *released] if isinstance(item, Frame)]
    assert [b"".join(frame.payload) for frame in frames] == [b"one???"] * 3
