"""What the members of pyverbs' CMID do.

Each name is used here, and true; or refused as not offered. `OFFERED` holds functions of a World that return
something true; `NOT_OFFERED` those that must be EOPNOTSUPP.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyverbs import cm_enums as ce
from pyverbs import cmid
from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPCap, QPInitAttr
from pyverbs_world import World

Exercise = Callable[[World], object]
OFFERED: dict[str, Exercise] = {}
NOT_OFFERED: dict[str, Exercise] = {}


def queues() -> QPInitAttr:
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4))


def listener(w: World, port_space: int = ce.RDMA_PS_TCP) -> cmid.CMID:
    info = cmid.AddrInfo(src=w.ctx.query_gid(1, 0).gid, port_space=port_space, flags=ce.RAI_PASSIVE)
    made = cmid.CMID(info, queues())
    made.listen()
    return made


def to(w: World, there: cmid.CMID, port_space: int = ce.RDMA_PS_TCP) -> cmid.AddrInfo:
    return cmid.AddrInfo(dst=w.ctx.query_gid(1, 0).gid, dst_service=there.port, port_space=port_space)


def while_serving(serve: Callable[[], object], play: Callable[[], object]) -> object:
    """What `play` returns, while another thread serves; its failure, too."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            serve()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        return play()
    finally:
        thread.join()
        if failed:
            raise failed[0]


def connected(w: World) -> bool:
    """Messages, a READ and a WRITE over a connection, and parting."""
    with listener(w) as there:
        held: list[Any] = []
        ready, done = threading.Event(), threading.Event()

        def serve() -> None:
            with there.get_request() as peer:
                memory = peer.reg_write(64)
                readable = peer.reg_read(64)
                readable.write("readable", 8)
                inbox = peer.reg_msgs(64)
                peer.post_recv(inbox)
                held.extend((memory, readable, inbox, peer.get_recv_comp))
                peer.accept(cmid.ConnParam())
                ready.set()
                assert peer.get_recv_comp().status == e.IBV_WC_SUCCESS
                assert inbox.read(5, 0) == b"hello"
                assert done.wait(20)
                assert memory.read(5, 0) == b"hello"

        def play() -> bool:
            with cmid.CMID(to(w, there), queues()) as here:
                here.connect(cmid.ConnParam(retry=7))
                assert ready.wait(20)
                message, found = here.reg_msgs(64), here.reg_msgs(64)
                message.write("hello", 5)
                here.post_write(message, held[0].buf, held[0].rkey)
                here.post_read(found, held[1].buf, held[1].rkey)
                here.post_send(message)
                statuses = [here.get_send_comp().status for _ in range(3)]
                state = here.query_qp(e.IBV_QP_STATE)[0].qp_state
                done.set()
                here.disconnect()
                return statuses == [0, 0, 0] and state == e.IBV_QPS_RTS and found.read(8, 0) == b"readable"

        return bool(while_serving(serve, play))


def rejected(w: World) -> bool:
    with listener(w) as there:

        def play() -> bool:
            with cmid.CMID(to(w, there), queues()) as here:
                try:
                    here.connect()
                except PyverbsRDMAError as error:
                    return "Failed to Connect" in str(error) and here.private_data.startswith(b"no")
            return False

        return bool(while_serving(lambda: there.get_request().reject(b"no"), play))


def by_events(w: World) -> bool:
    """Asynchronous: each call says by an event that it is done."""
    address = w.ctx.query_gid(1, 0).gid
    kinds = []
    with cmid.CMEventChannel() as channel:

        def next_event() -> cmid.CMEvent:
            event = cmid.CMEvent(channel)
            kinds.append(event.event_str().removeprefix("RDMA_CM_EVENT_"))
            event.ack_cm_event()
            return event

        with cmid.CMID(channel) as there, cmid.CMID(channel) as here:
            there.bind_addr(cmid.AddrInfo(src=address, flags=ce.RAI_PASSIVE))
            there.listen()
            info = to(w, there)
            here.resolve_addr(info)
            next_event()
            here.resolve_route()
            next_event()
            here.create_qp(queues())
            here.connect(cmid.ConnParam())
            with cmid.CMID(next_event(), queues()) as peer:
                peer.accept(cmid.ConnParam())
                next_event(), next_event()
                here.disconnect()
                next_event(), next_event()
    return kinds == [
        "ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_REQUEST", "ESTABLISHED", "ESTABLISHED", "DISCONNECTED",
        "DISCONNECTED",
    ]  # fmt: skip


