"""Ping-pong of SENDs over a reliable connection (RC), as ibv_rc_pingpong."""

from common import End, run

ITERATIONS = 10


def server(link):
    end = End()
    end.post_recv()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for i in range(ITERATIONS):
        end.completions()
        text = end.mr.read(16, 0)
        assert text == f"ping {i}".ljust(16).encode(), text
        end.post_recv()
        end.send(f"pong {i}".ljust(16))
        end.completions()
    link.barrier()
    end.close()


def client(link):
    end = End()
    end.connect(link.swap(**end.card()))
    link.barrier()
    for i in range(ITERATIONS):
        end.post_recv()
        end.send(f"ping {i}".ljust(16))
        end.completions(2)
        text = end.mr.read(16, 0)
        assert text == f"pong {i}".ljust(16).encode(), text
    link.barrier()
    end.close()
    print(f"rc_pingpong: {ITERATIONS} round trips")


if __name__ == "__main__":
    run(server, client)
