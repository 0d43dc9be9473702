"""Deregistration with work in flight over two daemons: after it returns, not one byte moves. And the ends of programs:
killed with work in flight, forked, two of them with the same addresses."""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from leaks import descriptors, memfd_mappings, settles
from pairs import End, connect

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_RESET,
    IBV_REREG_MR_CHANGE_ACCESS,
    IBV_SEND_SIGNALED,
    IBV_WC_LOC_PROT_ERR,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import MR, PD, SGE, Context, QPAttr, RecvWR, SendWR

ACCESS = 7
BIG = 24 << 20
Pair = tuple[End, End]
PROVIDERS = ("memfd", "process_vm")


@pytest.fixture(scope="module")
def own_lab() -> Iterator[LocalLab]:
    """Daemons that these tests stop and look into."""
    with LocalLab("seed-rail8", nodes=2, gpus=2, clock="none") as lab:
        yield lab


@pytest.fixture
def own_pair(own_lab: LocalLab) -> Iterator[Pair]:
    a, b = End(own_lab, 0, length=4096), End(own_lab, 1, length=4096)
    connect(a, b)
    yield a, b
    a.close()
    b.close()


def big(end: End, fill: bytes, provider: str = "memfd") -> MR:
    region = MR(end.pd, BIG, ACCESS, provider=provider)
    region.view[:] = fill * BIG
    return region


def request(opcode: int, local: MR, remote: MR, wr_id: int = 1) -> SendWR:
    return SendWR(wr_id, opcode, [SGE(local.buf, BIG, local.lkey)], 0, IBV_SEND_SIGNALED, remote.buf, remote.rkey)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_target_is_not_written_after_dereg(own_pair: Pair, provider: str) -> None:
    """Frames are arriving all the time: one of them is half received when the region goes."""
    a, b = own_pair
    source = big(a, b"w")
    target = big(b, b"-", provider)
    a.qp.post_send(*[request(IBV_WR_RDMA_WRITE, source, target, i) for i in range(8)])
    while target.view[0] != ord("w"):
        os.sched_yield()
    target.close()
    target.view[:] = b"*" * BIG
    statuses = [wc.status for wc in a.wait(8)]
    assert IBV_WC_REM_ACCESS_ERR in statuses
    assert set(statuses) <= {IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR}
    assert statuses == sorted(statuses, key=[IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR].index)
    assert target.view == b"*" * BIG
    assert b.qp.qp_state == IBV_QPS_ERR


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_source_is_not_sent_after_dereg(own_lab: LocalLab, own_pair: Pair, provider: str) -> None:
    """The peer's daemon is stopped, so that sockets and queues are full of the region when it goes."""
    a, b = own_pair
    source = big(a, b"w", provider)
    target = big(b, b"-")
    os.kill(own_lab.daemons[1], signal.SIGSTOP)
    try:
        a.qp.post_send(request(IBV_WR_RDMA_WRITE, source, target, 1), request(IBV_WR_RDMA_WRITE, source, target, 2))
        # A control verb is answered after the doorbell that was rung before it.
        source.close()
        source.view[:] = b"!" * BIG
    finally:
        os.kill(own_lab.daemons[1], signal.SIGCONT)
    assert [wc.status for wc in a.wait(2)] == [IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR]
    assert "deregistered" in a.qp.last_error()
    assert set(bytes(target.view)) <= set(b"w-")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_target_of_reads_is_not_read_after_dereg(own_lab: LocalLab, own_pair: Pair, provider: str) -> None:
    a, b = own_pair
    mine = big(a, b"-")
    theirs = big(b, b"r", provider)
    a.qp.post_send(request(IBV_WR_RDMA_READ, mine, theirs, 1), request(IBV_WR_RDMA_READ, mine, theirs, 2))
    while mine.view[0] != ord("r"):
        os.sched_yield()
    os.kill(own_lab.daemons[0], signal.SIGSTOP)  # what is on its way stays there
    try:
        theirs.close()
        theirs.view[:] = b"!" * BIG
    finally:
        os.kill(own_lab.daemons[0], signal.SIGCONT)
    statuses = [wc.status for wc in a.wait(2)]
    assert statuses in ([IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR], [IBV_WC_SUCCESS, IBV_WC_REM_ACCESS_ERR])
    assert set(bytes(mine.view)) <= set(b"r-")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_destination_of_reads_is_not_written_after_dereg(own_pair: Pair, provider: str) -> None:
    a, b = own_pair
    mine = big(a, b"-", provider)
    theirs = big(b, b"r")
    a.qp.post_send(*[request(IBV_WR_RDMA_READ, mine, theirs, i) for i in range(3)])
    while mine.view[0] != ord("r"):
        os.sched_yield()
    mine.close()
    mine.view[:] = b"*" * BIG
    statuses = [wc.status for wc in a.wait(3)]
    assert IBV_WC_LOC_PROT_ERR in statuses
    assert set(statuses) <= {IBV_WC_SUCCESS, IBV_WC_LOC_PROT_ERR, IBV_WC_WR_FLUSH_ERR}
    assert mine.view == b"*" * BIG