def established_by_hand(w: World) -> bool:
    """With a queue pair of the program's own the manager waits to be told that it is ready."""
    with cmid.CMEventChannel() as channel, cmid.CMID(channel) as there, cmid.CMID(channel) as here:
        there.bind_addr(cmid.AddrInfo(src=w.ctx.query_gid(1, 0).gid, flags=ce.RAI_PASSIVE))
        there.listen()
        here.resolve_addr(to(w, there))
        here.resolve_route()
        here.connect(cmid.ConnParam(qp_num=w.a.qp_num))
        kinds = []
        peer = None
        while not kinds or kinds[-1] != ce.RDMA_CM_EVENT_ESTABLISHED:
            event = cmid.CMEvent(channel)
            kinds.append(event.event_type)
            if kinds[-1] == ce.RDMA_CM_EVENT_CONNECT_REQUEST:
                peer = cmid.CMID(event)
                peer.accept(cmid.ConnParam(qp_num=w.b.qp_num))
            elif kinds[-1] == ce.RDMA_CM_EVENT_CONNECT_RESPONSE:
                here.establish()
        assert peer is not None
        peer.close()
        return ce.RDMA_CM_EVENT_CONNECT_RESPONSE in kinds


def datagrams(w: World) -> bool:
    with listener(w, ce.RDMA_PS_UDP) as there:

        def serve() -> None:
            with there.get_request() as peer:
                inbox = peer.reg_msgs(64 + 40)
                peer.post_recv(inbox)
                peer.accept(cmid.ConnParam())
                assert peer.get_recv_comp().status == e.IBV_WC_SUCCESS
                assert inbox.read(8, 40) == b"datagram"

        def play() -> bool:
            with cmid.CMID(to(w, there, ce.RDMA_PS_UDP), queues()) as here:
                here.connect()
                service = cmid.UDParam(here.event)
                message = here.reg_msgs(64)
                message.write("datagram", 8)
                with AH(here.pd, attr=AHAttr.of(service.ah_attr)) as ah:
                    here.post_ud_send(message, ah, service.qp_num)
                    return here.get_send_comp().status == e.IBV_WC_SUCCESS

        return bool(while_serving(serve, play))


def any_cmid(w: World) -> cmid.CMID:
    return cmid.CMID(cmid.AddrInfo(src=w.ctx.query_gid(1, 0).gid, flags=ce.RAI_PASSIVE))


OFFERED |= {
    "cmid.CMID(channel)": by_events,
    "cmid.CMID.listen": connected,
    "cmid.CMID.get_request": connected,
    "cmid.CMID.accept": connected,
    "cmid.CMID.connect": connected,
    "cmid.CMID.disconnect": connected,
    "cmid.CMID.reject": rejected,
    "cmid.CMID.establish": established_by_hand,
    "cmid.CMID.bind_addr": by_events,
    "cmid.CMID.resolve_addr": by_events,
    "cmid.CMID.resolve_route": by_events,
    "cmid.CMID.create_qp": by_events,
    "cmid.CMID.query_qp": connected,
    "cmid.CMID.reg_msgs": connected,
    "cmid.CMID.reg_read": connected,
    "cmid.CMID.reg_write": connected,
    "cmid.CMID.post_recv": connected,
    "cmid.CMID.post_send": connected,
    "cmid.CMID.post_read": connected,
    "cmid.CMID.post_write": connected,
    "cmid.CMID.post_ud_send": datagrams,
    "cmid.CMID.get_send_comp": connected,
    "cmid.CMID.get_recv_comp": connected,
}
NOT_OFFERED |= {
    "cmid.CMID.init_qp_attr": lambda w: any_cmid(w).init_qp_attr(e.IBV_QPS_RTR),
    "cmid.CMID.join_multicast": lambda w: any_cmid(w).join_multicast(),
    "cmid.CMID.leave_multicast": lambda w: any_cmid(w).leave_multicast(),
    "cmid.CMID.set_option": lambda w: any_cmid(w).set_option(0, 0, 0),
    "cmid.CMID.set_local_ece": lambda w: any_cmid(w).set_local_ece(None),
    "cmid.CMID.resolve_addrinfo": lambda w: any_cmid(w).resolve_addrinfo(),
    "cmid.CMID.query_addrinfo": lambda w: any_cmid(w).query_addrinfo(),
}
