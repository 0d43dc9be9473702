"""Connections over real daemons: two nodes, one's own address, rejections, datagrams, events, peers that are killed."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fauxrdma.errors import VerbsError
from fauxrdma.ib.enums import IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, QpState
from fauxrdma.lab.local import LocalLab
from fauxrdma.verbs import AH, Context, QPCap, QPInitAttr
from fauxrdma.verbs.cm import CMID, AddrInfo, CMEvent, CMEventChannel, ConnParam, EventType, PortSpace, UDParam
from fauxrdma.verbs.cm.parameters import RAI_PASSIVE

PEER = Path(__file__).parent / "cm_peer.py"
WAIT_S = 20.0


@pytest.fixture(scope="module", params=["seed-rail8", "seed-rail8,transport=rocev2,routed=spine"])
def lab(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    with LocalLab(request.param, nodes=2, gpus=1, clock="none") as lab:
        yield lab


@pytest.fixture
def contexts(lab: LocalLab) -> Iterator[tuple[Context, Context]]:
    with Context("hca1", str(lab.socket_path(0))) as a, Context("hca1", str(lab.socket_path(1))) as b:
        yield a, b


def init() -> QPInitAttr:
    return QPInitAttr(cap=QPCap(8, 8))


def gid_of(context: Context) -> str:
    """The address to connect to."""
    return [entry.gid for entry in context.query_gid_table()][-1]


def listener(context: Context, port_space: int = PortSpace.RDMA_PS_TCP) -> CMID:
    cmid = CMID(AddrInfo(port_space=port_space, flags=RAI_PASSIVE), init(), context=context)
    cmid.listen()
    return cmid


def active(context: Context, to: CMID, port_space: int = PortSpace.RDMA_PS_TCP) -> CMID:
    info = AddrInfo(dst=gid_of(to.context), dst_service=to.port, port_space=port_space)
    return CMID(info, init(), context=context)


def connected(a: Context, to: CMID) -> tuple[CMID, CMID]:
    client = active(a, to)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.connect, ConnParam(2, 3, private_data=b"hello"), WAIT_S)
        server = to.get_request(WAIT_S)
        server.accept(ConnParam(1, 1, private_data=b"welcome"), WAIT_S)
        asking.result()
    return client, server


def talk(client: CMID, server: CMID) -> None:
    here, there = client.reg_msgs(100), server.reg_msgs(100)
    here.view[:] = b"x" * 100
    server.post_recv(there, 5)
    client.post_send(here, wr_id=6)
    sent, received = client.get_send_comp(WAIT_S), server.get_recv_comp(WAIT_S)
    assert sent is not None
    assert received is not None
    assert (sent.wr_id, sent.status, received.wr_id, received.status) == (6, IBV_WC_SUCCESS, 5, IBV_WC_SUCCESS)
    assert bytes(there.view) == b"x" * 100


@pytest.mark.parametrize("own", [False, True], ids=["two nodes", "own address"])
def test_connect_talk_and_part(contexts: tuple[Context, Context], own: bool) -> None:
    a, b = contexts[0], contexts[0] if own else contexts[1]
    with listener(b) as passive:
        client, server = connected(a, passive)
        assert server.private_data[:5] == b"hello"
        assert client.private_data[:7] == b"welcome"
        talk(client, server)
        talk(server, client)
        # What was agreed on is what the queue pairs have.
        attr = client.qp.query()[0] if client.qp else None
        assert attr is not None
        assert (attr.max_rd_atomic, attr.max_dest_rd_atomic) == (1, 2)
        region = server.reg_write(100)
        data = client.reg_msgs(100)
        data.view[:] = b"w" * 100
        client.post_write(data, region.buf, region.rkey)
        done = client.get_send_comp(WAIT_S)
        assert done is not None
        assert done.status == IBV_WC_SUCCESS
        assert bytes(region.view) == b"w" * 100
        server.post_recv(region, 9)
        client.disconnect(WAIT_S)
        server.wait_disconnected(WAIT_S)
        flushed = server.get_recv_comp(WAIT_S)
        assert flushed is not None
        assert (flushed.wr_id, flushed.status) == (9, IBV_WC_WR_FLUSH_ERR)
        assert server.qp is not None
        assert server.qp.qp_state == QpState.IBV_QPS_ERR
        client.close()
        server.close()


def test_rejected_with_private_data(contexts: tuple[Context, Context]) -> None:
    a, b = contexts
    with listener(b) as passive, active(a, passive) as client, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.connect, None, WAIT_S)
        server = passive.get_request(WAIT_S)
        server.reject(b"not today")
        with pytest.raises(VerbsError) as caught:
            asking.result()
        assert caught.value.errno == errno.ECONNREFUSED
        assert client.private_data[:9] == b"not today"
        server.close()


def test_nobody_there(contexts: tuple[Context, Context]) -> None:
    a, b = contexts
    with listener(b) as passive:
        client = active(a, passive)
    with pytest.raises(VerbsError) as caught:
        client.connect(timeout_s=WAIT_S)
    assert caught.value.errno == errno.ECONNREFUSED
    client.close()
    with pytest.raises(VerbsError) as caught:
        CMID(AddrInfo(dst="fe80::1234:5678", dst_service=1), context=a)
    assert caught.value.errno == errno.ENETUNREACH
    with pytest.raises(VerbsError) as caught:
        AddrInfo(dst="somewhere", dst_service=1)
    assert caught.value.errno == errno.EINVAL


def test_a_datagram_service(contexts: tuple[Context, Context]) -> None:
    a, b = contexts
    space = PortSpace.RDMA_PS_UDP
    with listener(b, space) as passive, active(a, passive, space) as client, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.connect, ConnParam(private_data=b"who"), WAIT_S)
        server = passive.get_request(WAIT_S)
        server.accept(ConnParam(private_data=b"me"))
        asking.result()
        parameters = UDParam(client.event)
        assert client.event.private_data[:2] == b"me"
        assert server.qp is not None
        assert parameters.qp_num == server.qp.qp_num
        here, there = client.reg_msgs(64), server.reg_msgs(40 + 64)
        here.view[:] = b"d" * 64
        server.post_recv(there)
        assert client.pd is not None
        with AH(client.pd, attr=parameters.ah_attr) as ah:
            client.post_ud_send(here, ah, parameters.qp_num)
            received = server.get_recv_comp(WAIT_S)
        assert received is not None
        assert (received.status, received.byte_len) == (IBV_WC_SUCCESS, 104)
        assert bytes(there.view[40:]) == b"d" * 64
        server.close()


def test_events_of_both_ends(contexts: tuple[Context, Context]) -> None:
    """As rdma_cm programs do it: one channel each, its descriptor in a poll set, every step an event."""
    a, b = contexts
    with CMEventChannel() as hers, CMEventChannel() as his:
        passive, client = CMID(his, context=b), CMID(hers, context=a)
        passive.bind_addr()
        passive.listen()
        steps: list[str] = []

        def next_event(channel: CMEventChannel) -> CMEvent:
            assert select.select([channel.fd], [], [], WAIT_S)[0]
            while (event := channel.get_event(WAIT_S)) is None:
                pass
            steps.append(event.event_str().removeprefix("RDMA_CM_EVENT_"))
            event.ack_cm_event()
            return event

        client.resolve_addr(gid_of(b), passive.port)
        next_event(hers)
        client.resolve_route()
        next_event(hers)
        client.create_qp(init())
        client.connect(ConnParam(private_data=b"hello"))
        request = next_event(his)
        assert request.private_data[:5] == b"hello"
        server = CMID(request, init())
        server.accept()
        next_event(hers)
        next_event(his)
        talk(client, server)
        client.disconnect()
        next_event(his)
        next_event(hers)
        assert steps == [
            "ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_REQUEST", "ESTABLISHED", "ESTABLISHED", "DISCONNECTED",
            "DISCONNECTED",
        ]  # fmt: skip
        client.resolve_addr("fe80::1234:5678", 1)
        assert next_event(hers).event_type == EventType.RDMA_CM_EVENT_ADDR_ERROR
        for cmid in (client, server, passive):
            cmid.close()


# ---- peers that are killed -------------------------------------------------------------------------------------------


@pytest.fixture
def peer(lab: LocalLab) -> Iterator[Callable[[str, int, str], subprocess.Popen[str]]]:
    """Starts cm_peer.py on the second node."""
    started: list[subprocess.Popen[str]] = []

    def start(step: str, port: int, gid: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "FAUXRDMA_SOCKET": str(lab.socket_path(1)), "FAUXRDMA_HCA": "hca1"}
        arguments = [sys.executable, str(PEER), step, str(port), gid]
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_the_one_who_asks_is_killed(
    contexts: tuple[Context, Context], peer: Callable[..., subprocess.Popen[str]]
) -> None:
    a, _ = contexts
    with listener(a) as passive:
        process = peer("connecting", passive.port, gid_of(a))
        server = passive.get_request(WAIT_S)
        process.kill()
        process.wait()
        began = time.monotonic()
        with pytest.raises(VerbsError) as caught:
            server.accept(timeout_s=WAIT_S)
        assert caught.value.errno in (errno.EINVAL, errno.ECONNREFUSED)
        assert time.monotonic() - began < 10
        server.close()


@pytest.mark.parametrize("step", ["requested", "established"])
def test_the_one_who_is_asked_is_killed(
    contexts: tuple[Context, Context], peer: Callable[..., subprocess.Popen[str]], step: str
) -> None:
    a, b = contexts
    process = peer(step, 0, "::")
    client = CMID(AddrInfo(dst=gid_of(b), dst_service=int(word(process))), init(), context=a)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.connect, None, WAIT_S)
        assert word(process) == step
        began = time.monotonic()
        if step == "established":
            asking.result()
            process.kill()
            client.wait_disconnected(WAIT_S)
        else:
            process.kill()
            with pytest.raises(VerbsError) as caught:
                asking.result()
            assert caught.value.errno == errno.ECONNREFUSED
        assert time.monotonic() - began < 10
    client.close()


def test_a_listener_that_is_killed_frees_its_port(
    contexts: tuple[Context, Context], peer: Callable[..., subprocess.Popen[str]]
) -> None:
    a, b = contexts
    process = peer("listening", 0, "::")
    port = int(word(process))
    taken = CMID(AddrInfo(src_service=port, flags=RAI_PASSIVE), context=b)
    with pytest.raises(VerbsError) as caught:
        taken.listen()
    assert caught.value.errno == errno.EADDRINUSE
    process.kill()
    process.wait()
    client = CMID(AddrInfo(dst=gid_of(b), dst_service=port), init(), context=a)
    with pytest.raises(VerbsError) as caught:
        client.connect(timeout_s=WAIT_S)
    assert caught.value.errno == errno.ECONNREFUSED
    taken.listen()
    client.close()
    taken.close()


# ---- many ------------------------------------------------------------------------------------------------------------


def test_a_hundred_connections_leave_nothing_behind(lab: LocalLab, contexts: tuple[Context, Context]) -> None:
    a, b = contexts
    with listener(b) as passive:
        serving = threading.Thread(target=serve, args=(passive, 110))
        serving.start()
        held: list[int] = []
        for i in range(110):
            client = active(a, passive)
            client.connect(timeout_s=WAIT_S)
            client.disconnect(WAIT_S)
            client.close()
            if i == 9:
                held = [descriptors(pid) for pid in (*lab.daemons, os.getpid())]
        serving.join(WAIT_S)
        now = [descriptors(pid) for pid in (*lab.daemons, os.getpid())]
        # One connection is being served or not when we look: no more than what that takes.
        assert all(after <= before + 12 for before, after in zip(held, now, strict=True)), (held, now)


def serve(passive: CMID, count: int) -> None:
    for _ in range(count):
        with passive.get_request(WAIT_S) as server:
            server.accept(timeout_s=WAIT_S)
            server.wait_disconnected(WAIT_S)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