def test_a_receive_is_not_filled_after_dereg(own_pair: Pair) -> None:
    a, b = own_pair
    source = big(a, b"s")
    inbox = big(b, b"-")
    b.qp.post_recv(RecvWR(7, [SGE(inbox.buf, BIG, inbox.lkey)]))
    a.qp.post_send(request(IBV_WR_SEND, source, inbox))
    while inbox.view[0] != ord("s"):
        os.sched_yield()
    inbox.close()
    inbox.view[:] = b"*" * BIG
    (sent,), (got,) = a.wait(), b.wait()
    if got.status != IBV_WC_SUCCESS:  # it may have been complete a moment before
        assert (sent.status, got.status, got.wr_id) == (IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, 7)
    assert inbox.view == b"*" * BIG


def test_rereg_takes_the_old_keys_away_at_once(own_pair: Pair) -> None:
    a, b = own_pair
    source = big(a, b"w")
    target = big(b, b"-")
    writes = [request(IBV_WR_RDMA_WRITE, source, target, i) for i in range(8)]
    a.qp.post_send(*writes)
    while target.view[0] != ord("w"):
        os.sched_yield()
    target.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=ACCESS | 64)
    target.view[:] = b"*" * BIG
    assert IBV_WC_REM_ACCESS_ERR in [wc.status for wc in a.wait(8)]
    assert target.view == b"*" * BIG
    for end in own_pair:
        end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    connect(a, b)
    a.qp.post_send(request(IBV_WR_RDMA_WRITE, source, target))
    assert a.wait()[0].status == IBV_WC_SUCCESS
    assert target.view == source.view


