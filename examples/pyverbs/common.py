"""Shared by the programs of this directory: how two sides meet, and what each of them opens.

A program is run without arguments and plays both sides, in two threads; or once with `--listen PORT` and once with
`--connect HOST:PORT`, on one machine or on two.
"""

import argparse
import json
import random
import socket
import threading
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 1
QKEY = 0x11111111
ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
PATIENCE_S = 10


class Link:
    """A socket to the other side, for what has to be agreed on before there are queue pairs: lines of JSON."""

    def __init__(self, sock):
        self.sock = sock
        self.lines = sock.makefile("r")

    def send(self, **values):
        self.sock.sendall(json.dumps(values).encode() + b"\n")

    def receive(self):
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the other side has gone")
        return json.loads(line)

    def swap(self, **values):
        self.send(**values)
        return self.receive()

    def barrier(self):
        self.swap(here=True)

    def close(self):
        self.lines.close()
        self.sock.close()


def run(server, client):
    """Play the side that the command line names, or both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, metavar="PORT")
    parser.add_argument("--connect", metavar="HOST:PORT")
    args = parser.parse_args()
    if args.listen is not None:
        with socket.create_server(("127.0.0.1", args.listen)) as listener:
            server(Link(listener.accept()[0]))
    elif args.connect:
        host, port = args.connect.rsplit(":", 1)
        client(Link(dial(host, int(port))))
    else:
        both(server, client)


def dial(host, port):
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise


def both(server, client):
    ours, theirs = socket.socketpair()
    failures = []

    def serve(sock):
        link = Link(sock)
        try:
            server(link)
        except BaseException as error:
            failures.append(error)
        finally:
            link.close()

    thread = threading.Thread(target=serve, args=(theirs,))
    thread.start()
    link = Link(ours)
    try:
        client(link)
    except BaseException as error:
        failures.append(error)
    finally:
        link.close()
        thread.join()
    if failures:
        raise failures[0]  # what failed first: the other side then finds nobody to talk to


class End:
    """One side: a device, a protection domain, a region, a completion queue, a queue pair."""

    def __init__(self, qp_type=e.IBV_QPT_RC, size=4096, access=ACCESS, srq=None, cap=None):
        self.ctx = open_device()
        port = self.ctx.query_port(PORT)
        self.lid = port.lid
        self.is_ethernet = port.link_layer == e.IBV_LINK_LAYER_ETHERNET
        self.gid_index = find_gid(self.ctx, port)
        self.gid = self.ctx.query_gid(PORT, self.gid_index).gid
        self.pd = PD(self.ctx)
        self.mr = MR(self.pd, size, access)
        self.psn = random.getrandbits(24)
        self.qp_type = qp_type
        self.cq = self.make_cq()
        self.qp = self.make_qp(cap or QPCap(max_send_wr=16, max_recv_wr=16))

    def make_cq(self):
        return CQ(self.ctx, 64, None, None, 0)

    def make_qp(self, cap):
        init = QPInitAttr(qp_type=self.qp_type, scq=self.cq, rcq=self.cq, cap=cap)
        return QP(self.pd, init, self.attributes())

    def attributes(self):
        attr = QPAttr(port_num=PORT)
        attr.qkey = QKEY
        attr.qp_access_flags = ACCESS
        return attr

    def card(self):
        """What the other side has to know."""
        return {
            "lid": self.lid,
            "gid": self.gid,
            "qpn": self.qp.qp_num,
            "psn": self.psn,
            "addr": self.mr.buf,
            "rkey": self.mr.rkey,
        }

    def path_to(self, card):
        route = GlobalRoute(dgid=GID(card["gid"]), sgid_index=self.gid_index, hop_limit=64)
        return AHAttr(dlid=card["lid"], port_num=PORT, is_global=1, gr=route)

    def connect(self, card):
        attr = self.attributes()
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num = card["qpn"]
        attr.rq_psn = card["psn"]
        attr.sq_psn = self.psn
        attr.max_rd_atomic = 1
        attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer = 12
        attr.timeout = 14
        attr.retry_cnt = 7
        attr.rnr_retry = 7
        attr.ah_attr = self.path_to(card)
        self.qp.to_rts(attr)

    def sge(self, length=None, offset=0):
        return SGE(self.mr.buf + offset, self.mr.length - offset if length is None else length, self.mr.lkey)

    def post_recv(self, wr_id=1):
        self.qp.post_recv(RecvWR(wr_id=wr_id, num_sge=1, sg=[self.sge()]))

    def send(self, text, wr_id=2):
        self.mr.write(text, len(text))
        self.qp.post_send(SendWR(wr_id=wr_id, num_sge=1, sg=[self.sge(len(text))]))

    def rdma(self, opcode, remote, length, offset=0, **more):
        wr = SendWR(wr_id=3, opcode=opcode, num_sge=1, sg=[self.sge(length, offset)], **more)
        wr.set_wr_rdma(remote["rkey"], remote["addr"])
        self.qp.post_send(wr)

    def completions(self, count=1, status=e.IBV_WC_SUCCESS):
        """The next `count`, which must have this status."""
        return poll(self.cq, count, status)

    def close(self):
        self.ctx.close()


def poll(cq, count=1, status=e.IBV_WC_SUCCESS):
    end = time.monotonic() + PATIENCE_S
    found = []
    while len(found) < count:
        found += cq.poll(count - len(found))[1]
        if time.monotonic() > end:
            raise TimeoutError(f"{len(found)} of {count} completions")
    for wc in found:
        if wc.status != status:
            raise RuntimeError(f"unexpected completion:\n{wc}")
    return found


def open_device():
    """The first device whose port is active."""
    for device in get_device_list():
        ctx = Context(name=device.name.decode())
        if ctx.query_port(PORT).state == e.IBV_PORT_ACTIVE:
            return ctx
        ctx.close()
    raise SystemExit("no device with an active port")


def find_gid(ctx, port):
    """The last GID of the table that is one: on RoCE, of the newest version."""
    gids = [ctx.query_gid(PORT, index).gid for index in range(port.gid_tbl_len)]
    return max(index for index, gid in enumerate(gids) if gid[-19:] != "0000:0000:0000:0000")
