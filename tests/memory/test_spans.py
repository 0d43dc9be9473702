"""Memory of another process in the shape of a memoryview: slices, copies both ways, what happens when it is gone."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fauxrdma.hca.work_queue import SendWqe
from fauxrdma.ib.enums import (
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_SUCCESS,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    QpType,
)
from fauxrdma.memory.regions import Fault, KeyTable, MemoryRegion, ProtectionDomain
from fauxrdma.memory.spans import ProcessMemory, ProcessSpan, Unreachable, load, set_aside, store
from fauxrdma.sim.world import SimHca, World


def address(data: bytearray | mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def span_of(data: bytearray) -> ProcessSpan:
    return ProcessSpan(ProcessMemory(os.getpid()), address(data), len(data))


@given(st.binary(min_size=1, max_size=50), st.slices(50))
def test_slices_are_those_of_a_memoryview(data: bytes, key: slice) -> None:
    key = slice(key.start, key.stop)
    held = bytearray(data)
    span, view = span_of(held), memoryview(held)
    assert len(span[key]) == len(view[key])
    assert bytes(span[key]) == bytes(view[key])
    assert span[key].obj is span.obj
    new = bytes(len(view[key]))
    span[key] = new
    assert bytes(view[key]) == new


def test_another_process_is_read_and_written() -> None:
    memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    (r_read, r_write), (w_read, w_write) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        memory[:5] = b"child"
        os.write(r_write, b".")
        os.read(w_read, 1)
        os._exit(memory[:7] == b"written")
    os.read(r_read, 1)
    span = ProcessSpan(ProcessMemory(pid), address(memory), 4096)
    assert bytes(span[:5]) == b"child"
    span[:7] = b"written"
    os.write(w_write, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert memory[:7] == bytes(7)
    for use in (lambda: bytes(span[:5]), lambda: span[:1].write(memoryview(bytearray(1)))):
        with pytest.raises(Unreachable, match=rf"of process {pid} cannot be (read|written): No such process"):
            use()
    for fd in (r_read, r_write, w_read, w_write):
        os.close(fd)


def test_a_revoked_span_moves_nothing() -> None:
    data = bytearray(b"kept")
    span = span_of(data)
    scratch = memoryview(bytearray(b"new!"))
    span.obj.revoked = True
    for use in (span.read, lambda: span.write(scratch), lambda: load((span,)), lambda: store([(span, scratch)])):
        with pytest.raises(Unreachable, match="deregistered"):
            use()
    assert data == b"kept"


def test_deregistering_revokes() -> None:
    keys, pd = KeyTable(random.Random(1)), ProtectionDomain(1)
    data = bytearray(100)
    region = keys.register(1, pd, address(data), 100, 7, span_of(data))
    found = keys.remote(pd, address(data) + 10, 5, region.rkey, 2)
    assert isinstance(found, ProcessSpan)
    found[:] = b"hello"
    assert data[10:15] == b"hello"
    assert keys.indirect == 1
    keys.deregister(region)
    assert keys.indirect == 0
    with pytest.raises(Unreachable):
        found[:] = b"stale"
    assert isinstance(keys.remote(pd, address(data), 5, region.rkey, 2), Fault)


def test_mapped_pieces_pass_as_they_are() -> None:
    view, data = memoryview(bytearray(b"view")), bytearray(b"span")
    assert load((view,))[0] is view
    assert [bytes(v) for v in load((view, span_of(data)))] == [b"view", b"span"]
    views, aside = set_aside((view, span_of(data)))
    assert views[0] is view
    views[1][:] = b"SPAN"
    assert data == b"span"
    store(aside)
    assert data == b"SPAN"


# ---- in the engine: every operation on such memory, and when it has gone ---------------------------------------------


LENGTH = 10_000


class Vanishing:
    """A region over memory of this process reached as if it were another's, which can be unmapped."""

    def __init__(self, hca: SimHca) -> None:
        self.memory = mmap.mmap(-1, mmap.PAGESIZE * 3)
        self.address = address(self.memory)
        span = ProcessSpan(ProcessMemory(os.getpid()), self.address, LENGTH)
        pd = hca.world.pds[hca.lid]
        self.region: MemoryRegion = hca.engine.keys.register(77, pd, self.address, LENGTH, 15, span)

    def vanish(self) -> None:
        libc = ctypes.CDLL(None)
        libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self.memory)), 0)

    def close(self) -> None:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(len(self.memory)), 3)


