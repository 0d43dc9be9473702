"""DCQCN, the senders' side: rates that are cut on congestion notifications (CNPs) and grow back by time and bytes.

On a CNP (Zhu et al., SIGCOMM 2015, equation 1): `R_T = R_C; R_C = R_C (1 - a/2); a = (1-g) a + g`, and all counters
start again. Without one for the length of the alpha timer: `a = (1-g) a`. Every `timer_ns`, and every `byte_counter`
bytes sent, is an increase event: fast recovery while both kinds have had at most F, additive (`R_T += R_AI`) when one
has had more, hyper (`R_T += R_HAI`) when both have; then `R_C = (R_T + R_C) / 2`.

**Order.** The paper's text cuts with the alpha from before the CNP and updates it afterwards; its reference code and
some firmware update first. `update_first` chooses. With alpha still at its start of 1 both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["FIRMWARE", "HPCC", "PAPER", "PARAMETER_SETS", "Dcqcn", "DcqcnParameters"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DcqcnParameters:
    """Times in ns, rates in bits/s. `cnp_interval_ns`: a receiver sends at most one CNP per flow in it.
    `cut_interval_ns`: a sender cuts at most once in it. `max_cut`: a cut takes at most that part of the rate.
    `clamp_always`: every cut lowers the target rate to the current one; otherwise only the first after an increase by
    time does (ConnectX: clamp_tgt_rate, clamp_tgt_rate_after_time_inc)."""

    g: float = 1 / 256
    initial_alpha: float = 1.0
    cnp_interval_ns: float = 50_000.0
    alpha_timer_ns: float = 55_000.0
    timer_ns: float = 55_000.0
    byte_counter: float = 10e6
    fast_recovery: int = 5
    additive_bps: float = 40e6
    hyper_bps: float = 400e6
    min_rate_bps: float = 40e6
    cut_interval_ns: float = 0.0
    max_cut: float = 0.5
    clamp_always: bool = True
    update_first: bool = False


PAPER = DcqcnParameters()
"""Zhu et al., SIGCOMM 2015, with its R_AI of 40 Mb/s; it gives no figure for R_HAI, ten times R_AI is an assumption."""

FIRMWARE = DcqcnParameters(
    g=5 / 1024,
    initial_alpha=1023 / 1024,
    cnp_interval_ns=4_000.0,
    alpha_timer_ns=1_000.0,
    timer_ns=300_000.0,
    byte_counter=32767 * 64,
    fast_recovery=1,
    additive_bps=5e6,
    hyper_bps=50e6,
    min_rate_bps=1e6,
    cut_interval_ns=4_000.0,
    clamp_always=False,
)
"""ConnectX-4 and later as shipped (NVIDIA, "DCQCN CC parameters"; mlxconfig of ConnectX-5): DCE_TCP_G 1019 of 1024,
DCE_TCP_RTT 1, INITIAL_ALPHA_VALUE 1023, RPG_TIME_RESET 300, RPG_BYTE_RESET 32767 (taken as units of 64 bytes),
RPG_THRESHOLD 1, RPG_AI_RATE 5, RPG_HAI_RATE 50, RPG_MIN_DEC_FAC 50, RPG_MIN_RATE 1, RATE_REDUCE_MONITOR_PERIOD 4,
MIN_TIME_BETWEEN_CNPS 4, CLAMP_TGT_RATE 0, CLAMP_TGT_RATE_AFTER_TIME_INC 1."""

HPCC = DcqcnParameters(
    cnp_interval_ns=4_000.0,
    alpha_timer_ns=1_000.0,
    timer_ns=300_000.0,
    byte_counter=float("inf"),
    fast_recovery=1,
    additive_bps=50e6,
    hyper_bps=100e6,
    min_rate_bps=100e6,
    cut_interval_ns=4_000.0,
    clamp_always=False,
    update_first=True,
)
"""The DCQCN that HPCC (Li et al., SIGCOMM 2019) was compared with, by its ns-3 simulation: timers of 1, 4 and 300 us,
R_AI 50 Mb/s, R_HAI 100 Mb/s, at least 100 Mb/s."""

PARAMETER_SETS: Mapping[str, DcqcnParameters] = {"paper": PAPER, "firmware": FIRMWARE, "hpcc": HPCC}


class Dcqcn:
    """The rate limiters of F flows. `line`: what each could send at most, in bytes per ns. All arrays are (F,)."""

    def __init__(self, parameters: DcqcnParameters, line: Floats) -> None:
        count = len(line)
        self.parameters = parameters
        self._line = line
        self.rate: Floats = line.copy()
        self.target: Floats = line.copy()
        self.alpha: Floats = np.full(count, parameters.initial_alpha)
        self._floor = np.minimum(parameters.min_rate_bps / 8e9, line)
        never = np.full(count, np.inf)  # timers run from a flow's first CNP on
        self._alpha_due: Floats = never.copy()
        self._timer_due: Floats = never.copy()
        self._bytes: Floats = np.zeros(count)
        self._cut_at: Floats = np.full(count, -np.inf)
        self._by_time: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._by_bytes: NDArray[np.int64] = np.zeros(count, dtype=np.int64)
        self._grew_by_time: Flags = np.ones(count, dtype=bool)
        self._next_due = np.inf

    def limits(self, queued: Floats | None, step_ns: float) -> Floats:
        """Bytes each flow may send within a step."""
        return self.rate * step_ns

    def step(self, now_ns: float, sent: Floats, acked: Floats, notified: Flags | None, lost: Flags | None) -> None:
        """A step is over: `sent` bytes, `notified`: a CNP has come. Losses are none of DCQCN's business."""
        self._bytes += sent
        if notified is not None:
            self._notify(now_ns, np.flatnonzero(notified))
        if now_ns >= self._next_due:
            self._run_timers(now_ns)
        full = self._bytes >= self.parameters.byte_counter
        if full.any():
            self._bytes[full] -= self.parameters.byte_counter
            self._by_bytes[full] += 1
            self._increase(np.flatnonzero(full))

    def inherit(self, flow: int, other: int) -> None:
        """`flow` goes on where `other`, of the same queue pair, is."""
        for state in (self.rate, self.target, self.alpha, self._alpha_due, self._timer_due, self._bytes, self._cut_at):
            state[flow] = state[other]
        for counter in (self._by_time, self._by_bytes):
            counter[flow] = counter[other]
        self._grew_by_time[flow] = self._grew_by_time[other]

    def _notify(self, now_ns: float, flows: NDArray[np.intp]) -> None:
        p = self.parameters
        updated = (1 - p.g) * self.alpha[flows] + p.g
        alpha = updated if p.update_first else self.alpha[flows]
        self.alpha[flows] = updated
        self._alpha_due[flows] = now_ns + p.alpha_timer_ns
        self._next_due = min(self._next_due, now_ns + min(p.alpha_timer_ns, p.timer_ns))
        may = now_ns - self._cut_at[flows] >= p.cut_interval_ns
        flows, alpha = flows[may], alpha[may]
        clamp = flows if p.clamp_always else flows[self._grew_by_time[flows]]
        self.target[clamp] = self.rate[clamp]
        self._grew_by_time[flows] = False
        self.rate[flows] = np.maximum(self.rate[flows] * np.maximum(1 - alpha / 2, 1 - p.max_cut), self._floor[flows])
        self._cut_at[flows] = now_ns
        self._timer_due[flows] = now_ns + p.timer_ns
        self._bytes[flows] = 0.0
        self._by_time[flows] = 0
        self._by_bytes[flows] = 0

    def _run_timers(self, now_ns: float) -> None:
        p = self.parameters
        due = self._alpha_due <= now_ns
        self.alpha[due] *= 1 - p.g
        self._alpha_due[due] += p.alpha_timer_ns
        due = self._timer_due <= now_ns
        if due.any():
            self._timer_due[due] += p.timer_ns
            self._by_time[due] += 1
            self._grew_by_time[due] = True
            self._increase(np.flatnonzero(due))
        self._next_due = float(min(self._alpha_due.min(), self._timer_due.min()))

    def _increase(self, flows: NDArray[np.intp]) -> None:
        p = self.parameters
        by_time = self._by_time[flows] > p.fast_recovery
        by_bytes = self._by_bytes[flows] > p.fast_recovery
        gain = np.where(by_time & by_bytes, p.hyper_bps, np.where(by_time | by_bytes, p.additive_bps, 0.0)) / 8e9
        self.target[flows] = np.minimum(self.target[flows] + gain, self._line[flows])
        self.rate[flows] = (self.target[flows] + self.rate[flows]) / 2
