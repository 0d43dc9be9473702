"""What goes wrong over real daemons: the status libibverbs gives, the words, untouched bytes, nothing left behind."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from leaks import descriptors, memfd_mappings, settles
from pairs import End, connect

from fauxrdma.abi.control_verbs import HcaList, ListHcas
from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import (
    IBV_EVENT_CQ_ERR,
    IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_QP_ACCESS_ERR,
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_QPS_INIT,
    IBV_QPS_RESET,
    IBV_QPS_RTS,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    IBV_WR_RDMA_READ,
    IBV_WR_SEND,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.runtime.control_channel import ControlChannel
from fauxrdma.verbs import CQ, MR, PD, QP, Context, QPAttr, QPCap, QPInitAttr, RecvWR, SendWR
from fauxrdma.wire.fabric_messages import PathAnswer

Pair = tuple[End, End]


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("wrong rkey", "is not registered on this device"),
        ("past the end", "leaves region [0x"),
        ("no access", "does not grant IBV_ACCESS_REMOTE_"),
        ("deregistered", "is not registered on this device"),
        ("qp access", "was not given IBV_ACCESS_REMOTE_"),
    ],
)
def test_remote_access_errors(unshaped: LocalLab, case: str, words: str, read: bool) -> None:
    a = End(unshaped, 0)
    b = End(unshaped, 1, access=1 if case == "no access" else 7)
    connect(a, b, **({"access": 1} if case == "qp access" else {}))
    a.mr.view[:] = b"a" * a.mr.length
    b.mr.view[:] = b"b" * b.mr.length
    length = 100_000
    wr = a.write(b, length)
    if read:
        wr.opcode = IBV_WR_RDMA_READ
    if case == "wrong rkey":
        wr.rkey ^= 0x10
    elif case == "past the end":
        wr.remote_addr += b.mr.length - length + 1
    elif case == "deregistered":
        b.mr.close()
    a.qp.post_send(wr, a.write(b, 8, wr_id=2))
    b.qp.post_recv(RecvWR(7))
    first, second = a.wait(2)
    assert (first.status, second.status) == (IBV_WC_REM_ACCESS_ERR, IBV_WC_WR_FLUSH_ERR)
    assert b.wait()[0].status == IBV_WC_WR_FLUSH_ERR
    event = b.ctx.get_async_event(10)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_QP_ACCESS_ERR, b.qp.qp_num)
    assert bytes(b.mr.view) == b"b" * b.mr.length
    assert bytes(a.mr.view) == b"a" * a.mr.length
    text = a.qp.last_error()
    assert text == b.qp.last_error() == event.text
    assert words in text
    assert f"rkey 0x{wr.rkey:x}" in text
    if case == "past the end":
        assert f"[0x{wr.remote_addr:x}, 0x{wr.remote_addr + length:x})" in text
    a.close()
    b.close()


def test_posting_in_the_wrong_state(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    with pytest.raises(VerbsError, match="IBV_QPS_RESET") as caught:
        a.qp.post_send(a.write(b, 8))
    assert caught.value.errno == errno.EINVAL
    with pytest.raises(VerbsError, match="IBV_QPS_RESET"):
        a.qp.post_recv(RecvWR(1))
    a.qp.to_init(QPAttr(qp_access_flags=7))
    assert a.qp.qp_state is IBV_QPS_INIT
    a.qp.post_recv(RecvWR(1))
    with pytest.raises(VerbsError, match="IBV_QPS_INIT"):
        a.qp.post_send(a.write(b, 8))
    with pytest.raises(VerbsError, match="IBV_QPS_INIT to IBV_QPS_RTS"):
        a.qp.modify(QPAttr(qp_state=IBV_QPS_RTS), IBV_QP_STATE)
    assert a.qp.qp_state is IBV_QPS_INIT
    # RESET forgets what was posted, without completions.
    a.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    assert a.cq.poll(1) == (0, [])
    a.close()
    b.close()


def test_posts_in_err_are_flushed(pair: Pair) -> None:
    a, b = pair
    a.qp.post_recv(RecvWR(1))
    a.qp.modify(QPAttr(qp_state=IBV_QPS_ERR), IBV_QP_STATE)
    a.qp.post_send(a.write(b, 8, wr_id=2))
    a.qp.post_recv(RecvWR(3))
    assert {(wc.wr_id, wc.status) for wc in a.wait(3)} == {(i, IBV_WC_WR_FLUSH_ERR) for i in (1, 2, 3)}


def test_a_queue_pair_works_again_after_reset(pair: Pair) -> None:
    a, b = pair
    a.qp.post_send(a.write(b, 8, rkey=1))
    assert a.wait()[0].status == IBV_WC_REM_ACCESS_ERR
    for end in pair:
        end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    connect(a, b)
    a.qp.post_send(a.write(b, 8))
    assert a.wait()[0].status == IBV_WC_SUCCESS


def test_receiver_not_ready(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    connect(a, b, rnr_retry=2, min_rnr_timer=1)
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(0, 10)]))
    assert a.wait()[0].status == IBV_WC_RNR_RETRY_EXC_ERR
    assert "no receive posted" in a.qp.last_error()
    a.close()
    b.close()


def test_completion_queue_overflow_is_an_event_and_stops_its_queue_pairs(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    small = CQ(a.ctx, 4)
    a.qp.close()
    a.qp = QP(a.pd, QPInitAttr(scq=small, rcq=small, cap=QPCap(max_send_wr=64)))
    connect(a, b)
    a.qp.post_send(*[a.write(b, 8, wr_id=i) for i in range(6)])
    event = a.ctx.get_async_event(10)
    assert event is not None
    assert (event.event_type, event.element) == (IBV_EVENT_CQ_ERR, small.handle)
    assert a.qp.qp_state is IBV_QPS_ERR
    assert [wc.wr_id for wc in small.poll(9)[1]] == [0, 1, 2, 3]
    a.close()
    b.close()


@pytest.fixture
def doomed() -> Iterator[LocalLab]:
    """A lab of its own, to kill parts of."""
    with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as lab:
        yield lab


def test_peer_daemon_killed_in_the_middle_of_a_transfer(doomed: LocalLab) -> None:
    survivor = doomed.daemons[0]
    held = descriptors(survivor)
    a, b = End(doomed, 0, length=64 << 20), End(doomed, 1, length=64 << 20)
    connect(a, b, timeout=14, retry_cnt=2)
    a.qp.post_recv(RecvWR(50))
    a.qp.post_send(*[a.write(b, 64 << 20, wr_id=i) for i in range(10)])
    assert a.wait()[0].status == IBV_WC_SUCCESS  # it is under way
    began = a.ctx.fabric_now_ns()
    os.kill(doomed.daemons[1], signal.SIGKILL)
    rest = a.wait(10)
    took_ns = a.ctx.fabric_now_ns() - began
    sends = [wc for wc in rest if wc.wr_id != 50]
    statuses = [wc.status for wc in sends]
    assert [wc.wr_id for wc in sends] == list(range(1, 10))
    done = statuses.count(IBV_WC_SUCCESS)
    assert statuses == [IBV_WC_SUCCESS] * done + [IBV_WC_RETRY_EXC_ERR] + [IBV_WC_WR_FLUSH_ERR] * (8 - done)
    assert [wc.status for wc in rest if wc.wr_id == 50] == [IBV_WC_WR_FLUSH_ERR]
    # Three timeouts of 67 ms; transfers that were still completing and a loaded host may add to that, not minutes.
    assert took_ns < 20e9
    assert f"LID {b.ctx.hca.lid} QP 0x{b.qp.qp_num:x}" in a.qp.last_error()
    # The other side's application hears of its daemon at once, whatever it waits for.
    event = b.ctx.get_async_event(10)
    assert event is not None
    assert event.event_type == IBV_EVENT_DEVICE_FATAL
    with pytest.raises(VerbsError, match="is gone") as caught:
        b.cq.wait(1, 10)
    assert caught.value.errno == errno.EIO
    a.close()
    b.close()
    # What the survivor held for the application and for the dead peer is released.
    assert settles(lambda: memfd_mappings(survivor), 0) == 0
    gone = settles(lambda: len(descriptors(survivor)) <= len(held), True)
    assert gone, set(descriptors(survivor)) - set(held)


def test_nothing_is_left_of_an_application_that_is_killed(doomed: LocalLab) -> None:
    daemon = doomed.daemons[0]
    before = set(descriptors(daemon))
    program = (
        "import time\n"
        "from fauxrdma.verbs import *\n"
        "keep = []\n"
        "for name in ('hca1', 'hca2'):\n"
        "    ctx = Context(name); pd = PD(ctx); ch = CompChannel(ctx); cq = CQ(ctx, 16, None, ch)\n"
        "    qps = [QP(pd, QPInitAttr(scq=cq, rcq=cq)) for _ in range(5)]\n"
        "    keep.append((ctx, pd, ch, cq, MR(pd, 1 << 20, 7), qps))\n"
        "print('ready', flush=True); time.sleep(600)\n"
    )
    env = {**os.environ, "FAUXRDMA_SOCKET": str(doomed.socket_path(0))}
    app = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)
    assert app.stdout is not None
    assert app.stdout.readline() == b"ready\n"
    assert memfd_mappings(daemon) == 2 * (1 + 1 + 1 + 5)  # doorbells, completion queue, region, queue pairs
    app.kill()
    app.wait()
    app.stdout.close()
    assert settles(lambda: memfd_mappings(daemon), 0) == 0
    assert settles(lambda: set(descriptors(daemon)) - before, set()) == set()


def test_many_open_and_close_leave_the_daemon_as_it_was(doomed: LocalLab) -> None:
    daemon = doomed.daemons[0]
    before = set(descriptors(daemon))
    for _ in range(50):
        a, b = End(doomed, 0, "hca1", 4096), End(doomed, 0, "hca2", 4096)
        connect(a, b)
        a.qp.post_send(a.write(b, 100))
        a.wait()
        a.close()
        b.close()
    assert settles(lambda: set(descriptors(daemon)) - before, set()) == set()
    assert settles(lambda: memfd_mappings(daemon), 0) == 0
    del a, b
    gc.collect()
    assert memfd_mappings(os.getpid()) == 0


def test_garbage_on_either_socket_is_refused_and_others_go_on(pair: Pair, unshaped: LocalLab) -> None:
    a, b = pair
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(unshaped.socket_path(0)))
        stranger.sendall(b"\xff\xff\xff\xff")
        stranger.settimeout(10)
        answer = stranger.recv(4096)
        assert b"over the limit" in answer
        assert stranger.recv(1) == b""
    a.qp.post_send(a.write(b, 8))
    assert a.wait()[0].status == IBV_WC_SUCCESS


def test_the_application_socket_is_private(unshaped: LocalLab) -> None:
    mode = os.stat(unshaped.socket_path(0)).st_mode & 0o777
    assert mode == 0o600


def test_memory_that_could_vanish_is_not_mapped(unshaped: LocalLab) -> None:
    """An unsealed or short memfd would let an application kill its daemon by SIGBUS."""
    from fauxrdma.abi import control_verbs as V

    with Context("hca1", str(unshaped.socket_path(0))) as ctx:
        pd = PD(ctx)
        fd = os.memfd_create("short", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        for length, words in ((4096, "not sealed"), (1 << 20, "not sealed")):
            with pytest.raises(VerbsError, match=words):
                ctx._channel.request(V.RegMr(pd.handle, 0, length, 7, "memfd", 0, None), V.MrKeys, fds=(fd,))
        with pytest.raises(VerbsError, match="no memfd came along"):
            ctx._channel.request(V.RegMr(pd.handle, 0, 4096, 7, "memfd", 0, None), V.MrKeys)
        os.close(fd)
        MR(pd, 4096, 7).close()


def test_a_second_overflow_is_told_too(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    small = CQ(a.ctx, 4)
    a.qp.close()
    a.qp = QP(a.pd, QPInitAttr(scq=small, rcq=small, cap=QPCap(max_send_wr=64)))
    for _ in range(2):
        connect(a, b)
        a.qp.post_send(*[a.write(b, 8, wr_id=i) for i in range(6)])
        event = a.ctx.get_async_event(10)
        assert event is not None
        assert event.event_type == IBV_EVENT_CQ_ERR
        assert a.qp.qp_state is IBV_QPS_ERR
        for end in (a, b):
            end.qp.modify(QPAttr(qp_state=IBV_QPS_RESET), IBV_QP_STATE)
    a.close()
    b.close()


def test_refused_verbs_leave_no_descriptor(doomed: LocalLab) -> None:
    from fauxrdma.abi import control_verbs as V

    daemon = doomed.daemons[0]
    with Context("hca1", str(doomed.socket_path(0))) as ctx:
        pd, cq = PD(ctx), CQ(ctx, 4)
        before = set(descriptors(daemon))
        for _ in range(20):
            with pytest.raises(VerbsError, match="max_send_wr is 99999999"):
                QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=QPCap(max_send_wr=99999999)))
            ctx._channel.request(V.QueryPath(1), PathAnswer, fds=(0, 0, 0))  # descriptors nobody asked for
        assert settles(lambda: set(descriptors(daemon)) - before, set()) == set()


def test_a_read_cannot_be_inline(pair: Pair) -> None:
    a, b = pair
    wr = a.write(b, 8, send_flags=8)
    wr.opcode = IBV_WR_RDMA_READ
    with pytest.raises(VerbsError, match="cannot be inline"):
        a.qp.post_send(wr)


def test_a_daemon_that_stalls_is_given_up_rather_than_misunderstood(doomed: LocalLab) -> None:
    channel = ControlChannel(str(doomed.socket_path(0)), timeout_s=0.2)
    os.kill(doomed.daemons[0], signal.SIGSTOP)
    try:
        with pytest.raises(VerbsError, match="did not answer"):
            channel.request(ListHcas(1), HcaList)
    finally:
        os.kill(doomed.daemons[0], signal.SIGCONT)
    with pytest.raises(VerbsError, match="did not answer in time before"):
        channel.request(ListHcas(1), HcaList)
    channel.close()
