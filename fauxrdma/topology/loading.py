"""From what a user types (`seed-rail8`, `fat-tree:ndr`, `./my-fabric.yaml`) to a Topology."""

from __future__ import annotations

import os
import re

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.negotiation import with_hca_rate
from fauxrdma.topology.presets import PRESETS
from fauxrdma.topology.presets.options import did_you_mean
from fauxrdma.topology.presets.spec import parse_preset
from fauxrdma.units import Rate

__all__ = ["is_fabric_file", "load_topology"]


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
        topology = chosen.build(nodes)
    elif is_fabric_file(spec):
        # Here and not at the top: pydantic and ruamel.yaml take longer to import than a preset takes to build.
        from fauxrdma.topology.formats.registry import foreign_format, read_fabric

        if foreign_format(spec) is not None:
            topology = read_fabric(spec, nodes).topology
        else:
            from fauxrdma.topology.custom import load_fabric_file

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


def is_fabric_file(spec: str) -> bool:
    """Whether `spec` is the path of a file, which need not exist, and not the name of a preset."""
    name = spec.partition(",")[0]
    if name.partition(":")[0] in PRESETS:
        return False
    return spec.endswith((".yaml", ".yml")) or os.sep in name or os.path.isfile(spec)