def test_the_daemon_keeps_no_mapping_of_what_was_deregistered_in_flight(own_lab: LocalLab, own_pair: Pair) -> None:
    a, b = own_pair
    daemon = own_lab.daemons[0]
    before = memfd_mappings(daemon)
    source, target = big(a, b"w"), big(b, b"-")
    os.kill(own_lab.daemons[1], signal.SIGSTOP)
    try:
        a.qp.post_send(*[request(IBV_WR_RDMA_WRITE, source, target, i) for i in range(4)])
        assert memfd_mappings(daemon) == before + 1
        source.close()
        assert memfd_mappings(daemon) == before
    finally:
        os.kill(own_lab.daemons[1], signal.SIGCONT)
    a.wait(4)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_forked_child_is_refused_everything_and_the_parent_notices_nothing(pair: Pair) -> None:
    a, b = pair
    region = MR.over(a.pd, bytearray(100), ACCESS)
    a.qp.post_send(a.write(b, 8, 1))
    while not len(a.cq._ring):
        os.sched_yield()
    attempts = {
        "post_send": lambda: a.qp.post_send(a.write(b, 8, 99)),
        "post_recv": lambda: a.qp.post_recv(RecvWR(99)),
        "poll": lambda: a.cq.poll(1),
        "wait": lambda: a.cq.wait(1, 1),
        "req_notify": lambda: a.cq.req_notify(),
        "get_cq_event": lambda: a.channel.get_cq_event(timeout_s=0),
        "get_async_event": lambda: a.ctx.get_async_event(0),
        "MR": lambda: MR(a.pd, 10, ACCESS),
        "rereg": lambda: region.rereg(IBV_REREG_MR_CHANGE_ACCESS, access=1),
        "PD": lambda: PD(a.ctx),
        "modify": lambda: a.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE),
    }
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said: dict[str, str] = {}
        for name, attempt in attempts.items():
            try:
                attempt()
                said[name] = "went through"
            except VerbsError as error:
                said[name] = f"{errno.errorcode[error.errno or 0]} {error}"
            except BaseException as error:
                said[name] = repr(error)
        with Context("hca1", a.ctx._channel.path) as own:
            said["own"] = own.name
        a.ctx.close()  # closes the child's descriptors and nothing else
        os.write(write, json.dumps(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = json.loads(pipe.read())
    assert os.waitpid(pid, 0)[1] == 0
    assert said.pop("own") == "hca1"
    assert {name: text for name, text in said.items() if not text.startswith("EPERM") or "fork" not in text} == {}
    assert [wc.wr_id for wc in a.wait()] == [1]
    a.qp.post_send(a.write(b, 8, 2))
    assert [(wc.wr_id, wc.status) for wc in a.wait()] == [(2, IBV_WC_SUCCESS)]


def test_two_processes_with_the_same_addresses_do_not_mix(unshaped: LocalLab) -> None:
    """Two children of one process have the same layout: the same address is other memory in each."""
    memory = mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    a = End(unshaped, 1)
    children = []
    for name in (b"first", b"second"):
        ours, theirs = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                memory[: len(name)] = name
                end = End(unshaped, 0)
                region = MR(end.pd, 8192, ACCESS, address=address)
                card: dict[str, Any] = {**end.qp.endpoint(), "addr": region.buf, "rkey": region.rkey}
                os.write(theirs[1], json.dumps({**card, "provider": region.provider}).encode() + b"\n")
                end.qp.connect(json.loads(os.read(ours[0], 4096)))
                os.write(theirs[1], b"up\n")
                os.read(ours[0], 1)
                region.sync()
                os.write(theirs[1], memory[4096 : 4096 + 20])
            finally:
                os._exit(0)
        children.append((pid, name, ours[1], os.fdopen(theirs[0], "rb", buffering=0)))
        os.close(ours[0])
        os.close(theirs[1])
    for _, name, out, inbox in children:
        card = json.loads(inbox.read(4096))
        assert card["addr"] == address
        a.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
        os.write(out, json.dumps(a.qp.endpoint()).encode())
        a.qp.connect(card)
        assert inbox.read(3) == b"up\n"
        a.mr.view[:20] = name.ljust(20)
        a.qp.post_send(
            SendWR(1, IBV_WR_RDMA_WRITE, [a.sge(0, 20)], 0, 2, address + 4096, card["rkey"]),
            SendWR(2, IBV_WR_RDMA_READ, [a.sge(100, len(name))], 0, 2, address, card["rkey"]),
        )
        assert [wc.status for wc in a.wait(2)] == [IBV_WC_SUCCESS] * 2
        assert a.mr.read(len(name), 100) == name
    for pid, name, out, inbox in children:
        os.write(out, b".")
        assert inbox.read(20) == name.ljust(20)
        os.waitpid(pid, 0)
        os.close(out)
        inbox.close()
    assert memory[:20] == bytes(20)
    a.close()


@pytest.mark.parametrize("kind", ["MR(pd, n, 7)", "MR.over(pd, bytearray(n), 7)"])
def test_an_application_killed_with_work_in_flight(own_lab: LocalLab, kind: str) -> None:
    """Its peer meets silence, as hardware gives it: RETRY_EXC_ERR. The daemon keeps nothing of it."""
    daemon = own_lab.daemons[1]
    before, mapped = set(descriptors(daemon)), memfd_mappings(daemon)
    program = (
        "import sys, json\n"
        "from fauxrdma.verbs import *\n"
        f"n = {BIG}; ctx = Context('hca1'); pd = PD(ctx); cq = CQ(ctx, 64); mr = {kind}\n"
        "qp = QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_wr=64)))\n"
        "print(json.dumps({**qp.endpoint(), 'addr': mr.buf, 'rkey': mr.rkey}), flush=True)\n"
        "card = json.loads(sys.stdin.readline()); qp.connect(card); print('up', flush=True)\n"
        "while True:\n"
        "    qp.post_send(SendWR(1, 0, [SGE(mr.buf, n, mr.lkey)], 0, 2, card['addr'], card['rkey']))\n"
        "    while not cq.poll(1)[0]: pass\n"
    )
    env = {**os.environ, "FAUXRDMA_SOCKET": str(own_lab.socket_path(1))}
    app = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert app.stdin is not None
    assert app.stdout is not None
    a = End(own_lab, 0, length=BIG)
    try:
        card = json.loads(app.stdout.readline())
        endpoint = {**a.qp.endpoint(), "addr": a.mr.buf, "rkey": a.mr.rkey}
        app.stdin.write(json.dumps(endpoint).encode() + b"\n")
        app.stdin.flush()
        a.qp.connect(card, timeout=12, retry_cnt=1)
        assert app.stdout.readline() == b"up\n"
        for wr_id in range(3):
            a.qp.post_send(SendWR(wr_id, IBV_WR_RDMA_WRITE, [a.sge(0, BIG)], 0, 2, card["addr"], card["rkey"]))
        a.wait(1)
        app.kill()
        app.wait()
        for wr_id in range(3, 20):  # however much the daemon still took while it did not know
            a.qp.post_send(SendWR(wr_id, IBV_WR_RDMA_WRITE, [a.sge(0, BIG)], 0, 2, card["addr"], card["rkey"]))
        statuses = {wc.status for wc in a.wait(19)}
        # process_vm meets the death itself when it comes before the end of the connection.
        assert statuses - {IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR} <= {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_OP_ERR}
        assert IBV_WC_WR_FLUSH_ERR in statuses
    finally:
        app.kill()
        app.wait()
        app.stdin.close()
        app.stdout.close()
        a.close()
    assert settles(lambda: memfd_mappings(daemon), mapped) == mapped
    assert settles(lambda: set(descriptors(daemon)) - before, set()) == set()
