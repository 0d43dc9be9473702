"""Ping-pong of SENDs over a reliable connection (RC); prints what ibv_rc_pingpong prints."""

import time

from common import End, run

ITERATIONS = 20
SIZE = 4096


def server(link):
    end = End(size=SIZE)
    end.post_recv()
    end.connect(introduced(end, link))
    link.barrier()
    for i in range(ITERATIONS):
        end.completions()
        check(end, f"ping {i}")
        end.post_recv()
        send(end, f"pong {i}")
        end.completions()
    link.barrier()
    end.close()


def client(link):
    end = End(size=SIZE)
    end.connect(introduced(end, link))
    link.barrier()
    start = time.perf_counter()
    for i in range(ITERATIONS):
        end.post_recv()
        send(end, f"ping {i}")
        end.completions(2)
        check(end, f"pong {i}")
    seconds = time.perf_counter() - start
    link.barrier()
    end.close()
    total = 2 * SIZE * ITERATIONS
    print(f"{total} bytes in {seconds:.2f} seconds = {total * 8 / seconds / 1e6:.2f} Mbit/sec")
    print(f"{ITERATIONS} iters in {seconds:.2f} seconds = {seconds / ITERATIONS * 1e6:.2f} usec/iter")
    print(f"rc_pingpong: {ITERATIONS} round trips")


def introduced(end, link):
    """The other side's card, once both have been shown."""
    cards = {"local": end.card()}
    cards["remote"] = link.swap(**cards["local"])
    for name, card in cards.items():
        print(
            f"  {name + ' address:':<16} LID 0x{card['lid']:04x}, QPN 0x{card['qpn']:06x}, PSN 0x{card['psn']:06x}, "
            f"GID {card['gid']}"
        )
    return cards["remote"]


def send(end, text):
    end.send(text.ljust(SIZE))


def check(end, text):
    found = end.mr.read(len(text), 0).decode()
    assert found == text, (found, text)


if __name__ == "__main__":
    run(server, client)
