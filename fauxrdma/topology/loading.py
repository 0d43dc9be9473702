"""From what a user types (`seed-rail8`, `fat-tree:ndr`, `./my-fabric.yaml`) to a Topology."""

from __future__ import annotations

import os
import re

from fauxrdma.errors import ConfigError
from fauxrdma.topology.collector import collector_off
from fauxrdma.topology.graph import ROUTING_ENGINES, Topology
from fauxrdma.topology.negotiation import with_hca_rate
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.presets.options import did_you_mean
from fauxrdma.topology.presets.spec import parse_preset
from fauxrdma.units import Rate

__all__ = ["is_fabric_file", "load_topology", "over_transport"]


def load_topology(
    spec: str, nodes: int | None = None, gpus: int | None = None, hca_rate: Rate | None = None
) -> Topology:
    """The topology that `spec` names: a preset (`seed-rail8`, `fat-tree:ndr,radix=40`) or the path of a fabric file, in
    YAML or any other format that `fauxrdma.topology.formats` reads.

    `nodes`: how many nodes to build (a preset's default is 2, if they fit; a YAML file's is all its hosts). `gpus`: how
    many GPUs of each node the job uses (default: all); the node keeps all its HCAs. `hca_rate`: the fastest the ports
    of the HCAs signal (default: as fast as any cable); a preset without a rate is built for it, and where the cables
    are faster, those of the HCAs run at it. Raises ConfigError with a one-line message:
    unknown preset (with a suggestion), a mistake in the YAML (`file:line:column: ...`), or more nodes than fit.
    """
    if nodes is not None and nodes < 1:
        raise ConfigError(f"a fabric needs at least one node, not {nodes}")
    chosen = parse_preset(spec, hca_rate)
    if chosen is not None:
        with collector_off():
            topology = chosen.build(nodes)
    elif is_fabric_file(spec):
        # Here and not at the top: pydantic and ruamel.yaml take longer to import than a preset takes to build.
        from fauxrdma.topology.formats.registry import foreign_format, read_fabric

        if foreign_format(spec) is not None:
            topology = read_fabric(spec, nodes).topology
        else:
            from fauxrdma.topology.custom import load_fabric_file

            with collector_off():
                topology = load_fabric_file(spec, nodes)
    else:
        known = did_you_mean(re.split("[:,]", spec)[0], PRESETS)
        raise ConfigError(f"unknown fabric {spec!r}{known} or the path of a YAML file")
    if hca_rate is not None:
        topology = with_hca_rate(topology, hca_rate)
    if gpus is not None:
        if not 1 <= gpus <= topology.gpus_per_host:
            raise ConfigError(
                f"{topology.name} has {topology.gpus_per_host} GPUs per node: the number of GPUs used must be between "
                f"1 and {topology.gpus_per_host}, not {gpus}"
            )
        topology.active_gpus = gpus
    return topology


def over_transport(spec: str, transport: str | None) -> str:
    """What to give `load_topology` for the fabric `spec` over `transport` (None: as it is).

    A preset gets the option ``transport``. Raises ConfigError for a transport there is not, a preset whose options say
    another one, and a file that is a fabric of another.
    """
    if transport is None:
        return spec
    if transport not in ROUTING_ENGINES:
        raise ConfigError(f"unknown transport {transport!r}{did_you_mean(transport, ROUTING_ENGINES)}")
    chosen = parse_preset(spec)
    if chosen is None:
        topology = load_topology(spec)
        if topology.transport != transport:
            raise ConfigError(f"{spec} is a fabric over {topology.transport}, not {transport}: a file says that itself")
        return spec
    if chosen.hosts.transport == transport:
        return spec
    if re.search(r",\s*transport\s*=", spec):
        raise ConfigError(f"{spec} says its transport itself: leave it away there, or do not ask for {transport}")
    return f"{spec},transport={transport}"


def is_fabric_file(spec: str) -> bool:
    """Whether `spec` is the path of a file, which need not exist, and not the name of a preset."""
    name = spec.partition(",")[0]
    if name.partition(":")[0] in PRESETS:
        return False
    return spec.endswith((".yaml", ".yml")) or os.sep in name or os.path.isfile(spec)
