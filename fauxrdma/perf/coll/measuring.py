"""One rank's part of the bench: warm up, time, check, verify.

As nccl-tests does it, calls are timed back to back and the mean is over calls, then over ranks (``-a``); with ``-z 1``
each call is timed by itself between barriers, from the last rank's entry to the last one's return. What ranks have to
tell each other about their measurements goes through the rendezvous store, not through what is measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fauxrdma.collectives.bus_bandwidth import bus_factor
from fauxrdma.communicator import Communicator
from fauxrdma.communicator.mesh import Store
from fauxrdma.perf.coll.accuracy import bits_of, error_bound, errors_of, fill_randomly, verifiable
from fauxrdma.perf.coll.expectation import count_wrong, fill
from fauxrdma.perf.coll.operations import Buffers, Case
from fauxrdma.perf.coll.results import Half, MeasuredRow, Verification
from fauxrdma.perf.coll.sweep import AUTO_ITERATIONS, Sweep

__all__ = ["Bench"]


@dataclass(slots=True)
class _Timed:
    """What one rank measured: ns of the run's clock and of wall time for one call, and with ``-z 1`` each call's entry
    and return."""

    mean_ns: float
    wall_ns: float
    spans: list[tuple[int, int]]


class Bench:
    """The bench as rank `communicator.rank` runs it. `store` is shared by the ranks; `on_row` is called on rank 0 with
    each row. Raises what the communicator raises."""

    def __init__(
        self, sweep: Sweep, communicator: Communicator, store: Store, on_row: Callable[[MeasuredRow], None]
    ) -> None:
        self._sweep = sweep
        self._communicator = communicator
        self._rank, self._n = communicator.rank, communicator.world_size
        self._store = store
        self._on_row = on_row
        self._told = 0
        self._seed = 0

    def run(self) -> None:
        """Everything, in order."""
        for cases in self._sweep.groups(self._n):
            for case in dict.fromkeys((max(cases, key=lambda case: case.count), cases[0])):
                self._warm_up(case)
            for case in cases:
                self._row(case)

    def _warm_up(self, case: Case) -> None:
        buffers = case.buffers(self._rank, in_place=False)
        for _ in range(self._sweep.warm_up):
            case.call(self._communicator, buffers)

    def _row(self, case: Case) -> None:
        halves = [self._half(case, in_place) for in_place in (False, True)]
        verification = self._verify(case) if self._sweep.verify and verifiable(case.element, case.reduction) else None
        if self._rank == 0:
            row = MeasuredRow(
                size=case.size,
                count=case.count,
                type=case.element.name,
                redop=case.reduction or "none",
                root=case.root,
                algorithm=self._algorithm(case),
                out_of_place=halves[0],
                in_place=halves[1],
                verify=verification,
            )
            self._on_row(row)

    def _algorithm(self, case: Case) -> str:
        done = (one for one in reversed(self._communicator.statistics.operations) if one.op == case.operation.name)
        last = next(done, None)
        return last.algorithm if last is not None else "direct"

    # Time.

    def _half(self, case: Case, in_place: bool) -> Half:
        buffers = case.buffers(self._rank, in_place)
        fill(case, self._rank, buffers, self._seed)
        began = time.perf_counter()
        case.call(self._communicator, buffers)
        iterations = self._sweep.iterations or self._agree_on_iterations(time.perf_counter() - began)
        timed = (
            self._one_by_one(case, buffers, iterations)
            if self._sweep.blocking
            else self._in_a_row(case, buffers, iterations)
        )
        del buffers
        wrong = self._check(case, in_place)
        everyone = self._gather([timed.mean_ns, timed.wall_ns, timed.spans, wrong])
        checked = self._sweep.check and (case.operation.in_place_checked or not in_place)
        return self._summary(case, everyone, iterations, bool(checked))

    def _in_a_row(self, case: Case, buffers: Buffers, iterations: int) -> _Timed:
        self._communicator.barrier()
        wall, start = time.perf_counter_ns(), self._communicator.fabric_now_ns()
        for _ in range(iterations):
            case.call(self._communicator, buffers)
        end = self._communicator.fabric_now_ns()
        wall_ns = (time.perf_counter_ns() - wall) / iterations
        return _Timed((end - start) / iterations, wall_ns, [])

    def _one_by_one(self, case: Case, buffers: Buffers, iterations: int) -> _Timed:
        spans = []
        wall_ns = 0
        for _ in range(iterations):
            self._communicator.barrier()
            wall, start = time.perf_counter_ns(), self._communicator.fabric_now_ns()
            case.call(self._communicator, buffers)
            spans.append((start, self._communicator.fabric_now_ns()))
            wall_ns += time.perf_counter_ns() - wall
        mean = sum(end - start for start, end in spans) / iterations
        return _Timed(mean, wall_ns / iterations, spans)

    def _agree_on_iterations(self, seconds: float) -> int:
        slowest = max(self._gather(seconds))
        fit = int(self._sweep.budget_s / max(slowest, 1e-9))
        return min(AUTO_ITERATIONS, max(1, fit))

    def _summary(self, case: Case, everyone: list[Any], iterations: int, checked: bool) -> Half:
        means = [mean_ns for mean_ns, _, _, _ in everyone]
        one_by_one = None
        if self._sweep.blocking:
            calls = list(zip(*(spans for _, _, spans, _ in everyone), strict=True))
            one_by_one = [(max(end for _, end in call) - max(start for start, _ in call)) / 1e3 for call in calls]
            time_us = sum(one_by_one) / len(one_by_one)
        else:
            over = {0: means[0], 1: sum(means) / len(means), 2: min(means), 3: max(means)}
            time_us = over[self._sweep.average] / 1e3
        bandwidth = case.size / time_us / 1e3 if time_us > 0 else 0.0
        return Half(
            time_us=time_us,
            wall_us=max(wall_ns for _, wall_ns, _, _ in everyone) / 1e3,
            algbw_gb_per_s=bandwidth,
            busbw_gb_per_s=bandwidth * (bus_factor(case.operation.name, self._n) or 0.0),
            wrong=sum(wrong for _, _, _, wrong in everyone) if checked else None,
            iterations=iterations,
            iterations_us=one_by_one,
        )

    # Results.

    def _check(self, case: Case, in_place: bool) -> int:
        """Elements of this rank that are wrong, over the asked number of fresh runs; it ends with the first that has
        some on any rank."""
        for _ in range(self._sweep.check):
            self._seed += 1
            buffers = case.buffers(self._rank, in_place)
            fill(case, self._rank, buffers, self._seed)
            case.call(self._communicator, buffers)
            wrong = count_wrong(case, self._rank, buffers, self._seed)
            if self._sweep.check > 1 and any(self._gather(wrong)):
                return wrong
            if self._sweep.check == 1:
                return wrong
        return 0

    def _verify(self, case: Case) -> Verification:
        self._seed += 1
        bits = []
        received = np.empty(0)
        for _ in range(2):
            buffers = case.buffers(self._rank, in_place=False)
            fill_randomly(case, self._rank, buffers, self._seed)
            case.call(self._communicator, buffers)
            received = buffers.receive
            bits.append(bits_of(received))
        errors = errors_of(case, self._rank, received, self._seed)
        everyone = self._gather([errors.largest, errors.beyond, bits])
        everywhere = case.operation.name == "all_reduce"
        return Verification(
            error=max(largest for largest, _, _ in everyone),
            bound=error_bound(case.element, case.reduction, self._n),
            beyond=sum(beyond for _, beyond, _ in everyone),
            same_again=all(first == second for _, _, (first, second) in everyone),
            same_everywhere=len({first for _, _, (first, _) in everyone}) == 1 if everywhere else None,
        )

    # Between ranks.

    def _gather(self, value: Any) -> list[Any]:
        """What every rank says, on every rank."""
        self._told += 1
        self._store.set(f"bench/{self._told}/{self._rank}", json.dumps(value).encode())
        return [json.loads(bytes(self._store.get(f"bench/{self._told}/{rank}"))) for rank in range(self._n)]
