"""Faults of a fabric: when each begins and ends (`timeline`), what those that are active do to links, HCAs and the
manager (`effects`), and how a link loses or damages packets (`hazards`). Pure: `now` is fabric time in ns, chance is a
seeded generator."""

from fauxrdma.fabric.faults.effects import Effects
from fauxrdma.fabric.faults.hazards import Hazards
from fauxrdma.fabric.faults.timeline import FaultTimeline

__all__ = ["Effects", "FaultTimeline", "Hazards"]
