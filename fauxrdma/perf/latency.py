"""Latency: one request under way. Returned are the times of the posts, from which the figures come."""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.ib.enums import WrOpcode
from fauxrdma.perf.end import RX_DEPTH, End

__all__ = ["measure_latency"]


def measure_latency(end: End, size: int, iterations: int, is_client: bool, barrier: Callable[[], None]) -> list[int]:
    """Fabric times in ns of this side's posts; of a READ or an atomic only the client posts. `barrier` returns once
    both sides have called it: receives are posted and memory is cleared by then."""
    opcode = end.spec.test.opcode
    if opcode == WrOpcode.IBV_WR_RDMA_WRITE:
        return _write(end, size, iterations, is_client, barrier)
    if opcode == WrOpcode.IBV_WR_SEND:
        return _send(end, size, iterations, is_client, barrier)
    barrier()
    return _fetch(end, size, iterations) if is_client else []


def _write(end: End, size: int, iterations: int, is_client: bool, barrier: Callable[[], None]) -> list[int]:
    """Each writes the number of the iteration into the last byte of the other's memory and watches for the other's
    (perftest's run_iter_lat_write). HCAs write in order of address, so the last byte is the last to come."""
    view, qp = end.mr.view, end.qps[0]
    outgoing, incoming = size - 1, end.incoming + size - 1
    view[incoming] = 0
    barrier()
    posted = []
    request = end.request(0, size, signaled=True)
    for number in range(1, iterations + 1):
        expected = number & 0xFF
        if not is_client:
            _watch(end, view, incoming, expected)
        posted.append(end.now_ns)
        view[outgoing] = expected
        qp.post_send(request)
        end.completions(end.cq)
        if is_client:
            _watch(end, view, incoming, expected)
    return posted


def _watch(end: End, view: memoryview, place: int, expected: int) -> None:
    deadline = 0.0
    while view[place] != expected:
        end.yield_time()
        deadline = end.patience(deadline)


def _send(end: End, size: int, iterations: int, is_client: bool, barrier: Callable[[], None]) -> list[int]:
    end.post_receives(0, size, min(RX_DEPTH, iterations))
    to_post = iterations - min(RX_DEPTH, iterations)
    barrier()
    posted = []
    request = end.request(0, size, signaled=True)
    for number in range(iterations):
        if not is_client:
            end.completions(end.recv_cq)
        posted.append(end.now_ns)
        end.qps[0].post_send(request)
        end.completions(end.cq)
        if is_client:
            end.completions(end.recv_cq)
        if number < to_post:
            end.post_receives(0, size, 1)
    return posted


def _fetch(end: End, size: int, iterations: int) -> list[int]:
    posted = []
    request = end.request(0, size, signaled=True)
    for _ in range(iterations):
        posted.append(end.now_ns)
        end.qps[0].post_send(request)
        end.completions(end.cq)
    return posted
