"""What can be set about buffers, flow control and marking. Sizes in bytes of payload, times in ns of fabric time.

Defaults are REFERENCE C's; where it gives none, the docstring says where the figure is from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.queues.dcqcn import PAPER, DcqcnParameters
from fauxrdma.fabric.transport import CongestionControl, FlowControl, LossRecovery, TransportProfile
from fauxrdma.units import Rate

__all__ = ["PAPER_ECN", "BufferSettings", "EcnSettings", "MarkAt", "PfcSettings", "QueueSettings"]


class MarkAt(StrEnum):
    """When a packet is marked: as it joins the queue, or as it leaves it (Fast ECN: the mark is younger by the
    queueing delay)."""

    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"


@dataclass(frozen=True, slots=True)
class BufferSettings:
    """`shared_bytes`: the packet memory of a switch, None for 16 MB at 50 Gb/s and in proportion to its fastest cable.
    `lossy_alpha`: a queue of a lossy fabric may have that part of what is free (Choudhury and Hahne's dynamic
    thresholds; 1 as switches ship it). `vl_bytes`: what one virtual lane of a port holds (credits), None for what its
    cable carries in a round trip and 2 us, at least 64 KiB (an assumption: vendors do not publish it). `hca_bytes`:
    what an Ethernet HCA holds of what came in, per 100 Gb/s (mlnx_qos shows 262,016 for a ConnectX-5)."""

    shared_bytes: float | None = None
    hca_bytes: float = 262_016.0
    reserved_bytes: float = 4096.0
    lossy_alpha: float = 1.0
    vl_bytes: float | None = None

    def of_switch(self, fastest: Rate) -> float:
        """The packet memory of a switch whose fastest cable is `fastest`."""
        return self.shared_bytes if self.shared_bytes is not None else 16e6 * fastest.bits_per_s / 50e9

    def of_hca(self, cable: Rate) -> float:
        """The receive buffer of an HCA with that cable."""
        return self.hca_bytes * cable.bits_per_s / 100e9

    def of_lane(self, rate: float, round_trip_ns: float, *, cable: bool = True) -> float:
        """The buffer of a virtual lane whose cable carries `rate` bytes per ns; of PCIe and NVLink if not `cable`."""
        fitting = max(65536.0, rate * (round_trip_ns + 2000.0))
        return fitting if self.vl_bytes is None or not cable else self.vl_bytes


@dataclass(frozen=True, slots=True)
class PfcSettings:
    """IEEE 802.1Qbb. `alpha`: a port and priority may fill that part of what is free in the switch before it pauses;
    `xoff_bytes`: it may fill so much whatever the others have, as in switches with fixed thresholds. `gap_bytes`: XON
    is so far below XOFF. `quanta`: how long one PAUSE lasts, in 512 bit times. `response_ns`: from the decision to
    pause until the other end obeys, on top of the cable; `headroom_delays`: room kept for what arrives meanwhile, in
    multiples of rate times one-way delay. `xon_loss`: the part of the XON frames that is lost."""

    alpha: float = 1 / 8
    xoff_bytes: float | None = None
    gap_bytes: float = 3000.0
    quanta: int = 65535
    response_ns: float = 500.0
    headroom_delays: float = 3.0
    xon_loss: float = 0.0


@dataclass(frozen=True, slots=True)
class EcnSettings:
    """Marking probability: 0 up to `k_min`, linear to `p_max` at `k_max`, 1 above. None: 100 KB, 400 KB and 0.2 at 100
    Gb/s and in proportion to the rate of the port, which gives the 400 KB and 1600 KB in use at 400."""

    k_min: float | None = None
    k_max: float | None = None
    p_max: float = 0.2
    mark_at: MarkAt = MarkAt.ENQUEUE

    def thresholds(self, rate: Rate) -> tuple[float, float]:
        """K_min and K_max of a port of that rate, in bytes."""
        scale = rate.bits_per_s / 100e9
        return (
            100e3 * scale if self.k_min is None else self.k_min,
            400e3 * scale if self.k_max is None else self.k_max,
        )


PAPER_ECN = EcnSettings(k_min=5e3, k_max=200e3, p_max=0.01)
"""Zhu et al., SIGCOMM 2015, for 40 Gb/s."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """One fabric's. `step_ns`: how far time goes in a step. `ets_weights`: of the priorities, 1 where none is given.
    `retry_timeout_ns`: after so long without progress a go-back-N sender starts again by itself. `deadlock_ns`: how
    long nothing has to move around a circle for it to be one."""

    flow_control: FlowControl = FlowControl.CREDITS
    congestion_control: CongestionControl = CongestionControl.NONE
    loss_recovery: LossRecovery = LossRecovery.LINK_RETRY
    ecn: EcnSettings | None = None
    step_ns: float = 500.0
    buffers: BufferSettings = BufferSettings()
    pfc: PfcSettings = PfcSettings()
    dcqcn: DcqcnParameters = PAPER
    ets_weights: Mapping[int, float] = field(default_factory=dict)
    retry_timeout_ns: float = 500_000.0
    deadlock_ns: float = 200_000.0

    def __post_init__(self) -> None:
        if self.step_ns <= 0:
            raise ConfigError(f"a step of {self.step_ns:g} ns is not a step: 500 to 1000 is usual")
        for priority, weight in self.ets_weights.items():
            if weight <= 0:
                raise ConfigError(f"priority {priority} has the ETS weight {weight:g}: it must be more than zero")

    @classmethod
    def of(
        cls,
        transport: TransportProfile,
        flow_control: FlowControl | None = None,
        congestion_control: CongestionControl | None = None,
    ) -> QueueSettings:
        """What that transport does, with the usual figures, or does with another flow or congestion control. Raises
        ConfigError for one that it cannot have."""
        flow = transport.flow_control if flow_control is None else flow_control
        congestion = transport.congestion_control if congestion_control is None else congestion_control
        choices = {FlowControl.PFC, FlowControl.NONE} if transport.ethernet else {FlowControl.CREDITS}
        if flow not in choices:
            raise ConfigError(f"{transport.name} has no flow control {flow}: it can have {_words(choices)}")
        possible = {CongestionControl.NONE, transport.congestion_control}
        if congestion not in possible:
            raise ConfigError(
                f"{transport.name} has no congestion control {congestion}: it can have {_words(possible)}"
            )
        marks = transport.ecn and congestion is not CongestionControl.NONE
        return cls(
            flow_control=flow,
            congestion_control=congestion,
            loss_recovery=transport.loss_recovery,
            ecn=EcnSettings() if marks else None,
        )


def _words(choices: set[FlowControl] | set[CongestionControl]) -> str:
    return " or ".join(sorted(choices))
