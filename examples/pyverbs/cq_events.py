"""Sleeping until there is a completion: a completion channel, its descriptor, and solicited events."""

import select

import pyverbs.enums as e
from common import PATIENCE_S, End, run
from pyverbs.cq import CQ, CompChannel
from pyverbs.wr import SendWR

MESSAGES = 4


class EventEnd(End):
    """An end whose completion queue has a channel."""

    def make_cq(self):
        self.channel = CompChannel(self.ctx)
        return CQ(self.ctx, 64, None, self.channel, 0)

    def event(self):
        """Wait until the channel announces a completion."""
        assert select.select([self.channel.fd], [], [], PATIENCE_S)[0]
        self.channel.get_cq_event(self.cq)
        self.cq.ack_events(1)


def server(link):
    end = EventEnd()
    end.connect(link.swap(**end.card()))
    for i in range(MESSAGES):
        end.post_recv()
        end.cq.req_notify(solicited_only=i == MESSAGES - 1)
        link.send(armed=i)
        end.event()
        assert end.completions()[0].opcode == e.IBV_WC_RECV
    link.barrier()
    end.close()


def client(link):
    end = EventEnd()
    end.connect(link.swap(**end.card()))
    for i in range(MESSAGES):
        assert link.receive()["armed"] == i
        last = i == MESSAGES - 1
        flags = e.IBV_SEND_SIGNALED | (e.IBV_SEND_SOLICITED if last else 0)
        end.cq.req_notify()
        end.qp.post_send(SendWR(wr_id=i, num_sge=1, sg=[end.sge(8)], send_flags=flags))
        end.event()
        assert end.completions()[0].wr_id == i
    link.barrier()
    end.close()
    print(f"cq_events: {MESSAGES} messages, an event at each end for each")


if __name__ == "__main__":
    run(server, client)
