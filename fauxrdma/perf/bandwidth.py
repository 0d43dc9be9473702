"""Bandwidth: as many requests under way as the queues hold."""

from __future__ import annotations

from collections.abc import Callable

from fauxrdma.ib.work import SendWR
from fauxrdma.perf.end import RX_DEPTH, End
from fauxrdma.perf.figures import BandwidthFigures, bandwidth_figures

__all__ = ["measure_bandwidth"]


class _Sending:
    """What one side has posted on each queue pair, and what of it has completed."""

    def __init__(self, end: End, size: int, iterations: int) -> None:
        qps = len(end.qps)
        self.end = end
        self.iterations = iterations
        self.posted_ns: list[int] = []
        self.completed: list[tuple[int, int]] = []  # (messages, by this time)
        self._total_done = 0
        self._posted, self._done = [0] * qps, [0] * qps
        self._step = end.spec.moderation(size)
        self._plain = [end.request(qp, size, signaled=False) for qp in range(qps)]
        self._signaled = [end.request(qp, size, signaled=True) for qp in range(qps)]

    @property
    def finished(self) -> bool:
        """Whether everything has completed."""
        return self._total_done == self.iterations * len(self._done)

    def post(self) -> None:
        """Fill every queue."""
        for number, qp in enumerate(self.end.qps):
            while (count := self._room(number)) > 0:
                first = self._posted[number]
                wrs = [self._request(number, index) for index in range(first, first + count)]
                self.posted_ns += [self.end.now_ns] * count
                qp.post_send(*wrs)
                self._posted[number] += count

    def _room(self, qp: int) -> int:
        """How many to post now: up to the next signaled one, if that fits."""
        count = min(self._step - self._posted[qp] % self._step, self.iterations - self._posted[qp])
        return count if self._posted[qp] - self._done[qp] + count <= self.end.spec.tx_depth else 0

    def _request(self, qp: int, index: int) -> SendWR:
        last = index + 1 == self.iterations
        return (self._signaled if last or (index + 1) % self._step == 0 else self._plain)[qp]

    def reap(self, wait: bool) -> None:
        """Take completions. A signaled one stands for those before it on its queue pair."""
        for wc in self.end.completions(self.end.cq, wait):
            count = min(self._step, self.iterations - self._done[wc.wr_id])
            self._done[wc.wr_id] += count
            self._total_done += count
            self.completed.append((self._total_done, wc.timestamp_ns))


def measure_bandwidth(
    end: End, size: int, iterations: int, is_client: bool, barrier: Callable[[], None]
) -> BandwidthFigures | None:
    """Figures of what this side has sent, all queue pairs together; None if it has only served. Times of completions
    are the completions' own, in fabric time."""
    spec = end.spec
    receiving = spec.test.receives and (spec.bidirectional or not is_client)
    posted = min(RX_DEPTH, iterations)
    if receiving:
        for qp in range(spec.qps):
            end.post_receives(qp, size, posted)
    barrier()
    sending = _Sending(end, size, iterations) if is_client or spec.bidirectional else None
    to_receive = iterations * spec.qps if receiving else 0
    to_post = [iterations - posted] * spec.qps
    while (sending is not None and not sending.finished) or to_receive:
        if sending is not None and not sending.finished:
            sending.post()
            sending.reap(wait=not to_receive)
        if to_receive:
            waits = sending is None or sending.finished
            arrived = end.completions(end.recv_cq, waits)
            to_receive -= len(arrived)
            _replenish(end, size, [wc.wr_id for wc in arrived], to_post)
    return None if sending is None else bandwidth_figures(sending.posted_ns, sending.completed, size)


def _replenish(end: End, size: int, used: list[int], to_post: list[int]) -> None:
    """As many receives on each queue pair as were used, while messages are to come."""
    for qp in set(used):
        count = min(used.count(qp), to_post[qp])
        if count:
            end.post_receives(qp, size, count)
            to_post[qp] -= count
