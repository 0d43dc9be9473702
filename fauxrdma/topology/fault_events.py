"""What can befall a fabric: the kinds of fault, what each needs to be told, and how it reads.

A fault is a `FaultEvent` (`fauxrdma.wire.fault_messages`), declared in a fabric's file, in one of its own, or injected
at run time. What it does is in `fauxrdma.fabric.faults`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fauxrdma.units import format_ns
from fauxrdma.wire.fault_messages import FaultEvent

__all__ = ["KINDS", "FaultKind", "describe_fault"]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """`target` is the key that says what it befalls: link, switch, hca, gpu or groups; "" for none. `needs` are the
    keys besides that it cannot do without, `may` those that it can; `usage` is how it is injected by the command
    line."""

    name: str
    about: str
    target: str
    needs: tuple[str, ...]
    may: tuple[str, ...]
    usage: str

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys that mean something, at and fault aside."""
        return (*((self.target,) if self.target else ()), *self.needs, *self.may)


KINDS: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("link-down", "A cable carries nothing, either way.", "link", (), ("for",), "n0.hca1 --for 2ms"),
        FaultKind(
            "link-flap", "A cable goes down for a while, again and again.", "link", ("for", "every", "times"), (),
            "n0.hca1 --for 1ms --every 5ms --times 3",
        ),
        FaultKind(
            "degrade", "A cable signals at a lower rate, as with fewer lanes.", "link", ("rate",), ("for",),
            "leaf1->spine1:1 --rate 50Gbps",
        ),
        FaultKind(
            "latency", "A cable takes longer.", "link", ("latency",), ("for",), "n0.hca1 --latency 5us --for 10ms"
        ),
        FaultKind(
            "bit-errors", "A cable gets bits wrong: replayed by the link on InfiniBand, lost packets on Ethernet.",
            "link", ("bit_errors",), ("for",), "n0.hca1 --bit-errors 1e-7",
        ),
        FaultKind(
            "packet-loss", "A cable loses packets.", "link", ("loss",), ("for",), "n0.hca1 --loss 0.5% --for 20ms"
        ),
        FaultKind(
            "pause-storm", "The far end of a cable keeps it paused: nothing is lost, nothing moves.", "link", (),
            ("for", "priority"), "n0.hca1 --priority 3 --for 1ms",
        ),
        FaultKind("switch-down", "A switch has no power: all its cables are down.", "switch", (), ("for",), "leaf1"),
        FaultKind(
            "hca-down", "An HCA fails: device fatal, its queue pairs are flushed.", "hca", (), ("for",), "n0.hca1"
        ),
        FaultKind(
            "slow-gpu", "A GPU's lanes are so many times slower.", "gpu", ("factor",), ("for",), "n0.gpu0 --factor 4"
        ),
        FaultKind(
            "partition", "Groups of nodes or HCAs reach only their own (P_Keys on InfiniBand).", "groups", (), ("for",),
            "n0 n1 --for 5ms",
        ),
        FaultKind(
            "sm-restart", "The subnet manager is away, comes back and sweeps.", "", ("for",), (), "--for 10ms"
        ),
    )
}  # fmt: skip


def describe_fault(event: FaultEvent) -> str:
    """One line about it: ``degrade leaf1->spine1:1 to 50 Gb/s for 2 ms``."""
    told = [event.kind]
    if event.groups:
        told.append(" | ".join(" ".join(group) for group in event.groups))
    elif event.target:
        told.append(event.target)
    if event.rate_bps:
        told.append(f"to {event.rate_bps / 1e9:g} Gb/s")
    if event.latency_ns:
        told.append(f"by {format_ns(event.latency_ns)}")
    if event.bit_errors:
        told.append(f"of {event.bit_errors:g}")
    if event.loss:
        told.append(f"of {event.loss * 100:g} %")
    if event.factor:
        told.append(f"{event.factor:g} times")
    if event.priority >= 0:
        told.append(f"of priority {event.priority}")
    if event.for_ns:
        told.append(f"for {format_ns(event.for_ns)}")
    if event.every_ns:
        told.append(f"every {format_ns(event.every_ns)}, {event.times} times")
    return " ".join(told)
