"""Exercises of pyverbs.cmid: both ends in one program, on one device."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyverbs import cmid, librdmacm_enums
from pyverbs import enums as e
from pyverbs import qp as q
from pyverbs_world import World

PASSIVE = librdmacm_enums.RAI_PASSIVE
TCP, UDP = librdmacm_enums.RDMA_PS_TCP, librdmacm_enums.RDMA_PS_UDP


def _init() -> q.QPInitAttr:
    return q.QPInitAttr(cap=q.QPCap(4, 4))


def _gid(w: World) -> str:
    return str(w.ctx.query_gid(1, 0).gid)


def _serve(listener: cmid.CMID, then: Callable[[cmid.CMID], None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: then(listener.get_request()))
    thread.start()
    return thread


def connected_by_address(w: World) -> bool:
    with cmid.CMID(cmid.AddrInfo(port_space=TCP, flags=PASSIVE), _init()) as listener:
        listener.listen()
        served: list[bytes] = []

        def serve(peer: cmid.CMID) -> None:
            with peer:
                region = peer.reg_msgs(16)
                peer.post_recv(region)
                peer.accept(cmid.ConnParam())
                peer.get_recv_comp()
                served.append(region.read(5, 0))
                peer.wait_disconnected()

        thread = _serve(listener, serve)
        to = cmid.AddrInfo(dst=_gid(w), dst_service=str(listener.port), port_space=TCP)
        with cmid.CMID(to, _init()) as client:
            param = cmid.ConnParam(retry=3)
            param.set_private_data(b"who")
            client.connect(param)
            region = client.reg_msgs(16)
            region.write("hello", 5)
            client.post_send(region)
            sent = client.get_send_comp()
            client.disconnect()
        thread.join()
        return served == [b"hello"] and sent is not None and sent.status == e.IBV_WC_SUCCESS


def connected_by_events(w: World) -> bool:
    with cmid.CMEventChannel() as channel:
        listener, client = cmid.CMID(channel), cmid.CMID(channel)
        listener.bind_addr()
        listener.listen()
        client.resolve_addr(_gid(w), listener.port)
        kinds = [cmid.CMEvent(channel).event_type]
        client.resolve_route()
        kinds.append(cmid.CMEvent(channel).event_type)
        client.create_qp(_init())
        client.connect(cmid.ConnParam())
        request = cmid.CMEvent(channel)
        kinds.append(request.event_type)
        server = cmid.CMID(request, _init())
        server.accept(cmid.ConnParam())
        kinds += [cmid.CMEvent(channel).event_type for _ in range(2)]
        for each in (client, server, listener):
            each.close()
        return kinds == [0, 2, 4, 9, 9]


def datagram_service(w: World) -> bool:
    with cmid.CMID(cmid.AddrInfo(port_space=UDP, flags=PASSIVE), _init()) as listener:
        listener.listen()
        numbers: list[int] = []

        def serve(peer: cmid.CMID) -> None:
            with peer:
                peer.accept(cmid.ConnParam())
                numbers.append(peer.qp.qp_num)

        thread = _serve(listener, serve)
        to = cmid.AddrInfo(dst=_gid(w), dst_service=listener.port, port_space=UDP)
        with cmid.CMID(to, _init(), port_space=UDP) as client:
            client.connect(cmid.ConnParam())
            thread.join()
            return numbers == [cmid.UDParam(client.event).qp_num]
