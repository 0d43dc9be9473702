"""The fabrics that come with fauxrdma: those of REFERENCE D and others of the field, at any size that fits.

A preset is chosen by ``name[:speed][,key=value...]``: ``seed-rail8``, ``fat-tree:ndr,radix=40,oversubscription=2``. The
options of each are the fields of its class; those of the hosts (`HostOptions`) all have.
"""

from __future__ import annotations

from fauxrdma.topology.presets.base import HostOptions, Preset
from fauxrdma.topology.presets.clos import FatTree, KAry, SuperPod
from fauxrdma.topology.presets.islands import DualPlane, RailOnly
from fauxrdma.topology.presets.seeds import Rail4, Rail8, TwoSwitch
from fauxrdma.topology.presets.speeds import SPEEDS, Speed
from fauxrdma.topology.presets.teaching import Ring, SingleSwitch

__all__ = ["DEFAULT_NODES", "PRESETS", "SPEEDS", "HostOptions", "Preset", "Speed"]

DEFAULT_NODES = 2

PRESETS: dict[str, type[Preset]] = {
    preset.name: preset
    for preset in (TwoSwitch, Rail8, Rail4, FatTree, SuperPod, KAry, DualPlane, RailOnly, Ring, SingleSwitch)
}
"""The presets by name, in the order they are listed to people."""
