"""What can befall a fabric: the kinds of fault, what each needs to be told, and how it reads.

A fault is a `FaultEvent` (`fauxrdma.wire.fault_messages`), declared in a fabric's file, in one of its own, or injected
at run time. What it does is in `fauxrdma.fabric.faults`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fauxrdma.units import format_ns
from fauxrdma.wire.fault_messages import FaultEvent

__all__ = ["KINDS", "FaultKind", "describe_fault", "misfit"]


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
            "'leaf1 -- spine1:1' --rate 50Gbps",
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


_SET: Mapping[str, Callable[[FaultEvent], bool]] = {
    "rate": lambda event: event.rate_bps > 0,
    "latency": lambda event: event.latency_ns > 0,
    "loss": lambda event: event.loss > 0,
    "bit_errors": lambda event: event.bit_errors > 0,
    "factor": lambda event: event.factor >= 1,
    "priority": lambda event: event.priority >= 0,
    "for": lambda event: event.for_ns > 0,
    "every": lambda event: event.every_ns > 0,
    "times": lambda event: event.times > 1,
}  # fmt: skip
"""Whether an event has what a key of the file says."""


def misfit(event: FaultEvent) -> tuple[str, str] | None:
    """The first key that a fault lacks or has too many, or whose value makes no sense, and what is wrong with it."""
    kind = KINDS[event.kind]
    for key, is_set in _SET.items():
        if is_set(event) and key not in kind.keys:
            known = ", ".join(kind.keys) or "nothing else"
            return key, f"{kind.name} has no {key!r}: it is told {known}"
        if key in kind.needs and key != "times" and not is_set(event):
            return key, f"{kind.name} needs {key!r}, as in `fauxrdma fault inject {kind.name} {kind.usage}`"
    if kind.target == "groups" and not event.groups:
        return "groups", f"{kind.name} needs 'groups': those that are to be apart, as [[n0], [n1]]"
    if kind.target not in ("", "groups") and not event.target:
        return kind.target, f"{kind.name} needs {kind.target!r}: which it befalls"
    if not (event.loss <= 1 and event.bit_errors <= 1 and event.times >= 1):
        return "loss", f"{kind.name}: loss and bit errors are parts of one, and it happens once at least"
    if 0 < event.every_ns <= event.for_ns:
        every, lasts = format_ns(event.every_ns), format_ns(event.for_ns)
        return "every", f"{kind.name} every {every} cannot last {lasts}: it would not end before it begins again"
    return None


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
