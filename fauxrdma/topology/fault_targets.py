"""From what people call a cable, switch, HCA or GPU to its name in the topology; the nearest where there is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace

from fauxrdma.errors import ConfigError
from fauxrdma.topology.fault_events import KINDS, misfit
from fauxrdma.topology.graph import NodeKind, Topology
from fauxrdma.wire.fault_messages import FaultEvent

__all__ = ["cable_name", "checked_fault", "group_members"]

_NODE_KINDS = {"switch": NodeKind.SWITCH, "hca": NodeKind.HCA, "gpu": NodeKind.GPU}


def checked_fault(event: FaultEvent, topology: Topology) -> FaultEvent:
    """The fault with its target by the full name. Raises ConfigError for what `topology` has not, and for a fault that
    is not what its kind is to be told."""
    wrong = misfit(event)
    if wrong is not None:
        raise ConfigError(wrong[1])
    target = KINDS[event.kind].target
    if target == "link":
        return replace(event, target=cable_name(event.target, topology))
    if target == "groups":
        return replace(event, groups=_checked_groups(event.groups, topology))
    if target:
        return replace(event, target=_node_name(event.target, _NODE_KINDS[target], target, topology))
    return event


def cable_name(text: str, topology: Topology) -> str:
    """The full name of a cable: either direction (``leaf1->spine1:2``, ``leaf1 -- spine1:2``), or just the HCA for its
    own. Raises ConfigError for what is no cable, and for two ends that several join."""
    wanted = re.sub(r"\s*(?:--|->)\s*", "->", text.strip())
    node = topology.nodes.get(wanted)
    if node is not None and node.kind is NodeKind.HCA:
        return topology.fabric_link(node).name
    cables = [link.name for link in topology.links if link.kind == "cable"]
    if wanted in cables:
        return wanted
    parallel = [name for name in cables if name.startswith(f"{wanted}:")]
    if parallel:
        raise ConfigError(f"{len(parallel)} cables join {wanted.replace('->', ' and ')}: say which, as {parallel[0]}")
    raise ConfigError(f"{topology.name} has no cable {text!r}{_nearest(wanted, [*cables, *_names(topology, 'hca')])}")


def group_members(groups: list[list[str]], topology: Topology) -> list[frozenset[str]]:
    """The HCAs of each group: those named, and all of each node named."""
    found = []
    for group in groups:
        hosts = {name for name in group if "." not in name}
        found.append(frozenset(hca.name for hca in topology.hcas() if hca.name in group or f"n{hca.host}" in hosts))
    return found


def _checked_groups(groups: list[list[str]], topology: Topology) -> list[list[str]]:
    known = [*(f"n{host}" for host in range(topology.hosts)), *_names(topology, "hca")]
    for name in (name for group in groups for name in group):
        if name not in known:
            raise ConfigError(f"{topology.name} has no node or HCA {name!r}{_nearest(name, known)}")
    if len(groups) < 2 or not all(groups):
        raise ConfigError("a partition needs two groups or more: those that are to be apart, as [[n0], [n1]]")
    members = group_members(groups, topology)
    for hca in sorted(frozenset().union(*members)):
        if sum(hca in group for group in members) > 1:
            raise ConfigError(f"{hca} is in two groups: whoever is in one reaches no other")
    return groups


def _node_name(text: str, kind: NodeKind, what: str, topology: Topology) -> str:
    name = text.strip()
    node = topology.nodes.get(name)
    if node is None or node.kind is not kind:
        what = what if what == "switch" else what.upper()
        raise ConfigError(f"{topology.name} has no {what} {text!r}{_nearest(name, _names(topology, what.lower()))}")
    return name


def _names(topology: Topology, kind: str) -> list[str]:
    return [node.name for node in topology.nodes.values() if node.kind is _NODE_KINDS[kind]]


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else f" (as {known[0]})" if known else ""
