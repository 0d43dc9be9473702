"""Every operation over real daemons: bytes, completions, and what needs no system call."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
from pairs import End, connect

from fauxrdma.errors import SetupError, VerbsError
from fauxrdma.ib.enums import (
    IBV_QPS_RTS,
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_SEND_SOLICITED,
    IBV_WC_RECV,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_SUCCESS,
    IBV_WC_WITH_IMM,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
)
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import CQ, MR, PD, QP, SGE, WC, Context, QPCap, QPInitAttr, RecvWR, SendWR, get_device_list

Pair = tuple[End, End]


def fill(end: End) -> bytes:
    data = np.random.default_rng(end.qp.qp_num).bytes(end.mr.length)
    end.mr.view[:] = data
    return data


@pytest.mark.parametrize("length", [0, 1, 64, 4095, 4096, 16385, 1 << 20])
def test_write_and_read_any_length(pair: Pair, length: int) -> None:
    a, b = pair
    data = fill(a)
    a.qp.post_send(a.write(b, length))
    (wc,) = a.wait()
    assert wc.status == IBV_WC_SUCCESS
    assert b.mr.read(length, 0) == data[:length]
    assert b.mr.read(b.mr.length - length, length) == bytes(b.mr.length - length)
    back = fill(b)
    a.qp.post_send(SendWR(2, IBV_WR_RDMA_READ, [a.sge(0, length)], remote_addr=b.mr.buf, rkey=b.mr.rkey))
    (wc,) = a.wait()
    assert (wc.status, wc.byte_len) == (IBV_WC_SUCCESS, length)
    assert a.mr.read(length, 0) == back[:length]


def test_scatter_gather_both_ways(pair: Pair) -> None:
    a, b = pair
    data = fill(a)
    b.qp.post_recv(RecvWR(9, [b.sge(1000, 5000), b.sge(0, 0), b.sge(100_000, 9000)]))
    a.qp.post_send(SendWR(1, IBV_WR_SEND, [a.sge(7, 10_000), a.sge(50_000, 3), a.sge(20_000, 1000)]))
    (sent,), (got,) = a.wait(), b.wait()
    assert sent.status == IBV_WC_SUCCESS
    assert (got.wr_id, got.opcode, got.byte_len) == (9, IBV_WC_RECV, 11_003)
    expected = data[7:10_007] + data[50_000:50_003] + data[20_000:21_000]
    assert b.mr.read(5000, 1000) + b.mr.read(6003, 100_000) == expected


def test_immediate_data_is_untouched(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(RecvWR(1, [b.sge(0, 16)]), RecvWR(2), RecvWR(3, [b.sge(0, 16)]))
    a.qp.post_send(
        SendWR(1, IBV_WR_SEND_WITH_IMM, [a.sge(0, 8)], imm_data=0xDEADBEEF),
        SendWR(2, IBV_WR_RDMA_WRITE_WITH_IMM, [a.sge(0, 8)], 0x01020304, 2, b.mr.buf, b.mr.rkey),
        SendWR(3, IBV_WR_SEND, [a.sge(0, 8)], imm_data=5),
    )
    got = b.wait(3)
    assert [(wc.opcode, wc.imm_data, wc.wc_flags & IBV_WC_WITH_IMM) for wc in got] == [
        (IBV_WC_RECV, 0xDEADBEEF, 2),
        (IBV_WC_RECV_RDMA_WITH_IMM, 0x01020304, 2),
        (IBV_WC_RECV, 0, 0),
    ]
    assert [wc.qp_num for wc in got] == [b.qp.qp_num] * 3
    assert [wc.src_qp for wc in got] == [a.qp.qp_num] * 3


def test_inline_data_is_copied_at_post_time(pair: Pair) -> None:
    a, b = pair
    plain = np.arange(100, dtype=np.uint8)  # not registered: inline needs no key
    sge = SGE(plain.ctypes.data, 100, 0)
    wr = SendWR(1, IBV_WR_RDMA_WRITE, [sge], 0, IBV_SEND_INLINE | IBV_SEND_SIGNALED, b.mr.buf, b.mr.rkey)
    a.qp.post_send(wr)
    plain[:] = 0
    assert a.wait()[0].status == IBV_WC_SUCCESS
    assert b.mr.read(100, 0) == bytes(range(100))


def test_only_signaled_requests_complete(unshaped: LocalLab) -> None:
    a, b = End(unshaped, 0), End(unshaped, 1)
    init = QPInitAttr(scq=a.cq, rcq=a.cq, cap=QPCap(max_send_wr=4), sq_sig_all=0)
    a.qp.close()
    a.qp = QP(a.pd, init)
    connect(a, b)
    quiet = a.write(b, 8, send_flags=0)
    a.qp.post_send(quiet, quiet, quiet, a.write(b, 8, wr_id=4))
    # The slots of unsignaled requests are free once a later completion was polled, and not before.
    with pytest.raises(VerbsError, match="all 4 send requests") as caught:
        a.qp.post_send(quiet)
    assert caught.value.errno == errno.ENOMEM
    assert [wc.wr_id for wc in a.wait()] == [4]
    a.qp.post_send(quiet, quiet, quiet, a.write(b, 8, wr_id=5))
    assert [wc.wr_id for wc in a.wait()] == [5]
    a.close()
    b.close()


def test_a_chain_posts_what_came_before_the_bad_request(pair: Pair) -> None:
    a, b = pair
    with pytest.raises(VerbsError, match="5 SGEs, this QP has max_send_sge 4"):
        a.qp.post_send(a.write(b, 8, wr_id=1), SendWR(2, IBV_WR_SEND, [a.sge(0, 1)] * 5), a.write(b, 8, wr_id=3))
    assert [wc.wr_id for wc in a.wait()] == [1]
    assert a.cq.poll(1) == (0, [])
    with pytest.raises(VerbsError, match="max_inline_data 128"):
        a.qp.post_send(a.write(b, 129, send_flags=IBV_SEND_INLINE))
    with pytest.raises(VerbsError, match="opcode 99"):
        a.qp.post_send(SendWR(1, 99))


def test_ranks_of_one_node_and_an_hca_with_itself(unshaped: LocalLab) -> None:
    for other in ("hca2", "hca1"):
        a, b = End(unshaped, 0, "hca1"), End(unshaped, 0, other)
        connect(a, b)
        data = fill(a)
        a.qp.post_send(*[a.write(b, a.mr.length, wr_id=i) for i in range(20)])
        assert [wc.wr_id for wc in a.wait(20)] == list(range(20))
        assert b.mr.read(b.mr.length, 0) == data
        a.qp.post_send(SendWR(1, IBV_WR_RDMA_READ, [a.sge(0, 100)], remote_addr=b.mr.buf + 5, rkey=b.mr.rkey))
        a.wait()
        assert a.mr.read(100, 0) == data[5:105]
        a.close()
        b.close()


def test_many_messages_in_both_directions_at_once(pair: Pair) -> None:
    a, b = pair
    fill(a)
    fill(b)
    errors: list[object] = []

    def run(mine: End, peer: End) -> None:
        try:
            for _ in range(20):
                mine.qp.post_send(*[mine.write(peer, 300_000, remote_addr=peer.mr.buf + 500_000) for _ in range(10)])
                errors.extend(wc for wc in mine.wait(10) if wc.status)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=ends) for ends in ((a, b), (b, a))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert b.mr.read(300_000, 500_000) == a.mr.read(300_000, 0)
    assert a.mr.read(300_000, 500_000) == b.mr.read(300_000, 0)


def test_one_sided_operations_complete_while_the_target_is_stopped(unshaped: LocalLab) -> None:
    """The promise of RDMA: the remote CPU is not needed. The target process is stopped by SIGSTOP."""
    program = (
        "import sys, json\n"
        "from fauxrdma.verbs import *\n"
        "ctx = Context('hca1'); pd = PD(ctx); mr = MR(pd, 1 << 20, 7); cq = CQ(ctx, 16)\n"
        "mr.view[:] = bytes(range(256)) * 4096\n"
        "qp = QP(pd, QPInitAttr(scq=cq, rcq=cq))\n"
        "print(json.dumps({**qp.endpoint(), 'addr': mr.buf, 'rkey': mr.rkey}), flush=True)\n"
        "qp.connect(json.loads(sys.stdin.readline())); print('up', flush=True)\n"
        "sys.stdin.readline(); sys.stdout.buffer.write(mr.view[:1 << 19])\n"
    )
    env = {**os.environ, "FAUXRDMA_SOCKET": str(unshaped.socket_path(1))}
    target = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert target.stdin is not None
    assert target.stdout is not None
    a = End(unshaped, 0)
    try:
        card = json.loads(target.stdout.readline())
        target.stdin.write(json.dumps(a.qp.endpoint()).encode() + b"\n")
        target.stdin.flush()
        a.qp.connect(card)
        assert target.stdout.readline() == b"up\n"
        os.kill(target.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, target.pid, os.WSTOPPED)
        data = fill(a)
        half = 1 << 19
        a.qp.post_send(
            SendWR(1, IBV_WR_RDMA_WRITE, [a.sge(0, half)], 0, 2, card["addr"], card["rkey"]),
            SendWR(2, IBV_WR_RDMA_READ, [a.sge(half, half)], 0, 2, card["addr"] + half, card["rkey"]),
        )
        assert [wc.status for wc in a.wait(2)] == [IBV_WC_SUCCESS] * 2
        assert a.mr.read(half, half) == bytes(range(256)) * 2048
        os.kill(target.pid, signal.SIGCONT)
        target.stdin.write(b"\n")
        target.stdin.flush()
        assert target.stdout.read() == data[:half]
        assert target.wait(20) == 0
    finally:
        a.close()
        target.kill()
        target.wait()
        target.stdin.close()
        target.stdout.close()


def test_events_fire_once_for_what_comes_after_arming(pair: Pair) -> None:
    a, b = pair
    a.qp.post_send(a.write(b, 8))
    while not a.cq.poll(1)[0]:
        os.sched_yield()
    a.cq.req_notify()
    assert a.channel.get_cq_event(timeout_s=0) is None  # what came before raises nothing
    a.qp.post_send(a.write(b, 8), a.write(b, 8))
    assert a.channel.get_cq_event(a.cq, timeout_s=10) is a.cq
    got = 0
    while got < 2:
        got += a.cq.poll(2)[0]
    assert a.channel.get_cq_event(timeout_s=0) is None  # one event for both
    a.cq.ack_events(1)


def test_solicited_only_notification(pair: Pair) -> None:
    a, b = pair
    b.qp.post_recv(RecvWR(1), RecvWR(2))
    b.cq.req_notify(solicited_only=True)
    a.qp.post_send(SendWR(1, IBV_WR_SEND))
    a.wait()
    while len(b.cq._ring) < 1:
        os.sched_yield()
    assert b.channel.get_cq_event(timeout_s=0) is None
    a.qp.post_send(SendWR(2, IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED | IBV_SEND_SOLICITED))
    assert b.channel.get_cq_event(b.cq, timeout_s=10) is b.cq
    b.cq.ack_events(1)


async def test_completions_can_be_awaited(pair: Pair) -> None:
    a, b = pair

    async def heartbeat() -> int:
        beats = 0
        while True:
            await asyncio.sleep(0)
            beats += 1
            if finished.is_set():
                return beats

    finished = asyncio.Event()
    beating = asyncio.create_task(heartbeat())
    for i in range(50):
        a.qp.post_send(a.write(b, 1000, wr_id=i))
        assert (await a.cq.next()).wr_id == i
    finished.set()
    assert await beating > 50  # the loop was never blocked


def forbid_system_calls_but_write_and_exit() -> None:
    """A seccomp filter on this process: any other system call is death by SIGSYS (x86-64 and AArch64 numbers)."""
    write, exit_group = {"x86_64": (1, 231), "aarch64": (64, 94)}[platform.machine()]
    allow, kill = 0x7FFF0000, 0x80000000
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the system call's number
            (0x15, 1, 0, write),
            (0x15, 0, 1, exit_group),
            (0x06, 0, 0, allow),
            (0x06, 0, 0, kill),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):  # no new privileges; set the filter
        os._exit(3)


def test_polling_makes_no_system_call(unshaped: LocalLab) -> None:
    """A child polls where any system call would kill it; that it would is shown by a second one that makes one."""

    def in_child(action: Callable[[End], int]) -> int:
        pid = os.fork()
        if pid == 0:
            gc.disable()
            a, b = End(unshaped, 0), End(unshaped, 1)
            connect(a, b)
            a.qp.post_send(*[a.write(b, 8, wr_id=i) for i in range(60)])
            while len(a.cq._ring) < 60:
                os.sched_yield()
            assert [a.cq.poll(1)[1][0].wr_id for _ in range(10)] == list(range(10))
            # Holes in the allocator's pools for what polling makes, so that it need not ask the kernel for memory.
            spare = [(WC(), [None], tuple(float(i + j) for j in range(14)), 10**12 + i) for i in range(2000)]
            del spare[::2]
            forbid_system_calls_but_write_and_exit()
            os._exit(action(a))
        return os.waitpid(pid, 0)[1]

    def poll(a: End) -> int:
        polled = 0
        for wr_id in range(10, 60):
            n, wcs = a.cq.poll(1)
            polled += n == 1 and wcs[0].wr_id == wr_id
        return polled

    assert os.waitstatus_to_exitcode(in_child(poll)) == 50
    assert os.waitstatus_to_exitcode(in_child(lambda a: os.getppid())) == -signal.SIGSYS


def test_devices_and_ports(unshaped: LocalLab) -> None:
    hcas = get_device_list(str(unshaped.socket_path(0)))
    assert [hca.name for hca in hcas] == [f"hca{i}" for i in range(1, 10)]
    assert len({hca.lid for hca in hcas} | {hca.guid for hca in hcas}) == 18
    with Context("hca3", str(unshaped.socket_path(0))) as ctx:
        port = ctx.query_port(1)
        assert port.state.name == "IBV_PORT_ACTIVE"
        assert port.speed_gbps == 200
        assert port.lid == hcas[2].lid
        assert ctx.query_device().node_guid == hcas[2].guid
        with pytest.raises(VerbsError, match="port 2"):
            ctx.query_port(2)
    with pytest.raises(VerbsError, match="no HCA called 'mlx5_0'") as caught:
        Context("mlx5_0", str(unshaped.socket_path(0)))
    assert caught.value.errno == errno.ENODEV
    with pytest.raises(SetupError, match="fauxrdma run"):
        Context("hca1", "/nowhere/at/all.sock")


def test_query_gives_back_what_was_set(pair: Pair) -> None:
    a, b = pair
    attr, init = a.qp.query()
    assert attr.qp_state == IBV_QPS_RTS
    assert (attr.dest_qp_num, attr.ah_attr.dlid) == (b.qp.qp_num, b.ctx.hca.lid)
    assert (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer) == (14, 7, 7, 12)
    assert init.cap.max_send_wr == 64


def test_limits_are_einval_with_the_number(unshaped: LocalLab) -> None:
    with Context("hca1", str(unshaped.socket_path(0))) as ctx:
        pd = PD(ctx)
        cq = CQ(ctx, 10)
        for cap, words in (
            (QPCap(max_send_wr=1 << 20), "max_send_wr is 1048576"),
            (QPCap(max_recv_sge=17), "max_recv_sge is 17"),
            (QPCap(max_inline_data=4096), "max_inline_data is 4096"),
        ):
            with pytest.raises(VerbsError, match=words):
                QP(pd, QPInitAttr(scq=cq, rcq=cq, cap=cap))
        with pytest.raises(VerbsError, match="0 entries"):
            CQ(ctx, 0)
        with pytest.raises(VerbsError, match="LOCAL_WRITE"):
            MR(pd, 10, 2)
        qp = QP(pd, QPInitAttr(scq=cq, rcq=cq))
        for parent in (pd, cq):
            with pytest.raises(VerbsError) as caught:
                parent.close()
            assert caught.value.errno == errno.EBUSY
        qp.close()
        qp.close()
        cq.close()
        pd.close()


def test_a_forked_child_must_open_its_own(unshaped: LocalLab) -> None:
    with Context("hca1", str(unshaped.socket_path(0))) as ctx:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                PD(ctx)
            except VerbsError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert b"before fork()" in os.read(read, 1000)
        os.close(read)
        os.close(write)
        PD(ctx).close()  # the parent is unaffected


async def test_two_queues_of_one_channel_can_be_awaited_at_once(pair: Pair) -> None:
    a, b = pair
    other = CQ(a.ctx, 16, None, a.channel)
    qp = QP(a.pd, QPInitAttr(scq=other, rcq=other))
    peer = QP(b.pd, QPInitAttr(scq=b.cq, rcq=b.cq))
    qp.connect(peer.endpoint())
    peer.connect(qp.endpoint())
    first, second = asyncio.create_task(a.cq.next()), asyncio.create_task(other.next())
    await asyncio.sleep(0)
    a.qp.post_send(a.write(b, 8, wr_id=1))
    assert (await asyncio.wait_for(first, 20)).wr_id == 1
    qp.post_send(a.write(b, 8, wr_id=2))
    assert (await asyncio.wait_for(second, 20)).wr_id == 2
