"""Regions over every kind of memory, by every provider, over two daemons: what a peer writes arrives in the buffer,
what it reads comes from there, and what cannot be reached is a completion status and never a crash."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_RELAXED_ORDERING,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_ACCESS_ZERO_BASED,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD,
    IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_SEND_SIGNALED,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import DM, DMMR, MR, PD, SGE, AllocDmAttr, Context, DmaBuf, DmaBufMR, QPAttr, RecvWR, SendWR

ACCESS = 7
ALL = 15
Pair = tuple[End, End]
EXISTING = ("process_vm", "staged")


@pytest.fixture(params=EXISTING)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(end: End, opcode: int, local: MR, remote: MR, length: int, offset: int = 0) -> int:
    """One operation between two regions; its status."""
    base = 0 if remote.access & IBV_ACCESS_ZERO_BASED else remote.buf
    mine = 0 if local.access & IBV_ACCESS_ZERO_BASED else local.buf
    sge = SGE(mine + offset, length, local.lkey)
    end.qp.post_send(SendWR(1, opcode, [sge], 0, IBV_SEND_SIGNALED, base + offset, remote.rkey))
    return end.wait()[0].status


def torch_tensor(length: int) -> Any:
    return pytest.importorskip("torch").zeros(length // 4, dtype=pytest.importorskip("torch").float32)


KINDS: dict[str, Callable[[int], Any]] = {
    "bytearray": bytearray,
    "numpy": lambda length: np.zeros((length // 8, 2), np.float32),
    "datetime64": lambda length: np.zeros(length // 8, "M8[ns]"),
    "mmap": lambda length: mmap.mmap(-1, length),
    "ctypes": lambda length: (ctypes.c_ubyte * length)(),
    "memoryview": lambda length: memoryview(bytearray(length + 7))[7:],
    "torch": torch_tensor,
}


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_of_every_kind_both_ways(pair: Pair, kind: str, provider: str) -> None:
    a, b = pair
    length = 40_000
    ours, theirs = KINDS[kind](length), KINDS[kind](length)
    mine = MR.over(a.pd, ours, ACCESS, provider=provider)
    other = MR.over(b.pd, theirs, ACCESS, provider=provider)
    assert (mine.provider, mine.length) == (provider, length)
    data = np.random.default_rng(1).bytes(length)
    mine.view[:] = data
    assert run(a, IBV_WR_RDMA_WRITE, mine, other, length) == IBV_WC_SUCCESS
    other.sync()
    assert bytes(other.view) == data
    other.write(data[::-1], length)
    assert run(a, IBV_WR_RDMA_READ, mine, other, length) == IBV_WC_SUCCESS
    assert bytes(mine.view) == data[::-1]


def test_the_buffer_itself_is_what_is_written(pair: Pair, provider: str) -> None:
    a, b = pair
    array = np.zeros(1000, np.int64)
    region = MR.over(b.pd, array, ACCESS, provider=provider)
    a.mr.view[:8000] = np.arange(1000, dtype=np.int64).tobytes()
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 8000) == IBV_WC_SUCCESS
    region.sync()
    assert array.tolist() == list(range(1000))


def test_address_and_length_as_in_pyverbs(pair: Pair, provider: str) -> None:
    a, b = pair
    memory = mmap.mmap(-1, 8192)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    region = MR(b.pd, 5000, ACCESS, address=address, provider=provider)
    assert region.buf == address
    a.mr.view[:5000] = b"x" * 5000
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 5000) == IBV_WC_SUCCESS
    region.sync()
    assert memory[:8192] == b"x" * 5000 + bytes(3192)


def test_send_and_receive_with_scattered_buffers(pair: Pair, provider: str) -> None:
    a, b = pair
    pieces = [bytearray(n) for n in (100, 3000, 20_000)]
    regions = [MR.over(b.pd, piece, IBV_ACCESS_LOCAL_WRITE, provider=provider) for piece in pieces]
    b.qp.post_recv(RecvWR(5, [SGE(r.buf, r.length, r.lkey) for r in regions]))
    source = MR.over(a.pd, np.random.default_rng(2).bytes(23_000), 0, provider=provider)
    a.qp.post_send(
        SendWR(1, IBV_WR_SEND, [SGE(source.buf, 20_000, source.lkey), SGE(source.buf + 20_000, 3000, source.lkey)])
    )
    (sent,), (got,) = a.wait(), b.wait()
    assert (sent.status, got.status, got.byte_len) == (IBV_WC_SUCCESS, IBV_WC_SUCCESS, 23_000)
    assert b"".join(pieces) == bytes(source.view) + bytes(100)


def test_the_provider_is_chosen_by_what_is_there(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = pair
    assert MR(a.pd, 100, ACCESS).provider == "memfd"
    assert MR.over(a.pd, bytearray(100), ACCESS).provider in EXISTING
    a.ctx._reached = False  # as the probe finds it under seccomp or ptrace_scope
    assert MR.over(a.pd, bytearray(100), ACCESS).provider == "staged"
    with pytest.raises(VerbsError, match="forbids") as caught:
        MR.over(a.pd, bytearray(100), ACCESS, provider="process_vm")
    assert caught.value.errno == errno.EPERM
    monkeypatch.setenv("FAUXRDMA_MEMORY_PROVIDER", "staged")
    assert MR(a.pd, 100, ACCESS).provider == "staged"
    for wrong, words in (("memfd", "makes its own memory"), ("gpu", "no memory provider")):
        with pytest.raises(VerbsError, match=words):
            MR.over(a.pd, bytearray(100), ACCESS, provider=wrong)


def test_a_daemon_that_may_not_reach_us_says_so(unshaped: LocalLab) -> None:
    """A process that is not dumpable cannot be traced: what ptrace_scope and containers do, done to ourselves. As root
    the daemon may all the same; then the probe must have moved bytes both ways."""
    program = (
        "import ctypes, sys\n"
        "from fauxrdma.verbs import *\n"
        "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n"
        "ctx = Context('hca1'); print(ctx._daemon_reaches_us(), MR.over(PD(ctx), bytearray(9), 1).provider)\n"
    )
    env = {**os.environ, "FAUXRDMA_SOCKET": str(unshaped.socket_path(0))}
    out = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.split() in (["False", "staged"], ["True", "process_vm"])


def test_registering_by_process_vm_without_a_probe_is_refused(unshaped: LocalLab) -> None:
    from fauxrdma.abi import control_verbs as V

    with Context("hca1", str(unshaped.socket_path(0))) as ctx:
        pd = PD(ctx)
        with pytest.raises(VerbsError, match="ProbeMemory first") as caught:
            ctx._channel.request(V.RegMr(pd.handle, 4096, 10, 7, "process_vm", 0, None), V.MrKeys)
        assert caught.value.errno == errno.EPERM
        with pytest.raises(VerbsError) as caught:
            ctx._channel.request(V.ProbeMemory(8, b"somewhere"), V.Done)  # not mapped
        assert caught.value.errno == errno.EPERM


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "access", "code"),
    [
        (np.zeros((10, 10))[:, 1], 7, errno.EINVAL),
        (bytearray(), 7, errno.EINVAL),
        (object(), 7, errno.EINVAL),
        (b"read only", 1, errno.EFAULT),
        (bytearray(10), 2, errno.EINVAL),
        (bytearray(10), 1 << 30, errno.EINVAL),
    ],
)
def test_buffers_that_cannot_be_registered(pair: Pair, source: object, access: int, code: int, provider: str) -> None:
    with pytest.raises(VerbsError) as caught:
        MR.over(pair[0].pd, source, access, provider=provider)
    assert caught.value.errno == code


@pytest.mark.parametrize(
    ("address", "length", "code"),
    [(4096, 100, errno.EFAULT), (1 << 47, 100, errno.EFAULT), ((1 << 64) - 50, 51, errno.EINVAL), (8, 0, errno.EINVAL)],
)
def test_addresses_that_are_not_memory(pair: Pair, address: int, length: int, code: int, provider: str) -> None:
    with pytest.raises(VerbsError) as caught:
        MR(pair[0].pd, length, ACCESS, address=address, provider=provider)
    assert caught.value.errno == code


def test_reading_needs_no_writable_buffer(pair: Pair, provider: str) -> None:
    a, b = pair
    region = MR.over(b.pd, b"constant data", IBV_ACCESS_REMOTE_READ, provider=provider)
    assert run(a, IBV_WR_RDMA_READ, a.mr, region, 13) == IBV_WC_SUCCESS
    assert a.mr.read(13, 0) == b"constant data"
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 1) == IBV_WC_REM_ACCESS_ERR


@pytest.mark.parametrize("memory", ["memfd", *EXISTING])
def test_first_and_last_byte_and_not_one_more(unshaped: LocalLab, memory: str) -> None:
    length = 5001
    for offset, size, good in (
        (0, 1, True), (length - 1, 1, True), (0, length, True), (length, 0, True), (length, 1, False),
        (length - 1, 2, False), (-1, 1, False), (-1, 2, False), (0, length + 1, False),
    ):  # fmt: skip
        for opcode in (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ):
            a, b = End(unshaped, 0), End(unshaped, 1)
            connect(a, b)
            region = MR(b.pd, length, ACCESS, provider=memory)
            sge = [SGE(a.mr.buf, size, a.mr.lkey)] if size else []
            a.qp.post_send(SendWR(1, opcode, sge, 0, 2, region.buf + offset, region.rkey))
            status = a.wait()[0].status
            assert status == (IBV_WC_SUCCESS if good else IBV_WC_REM_ACCESS_ERR), (offset, size, opcode)
            a.close()
            b.close()


def test_zero_based_regions_count_from_zero(pair: Pair, provider: str) -> None:
    a, b = pair
    region = MR.over(b.pd, bytearray(100), ACCESS | IBV_ACCESS_ZERO_BASED, provider=provider)
    a.mr.view[:100] = bytes(range(100))
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 100) == IBV_WC_SUCCESS
    assert region.read(100, 0) == bytes(range(100))
    a.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE, [a.sge(0, 1)], 0, 2, region.buf, region.rkey))
    assert a.wait()[0].status == IBV_WC_REM_ACCESS_ERR


def test_optional_flags_are_accepted(pair: Pair) -> None:
    a, b = pair
    region = MR(b.pd, 100, ACCESS | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_RELAXED_ORDERING)
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 100) == IBV_WC_SUCCESS


# ---- memory that is not there any more -------------------------------------------------------------------------------


def vanishing(end: End, access: int = ACCESS) -> tuple[MR, mmap.mmap]:
    """A process_vm region whose memory can be unmapped under the HCA."""
    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    return MR(end.pd, 1 << 20, access, address=address, provider="process_vm"), memory


def unmap(region: MR) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    none_fixed_anonymous = (0, 0x32)
    libc.mmap(ctypes.c_void_p(region.buf), ctypes.c_size_t(region.length), *none_fixed_anonymous, -1, ctypes.c_long(0))


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
def test_a_peer_meets_memory_that_was_unmapped(pair: Pair, opcode: int) -> None:
    a, b = pair
    region, _keep = vanishing(b)
    unmap(region)
    assert run(a, opcode, a.mr, region, 600_000) == IBV_WC_REM_OP_ERR
    assert "cannot be" in a.qp.last_error()


@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ])
def test_ones_own_memory_was_unmapped(pair: Pair, opcode: int) -> None:
    a, b = pair
    region, _keep = vanishing(a)
    unmap(region)
    assert run(a, opcode, region, b.mr, 600_000) == IBV_WC_LOC_PROT_ERR
    assert a.qp.qp_state == IBV_QPS_ERR


def test_a_receive_whose_memory_was_unmapped(pair: Pair) -> None:
    a, b = pair
    region, _keep = vanishing(b)
    unmap(region)
    b.qp.post_recv(RecvWR(3, [SGE(region.buf, 4096, region.lkey)]))
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 4096)]))
    assert a.wait()[0].status == IBV_WC_REM_OP_ERR
    assert b.wait()[0].status == IBV_WC_LOC_PROT_ERR


# ---- staged copies ---------------------------------------------------------------------------------------------------


def test_staged_regions_lose_neither_sides_stores(pair: Pair) -> None:
    """The peer writes the even bytes, the application the odd ones, without knowing of each other."""
    a, b = pair
    buffer = np.zeros(64, np.uint8)
    region = MR.over(b.pd, buffer, ACCESS, provider="staged")
    a.mr.view[:64] = bytes(range(1, 65))
    for at in range(0, 64, 2):
        buffer[at + 1] = 200
        sge = SGE(a.mr.buf + at, 1, a.mr.lkey)
        a.qp.post_send(SendWR(1, IBV_WR_RDMA_WRITE, [sge], 0, 2, region.buf + at, region.rkey))
        assert a.wait()[0].status == IBV_WC_SUCCESS
    region.sync()
    assert buffer[::2].tolist() == list(range(1, 65, 2))
    assert buffer[1::2].tolist() == [200] * 32
    assert run(a, IBV_WR_RDMA_READ, a.mr, region, 64) == IBV_WC_SUCCESS
    assert a.mr.read(64, 0) == buffer.tobytes()


def test_posting_and_polling_sync_staged_regions(pair: Pair) -> None:
    a, b = pair
    buffer = bytearray(100)
    MR.over(a.pd, bytearray(100), ACCESS, provider="staged").close()
    region = MR.over(b.pd, buffer, ACCESS, provider="staged")
    b.qp.post_recv(RecvWR(1, [SGE(region.buf, 100, region.lkey)]))
    a.mr.view[:100] = b"m" * 100
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 100)]))
    a.wait()
    assert b.wait()[0].status == IBV_WC_SUCCESS
    assert buffer == b"m" * 100
    buffer[:] = b"n" * 100
    a.qp.post_recv(RecvWR(1, [a.sge(0, 100)]))
    b.qp.post_send(SendWR(1, IBV_WR_SEND, [SGE(region.buf, 100, region.lkey)]))
    b.wait()
    assert a.wait()[0].status == IBV_WC_SUCCESS
    assert a.mr.read(100, 0) == b"n" * 100


def test_a_staged_buffer_that_is_gone_is_told_and_does_no_harm(pair: Pair) -> None:
    a, b = pair
    memory = mmap.mmap(-1, 4096)
    region = MR(a.pd, 4096, ACCESS, ctypes.addressof(ctypes.c_char.from_buffer(memory)), provider="staged")
    del memory
    with pytest.raises(VerbsError, match="is mapped") as caught:
        region.sync()
    assert caught.value.errno == errno.EFAULT
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, b.mr, 10) == IBV_WC_SUCCESS
    region.close()


# ---- reregistration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", range(1, 8))
def test_rereg_in_every_combination(pair: Pair, flags: int, provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAUXRDMA_MEMORY_PROVIDER", provider)
    a, b = pair
    region = MR.over(b.pd, bytearray(b"o" * 100), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
    keys, old_buf = (region.lkey, region.rkey), region.buf
    moved, other = bytearray(b"n" * 50), PD(b.ctx)
    region.rereg(flags, other, moved, 0, ACCESS)
    assert region.lkey not in keys
    assert region.rkey not in keys
    assert region.lkey != region.rkey
    assert (region.buf != old_buf) is bool(flags & IBV_REREG_MR_CHANGE_TRANSLATION)
    assert region.length == (50 if flags & IBV_REREG_MR_CHANGE_TRANSLATION else 100)
    if flags & IBV_REREG_MR_CHANGE_PD:
        assert run(a, IBV_WR_RDMA_READ, a.mr, region, 10) == IBV_WC_REM_ACCESS_ERR
        assert "protection domain" in a.qp.last_error()
        return
    expected = IBV_WC_SUCCESS if flags & IBV_REREG_MR_CHANGE_ACCESS else IBV_WC_REM_ACCESS_ERR
    assert run(a, IBV_WR_RDMA_READ, a.mr, region, 10) == expected
    if expected == IBV_WC_SUCCESS:
        assert a.mr.read(10, 0) == (b"n" if flags & IBV_REREG_MR_CHANGE_TRANSLATION else b"o") * 10


def test_rereg_refuses_and_changes_nothing(pair: Pair) -> None:
    a, b = pair
    region = MR.over(b.pd, bytearray(100), ACCESS)
    keys = (region.lkey, region.rkey)
    with Context("hca2", b.ctx._channel.path) as stranger:
        for call in (
            lambda: region.rereg(0),
            lambda: region.rereg(8),
            lambda: region.rereg(IBV_REREG_MR_CHANGE_PD),
            lambda: region.rereg(IBV_REREG_MR_CHANGE_PD, PD(stranger)),
            lambda: region.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=2),
            lambda: region.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=1 << 30),
            lambda: region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=4096, length=0),
        ):
            with pytest.raises(VerbsError) as caught:
                call()
            assert caught.value.errno == errno.EINVAL
    with pytest.raises(VerbsError) as caught:
        region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=4096, length=10)
    assert caught.value.errno == errno.EFAULT
    assert (region.lkey, region.rkey) == keys
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 100) == IBV_WC_SUCCESS


def test_rereg_of_shared_memory_keeps_its_bytes(pair: Pair) -> None:
    a, b = pair
    region = MR(b.pd, 100, IBV_ACCESS_LOCAL_WRITE)
    region.write(b"k" * 100, 100)
    region.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=ACCESS)
    assert region.provider == "memfd"
    assert run(a, IBV_WR_RDMA_READ, a.mr, region, 100) == IBV_WC_SUCCESS
    assert a.mr.read(100, 0) == b"k" * 100


def test_a_receive_with_a_moved_key_fails_and_the_queue_pair_recovers(pair: Pair) -> None:
    a, b = pair
    region = MR.over(b.pd, bytearray(100), ACCESS)
    b.qp.post_recv(RecvWR(4, [SGE(region.buf, 100, region.lkey)]))
    region.rereg(IBV_REREG_MR_CHANGE_TRANSLATION, addr=bytearray(100))
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 10)]))
    assert a.wait()[0].status == IBV_WC_REM_OP_ERR
    assert [(wc.wr_id, wc.status) for wc in b.wait()] == [(4, IBV_WC_LOC_PROT_ERR)]
    for end in (a, b):
        end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    connect(a, b)
    b.qp.post_recv(RecvWR(5, [SGE(region.buf, 100, region.lkey)]))
    a.qp.post_send(SendWR(2, IBV_WR_SEND, [a.sge(0, 10)]))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    assert b.wait()[0].status == IBV_WC_SUCCESS


# ---- device memory ---------------------------------------------------------------------------------------------------


def test_device_memory_is_copied_in_words_of_four(pair: Pair) -> None:
    a, _ = pair
    dm = DM(a.ctx, AllocDmAttr(64))
    assert dm.copy_from_dm(0, 64) == bytes(64)
    dm.copy_to_dm(8, b"12345678rest", 8)
    assert dm.copy_from_dm(4, 16) == b"\0\0\0\x0012345678\0\0\0\0"
    for offset, length in ((1, 4), (4, 3), (2, 2), (64, 4), (60, 8), (-4, 4)):
        for copy in (lambda o, n: dm.copy_to_dm(o, bytes(n), n), dm.copy_from_dm):
            with pytest.raises(VerbsError, match=r"Failed to copy (to|from) dm") as caught:
                copy(offset, length)
            assert caught.value.errno == errno.EINVAL


def test_device_memory_as_a_region(pair: Pair) -> None:
    a, b = pair
    dm = DM(b.ctx, AllocDmAttr(4096, log_align_req=12))
    region = DMMR(b.pd, 1024, ACCESS, dm, 512)
    other = DMMR(b.pd, 4096, ACCESS, dm, 0)
    a.mr.view[:1024] = bytes(range(256)) * 4
    assert region.buf == 0
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 1024) == IBV_WC_SUCCESS
    assert region.read(1024, 0) == dm.copy_from_dm(512, 1024) == bytes(range(256)) * 4
    region.write(b"wxyz", 4, 4)
    other.close()  # the same memory, another region: this one goes on
    assert run(a, IBV_WR_RDMA_READ, a.mr, region, 8) == IBV_WC_SUCCESS
    assert a.mr.read(8, 0) == b"\0\1\2\3wxyz"
    with pytest.raises(VerbsError, match="1 regions are over it") as caught:
        dm.close()
    assert caught.value.errno == errno.EBUSY
    for offset, length in ((2, 4), (4000, 100), (-4, 4)):
        with pytest.raises(VerbsError) as caught:
            DMMR(b.pd, length, ACCESS, dm, offset)
        assert caught.value.errno == errno.EINVAL
    region.close()
    dm.close()
    dm.close()


def test_a_device_has_only_so_much_memory(unshaped: LocalLab) -> None:
    with Context("hca5", str(unshaped.socket_path(0))) as ctx, Context("hca5", str(unshaped.socket_path(0))) as other:
        size = ctx.query_device().max_dm_size
        with pytest.raises(VerbsError, match="max_dm_size") as caught:
            DM(ctx, AllocDmAttr(size + 1))
        assert caught.value.errno == errno.ENOMEM
        with DM(ctx, AllocDmAttr(size)):
            with pytest.raises(VerbsError) as caught:
                DM(other, AllocDmAttr(4))
            assert caught.value.errno == errno.ENOMEM
        DM(other, AllocDmAttr(size))
        for attr in (AllocDmAttr(0), AllocDmAttr(4, 40), AllocDmAttr(4, 0, 1)):
            with pytest.raises(VerbsError) as caught:
                DM(ctx, attr)
            assert caught.value.errno == errno.EINVAL


def test_device_memory_goes_with_its_context(unshaped: LocalLab) -> None:
    path = str(unshaped.socket_path(0))
    with Context("hca6", path) as ctx:
        dm = DM(ctx, AllocDmAttr(ctx.query_device().max_dm_size))
        DMMR(PD(ctx), 8, ACCESS, dm, 0)
    with Context("hca6", path) as ctx:
        for _ in range(1000):  # the daemon hears of the end of the other context a moment later
            try:
                DM(ctx, AllocDmAttr(ctx.query_device().max_dm_size))
                break
            except VerbsError:
                os.sched_yield()
        else:
            pytest.fail("the memory of a closed context is not free")


# ---- memory of emulated GPUs -----------------------------------------------------------------------------------------


def test_gpu_regions_are_ordinary_memory_with_a_flag(pair: Pair, provider: str) -> None:
    a, b = pair
    region = MR.over(b.pd, bytearray(5000), ACCESS, gpu=3, provider=provider)
    assert region.gpu == 3
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, region, 5000) == IBV_WC_SUCCESS
    assert MR(b.pd, 10, ACCESS).gpu is None


def test_a_dma_buf_is_registered_by_its_descriptor(pair: Pair) -> None:
    a, b = pair
    with DmaBuf(20_000, unit=2) as buffer:
        regions = [DmaBufMR(b.pd, 5000, ACCESS, buffer, 8192), DmaBufMR(b.pd, 10_000, ACCESS, buffer.fd, 5000, unit=2)]
        with pytest.raises(VerbsError) as caught:
            DmaBufMR(b.pd, 20_000, ACCESS, buffer, 1)
        assert caught.value.errno == errno.EINVAL
    first, second = regions
    assert [region.gpu for region in regions] == [2, 2]
    a.mr.view[:5000] = b"g" * 5000
    assert run(a, IBV_WR_RDMA_WRITE, a.mr, first, 5000) == IBV_WC_SUCCESS
    assert first.read(5000, 0) == b"g" * 5000
    assert second.read(10_000, 0) == bytes(3192) + b"g" * 5000 + bytes(1808)  # the same memory


@pytest.mark.parametrize("access", [IBV_ACCESS_REMOTE_WRITE, 1 << 25])
def test_flags_are_checked_for_every_kind(pair: Pair, access: int) -> None:
    dm = DM(pair[0].ctx, AllocDmAttr(64))
    with DmaBuf(64) as buffer:
        for make in (
            lambda: MR(pair[0].pd, 64, access),
            lambda: DMMR(pair[0].pd, 64, access, dm, 0),
            lambda: DmaBufMR(pair[0].pd, 64, access, buffer),
        ):
            with pytest.raises(VerbsError) as caught:
                make()
            assert caught.value.errno == errno.EINVAL
    dm.close()
