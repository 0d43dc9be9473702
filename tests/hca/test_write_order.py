"""The bytes of one WRITE land in no promised order (A6): some, by seed, have their first bytes land last.

What is promised stays: completions, immediates and whatever follows on the same queue pair come after the whole.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from rc_rig import SEND, WRITE, WRITE_IMM

from fauxrdma.hca.events import FrameReceived, SendFrame
from fauxrdma.hca.late_bytes import LINE_BYTES
from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.attributes import QPAttr
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_SUCCESS,
    BthOpcode,
    QpState,
    QpType,
)
from fauxrdma.ib.profiles import PROFILES, HcaProfile
from fauxrdma.memory.regions import MemoryRegion
from fauxrdma.sim.world import World
from fauxrdma.wire.headers import PSN_MASK, Frame, decode_write_only, encode_write_only

STRICT = PROFILES["ibta"]
RC, UC = QpType.IBV_QPT_RC, QpType.IBV_QPT_UC
SEEDS = range(24)
ALONE, FRAMES = 10_000, 60_000  # bytes: in one frame of several packets, in several frames


class Scene:
    """`a` writes to `b`, and somebody watches the memory there at every event."""

    def __init__(
        self, seed: int, length: int, qp_type: QpType = RC, profile: HcaProfile = STRICT, express: bool = False
    ) -> None:
        self.world = World(2, seed=seed, profile=profile, express=express)
        self.a, self.b = self.world.pair(qp_type)
        self.length = length
        self.mine, mine = self.world.hcas[0].alloc(2 * length)
        self.his, self.there = self.world.hcas[1].alloc(length)
        mine[:length] = b"n" * length
        self.there[:] = b"o" * length

    def post(self, opcode: int, wr_id: int = 1, length: int | None = None, at: int = 0) -> None:
        size = self.length if length is None else length
        sges = ((self.mine.base + at, size, self.mine.lkey),)
        self.a.post_send(SendWqe(0, wr_id, opcode, 2, sges, self.his.base, self.his.rkey))

    def last_before_first(self) -> bool:
        """Run to the end; whether the last byte was ever seen without the first line."""
        seen: list[bytes] = []
        head = b"n" * LINE_BYTES

        def look() -> bool:
            if self.there[-1] == ord("n") and bytes(self.there[:LINE_BYTES]) != head:
                assert self.there[LINE_BYTES:] == b"n" * (self.length - LINE_BYTES)
                seen.append(bytes(self.there[:LINE_BYTES]))
            return False

        self.world.run(look)
        assert self.there == b"n" * self.length
        return bool(seen)


@pytest.mark.parametrize("length", [ALONE, FRAMES])
@pytest.mark.parametrize("qp_type", [RC, UC], ids=lambda t: t.name)
def test_a_poller_of_the_last_byte_is_found_out_by_seed(qp_type: QpType, length: int) -> None:
    def play(seed: int) -> bool:
        scene = Scene(seed, length, qp_type)
        scene.post(WRITE)
        return scene.last_before_first()

    got = [play(seed) for seed in SEEDS]
    assert set(got) == {False, True}
    assert got == [play(seed) for seed in SEEDS]


@pytest.mark.parametrize("length", [LINE_BYTES, 4096])
@pytest.mark.parametrize("express", [False, True])
def test_a_write_of_one_packet_lands_in_order(length: int, express: bool) -> None:
    for seed in SEEDS:
        scene = Scene(seed, length, express=express)
        scene.post(WRITE)
        assert not scene.last_before_first()


@pytest.mark.parametrize("profile", [replace(STRICT, write_bytes_in_order=True), PROFILES["cx7-ndr"]])
def test_a_profile_may_be_in_order(profile: HcaProfile) -> None:
    for seed in SEEDS:
        scene = Scene(seed, ALONE, profile=profile)
        scene.post(WRITE)
        assert not scene.last_before_first()


@pytest.mark.parametrize("length", [ALONE, FRAMES])
def test_the_completion_comes_after_all_bytes_and_no_later_than_before(length: int) -> None:
    times = set()
    for seed in SEEDS:
        scene = Scene(seed, length)
        scene.post(WRITE)
        assert scene.world.run(lambda a=scene.a: bool(a.completions))  # type: ignore[misc]
        assert scene.there == b"n" * length
        assert scene.a.completions[0].status == IBV_WC_SUCCESS
        times.add(scene.a.completions[0].timestamp_ns)
    assert len(times) == 1  # chosen or not


@pytest.mark.parametrize("length", [ALONE, FRAMES])
@pytest.mark.parametrize("behind", ["immediate", "send"])
@pytest.mark.parametrize("qp_type", [RC, UC], ids=lambda t: t.name)
def test_what_tells_of_a_write_comes_after_all_its_bytes(qp_type: QpType, behind: str, length: int) -> None:
    for seed in SEEDS:
        scene = Scene(seed, length, qp_type)
        scene.b.post_recv(1)
        scene.post(WRITE_IMM if behind == "immediate" else WRITE)
        if behind == "send":
            scene.post(SEND, 2, 0)
        assert scene.world.run(lambda b=scene.b: bool(b.completions))  # type: ignore[misc]
        assert scene.there == b"n" * length


@pytest.mark.parametrize("express", [False, True])
def test_a_later_write_of_the_same_queue_pair_comes_after_all_bytes(express: bool) -> None:
    for seed in SEEDS:
        scene = Scene(seed, ALONE, express=express)
        scene.post(WRITE)
        scene.post(WRITE, 2, 8, at=ALONE)
        scene.world.run()
        assert scene.there == bytes(8) + b"n" * (ALONE - 8)


def chosen(length: int) -> Scene:
    """A scene whose first WRITE has its first bytes last, at the moment at which all others are there."""
    for seed in range(100):
        scene = Scene(seed, length)
        scene.post(WRITE)
        scene.world.run(lambda s=scene: s.there[-1] == ord("n"))  # type: ignore[misc]
        if scene.there[0] == ord("o"):
            return scene
    raise AssertionError("no WRITE was chosen")


def at_that_moment(scene: Scene, opcode: BthOpcode) -> Frame:
    """The frame that would come next from `a`, of 8 B to or from the start of the memory."""
    psn = scene.b.hca.engine._responders[scene.b.qp.qpn].expected_psn  # type: ignore[attr-defined]
    nbytes = 8 if opcode == BthOpcode.RC_RDMA_WRITE_ONLY else 0
    va, rkey = scene.his.base, scene.his.rkey
    return Frame(opcode, 1, 2, scene.b.qp.qpn, psn, nbytes=nbytes, va=va, rkey=rkey, dma_len=8, ack_req=True)


def test_a_write_at_that_moment_comes_after_the_first_bytes() -> None:
    scene = chosen(ALONE)
    engine, frame = scene.b.hca.engine, at_that_moment(scene, BthOpcode.RC_RDMA_WRITE_ONLY)
    head = encode_write_only(1, 2, frame.dest_qpn, frame.psn, frame.va, frame.rkey, 8, False, False)
    write = decode_write_only(head + b"x" * 8, 0, len(head) + 8)
    assert write is not None
    assert engine.express_receive(write, memoryview(b"x" * 8), []) is None  # the express lane leaves it alone
    views = engine.place(frame)
    assert views is not None
    views[0][:] = b"x" * 8
    actions = engine.handle(FrameReceived(frame), scene.world.now)
    assert [a.frame.psn for a in actions if isinstance(a, SendFrame)] == [frame.psn - 1 & PSN_MASK, frame.psn]
    scene.world.run()
    assert scene.there == b"x" * 8 + b"n" * (ALONE - 8)


def test_a_read_at_that_moment_finds_the_first_bytes() -> None:
    scene = chosen(ALONE)
    engine, frame = scene.b.hca.engine, at_that_moment(scene, BthOpcode.RC_RDMA_READ_REQUEST)
    engine.place(frame)
    engine.handle(FrameReceived(frame), scene.world.now)
    assert bytes(scene.there[:LINE_BYTES]) == b"n" * LINE_BYTES


@pytest.mark.parametrize("length", [ALONE, FRAMES])
def test_deregistered_just_before_the_first_bytes(length: int) -> None:
    """They never land; the requester is told, since its WRITE is not whole."""
    scene = chosen(length)
    region: MemoryRegion = scene.his
    hca = scene.b.hca
    scene.world.perform(hca, hca.engine.deregister(region, scene.world.now))
    scene.world.run()
    assert bytes(scene.there[:LINE_BYTES]) == b"o" * LINE_BYTES
    assert [wc.status for wc in scene.a.completions] == [IBV_WC_REM_ACCESS_ERR]
    assert scene.b.qp.state == IBV_QPS_ERR


@pytest.mark.parametrize("state", [QpState.IBV_QPS_ERR, QpState.IBV_QPS_RESET], ids=lambda s: s.name)
def test_stopped_just_before_the_first_bytes(state: QpState) -> None:
    """The queue pair stops with the bytes it has, and nothing of them lands after that."""
    scene = chosen(ALONE)
    attr = QPAttr()
    attr.qp_state = state
    scene.world.modify(scene.b, attr, IBV_QP_STATE)
    stopped = bytes(scene.there)
    scene.world.run()
    assert scene.there == stopped
