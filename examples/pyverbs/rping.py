"""Pings as rping: the client advertises a buffer, the server READs it, WRITEs it back elsewhere, and says so."""

import struct
from collections import Counter

import pyverbs.enums as e
from common import End, run
from pyverbs.mr import MR
from pyverbs.wr import SGE, RecvWR, SendWR

PINGS = 5
SIZE = 64
FIRST, LAST = 65, 122  # A to z
ADVERTISEMENT = struct.Struct("!QII")  # address, key, bytes; as rping's struct rping_rdma_info
SOURCE, SINK = 0, 1024  # in the client's region; the server uses the first


class Pinger(End):
    """An end with two small buffers for messages: what is sent, what is received."""

    def __init__(self):
        super().__init__()
        self.messages = MR(self.pd, 2 * ADVERTISEMENT.size, e.IBV_ACCESS_LOCAL_WRITE)
        self.completed = Counter()

    def message(self, at):
        return SGE(self.messages.buf + at, ADVERTISEMENT.size, self.messages.lkey)

    def listen(self):
        self.qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[self.message(ADVERTISEMENT.size)]))

    def tell(self, address=0, key=0, size=0):
        """Send an advertisement, or without one the go-ahead."""
        self.messages.write(ADVERTISEMENT.pack(address, key, size), ADVERTISEMENT.size)
        self.qp.post_send(SendWR(wr_id=2, num_sge=1, sg=[self.message(0)]))

    def wait(self, *opcodes):
        """Until these have completed; a message may come before the completion of what it answers."""
        wanted = Counter(opcodes)
        while wanted - self.completed:
            self.completed[self.completions()[0].opcode] += 1
        self.completed -= wanted

    def hear(self):
        """Wait for a message: what it says."""
        self.wait(e.IBV_WC_RECV)
        said = ADVERTISEMENT.unpack(self.messages.read(ADVERTISEMENT.size, ADVERTISEMENT.size))
        self.listen()
        return said


def ping(number):
    """`rdma-ping-0: ABC...`, with other letters each time."""
    text = f"rdma-ping-{number}: "
    letters = (chr(FIRST + (number + i) % (LAST - FIRST + 1)) for i in range(SIZE - len(text)))
    return text + "".join(letters)


def server(link):
    end = Pinger()
    end.listen()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for number in range(PINGS):
        address, key, size = end.hear()
        end.rdma(e.IBV_WR_RDMA_READ, {"rkey": key, "addr": address}, size)
        end.wait(e.IBV_WC_RDMA_READ)
        assert end.mr.read(size, 0) == ping(number).encode()
        end.tell()  # it has been read
        end.wait(e.IBV_WC_SEND)
        address, key, size = end.hear()
        end.rdma(e.IBV_WR_RDMA_WRITE, {"rkey": key, "addr": address}, size)
        end.tell()  # it is there; a SEND does not overtake the WRITE before it
        end.wait(e.IBV_WC_RDMA_WRITE, e.IBV_WC_SEND)
    link.barrier()
    end.close()


def client(link):
    end = Pinger()
    end.listen()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for number in range(PINGS):
        text = ping(number)
        end.mr.write(text, SIZE, SOURCE)
        for place in (SOURCE, SINK):
            end.tell(end.mr.buf + place, end.mr.rkey, SIZE)
            end.wait(e.IBV_WC_SEND)
            end.hear()
        assert end.mr.read(SIZE, SINK) == text.encode()
        print(f"ping data: {text}")
    link.barrier()
    end.close()
    print(f"rping: {PINGS} pings of {SIZE} bytes")


if __name__ == "__main__":
    run(server, client)