@pytest.fixture
def vanishing() -> Iterator[list[Vanishing]]:
    made: list[Vanishing] = []
    yield made
    for region in made:
        region.close()


OPCODES = (IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD)


@pytest.mark.parametrize("opcode", OPCODES)
@pytest.mark.parametrize("gone", ["", "here", "there"])
def test_operations_on_the_memory_of_a_process(opcode: int, gone: str, vanishing: list[Vanishing]) -> None:
    world = World(burst=4096)
    a, b = world.pair(qp_access_flags=15)
    ours, theirs = Vanishing(a.hca), Vanishing(b.hca)
    vanishing += [ours, theirs]
    ours.memory[:LENGTH] = b"o" * LENGTH
    theirs.memory[:LENGTH] = b"t" * LENGTH
    if gone == "here":
        ours.vanish()
    elif gone == "there":
        theirs.vanish()
    length = 8 if opcode in (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD) else LENGTH
    b.post_recv(5, ((theirs.address, LENGTH, theirs.region.lkey),))
    word = int.from_bytes(b"t" * 8, "little")
    a.post_send(
        SendWqe(
            0, 1, opcode, 2, ((ours.address, length, ours.region.lkey),), theirs.address, theirs.region.rkey,
            compare_add=word if opcode == IBV_WR_ATOMIC_CMP_AND_SWP else 1, swap=7,
        )
    )  # fmt: skip
    world.run()
    (wc,) = a.hca.completions
    if gone:
        assert wc.status == (IBV_WC_LOC_PROT_ERR if gone == "here" else IBV_WC_REM_OP_ERR)
        assert "cannot be" in a.qp.last_error
        if opcode == IBV_WR_SEND and gone == "there":
            assert b.hca.completions[0].status == IBV_WC_LOC_PROT_ERR
        return
    assert wc.status == IBV_WC_SUCCESS
    if opcode in (IBV_WR_RDMA_WRITE, IBV_WR_SEND):
        assert theirs.memory[:LENGTH] == b"o" * LENGTH
    elif opcode == IBV_WR_RDMA_READ:
        assert ours.memory[:LENGTH] == b"t" * LENGTH
    else:
        assert ours.memory[:9] == b"t" * 8 + b"o"
        new = 7 if opcode == IBV_WR_ATOMIC_CMP_AND_SWP else word + 1
        assert theirs.memory[:9] == new.to_bytes(8, "little") + b"t"


@pytest.mark.parametrize("gone", ["", "here", "there"])
@pytest.mark.parametrize("opcode", [IBV_WR_RDMA_WRITE, IBV_WR_SEND])
def test_unreliable_connections_with_the_memory_of_a_process(
    opcode: int, gone: str, vanishing: list[Vanishing]
) -> None:
    world = World(burst=4096)
    a, b = (hca.create_qp(qp_type=QpType.IBV_QPT_UC) for hca in world.hcas)
    world.connect(a, b)
    ours, theirs = Vanishing(a.hca), Vanishing(b.hca)
    vanishing += [ours, theirs]
    ours.memory[:LENGTH] = b"o" * LENGTH
    if gone:
        (ours if gone == "here" else theirs).vanish()
    b.post_recv(5, ((theirs.address, LENGTH, theirs.region.lkey),))
    a.post_send(
        SendWqe(0, 1, opcode, 2, ((ours.address, LENGTH, ours.region.lkey),), theirs.address, theirs.region.rkey)
    )
    world.run()
    assert a.hca.completions[0].status == (IBV_WC_LOC_PROT_ERR if gone == "here" else IBV_WC_SUCCESS)
    received = [wc.status for wc in b.hca.completions]
    if gone == "":
        assert theirs.memory[:LENGTH] == b"o" * LENGTH
        assert received == ([IBV_WC_SUCCESS] if opcode == IBV_WR_SEND else [])
    elif gone == "there":
        assert received == ([IBV_WC_LOC_PROT_ERR] if opcode == IBV_WR_SEND else [])
