"""From what a user types (`seed-rail8`, `fat-tree:ndr`, `./my-fabric.yaml`) to a Topology."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass

from fauxrdma.errors import ConfigError
from fauxrdma.topology.graph import Topology
from fauxrdma.topology.negotiation import with_hca_rate
from fauxrdma.topology.presets import DEFAULT_NODES, PRESETS, SPEEDS, Preset, Speed
from fauxrdma.units import Rate

__all__ = ["is_fabric_file", "load_topology"]


@dataclass(frozen=True, slots=True)
class _Chosen:
    preset: Preset
    speed: Speed


def load_topology(
    spec: str, nodes: int | None = None, gpus: int | None = None, hca_rate: Rate | None = None
) -> Topology:
    """The topology that `spec` names: a preset (`seed-rail8`, `fat-tree:ndr`) or the path of a YAML file.

    `nodes`: how many nodes to build (a preset's default is 2; a YAML file's is all its hosts). `gpus`: how many GPUs of
    each node the job uses (default: all); the node keeps all its HCAs. `hca_rate`: the fastest the ports of the HCAs
    signal (default: as fast as any cable); a preset without a rate is built for it, and where the cables are faster,
    those of the HCAs run at it. Raises ConfigError with a one-line message:
    unknown preset (with a suggestion), a mistake in the YAML (`file:line:column: ...`), or more nodes than fit.
    """
    if nodes is not None and nodes < 1:
        raise ConfigError(f"a fabric needs at least one node, not {nodes}")
    chosen = _preset(spec, hca_rate)
    if chosen is not None:
        topology = chosen.preset.build(DEFAULT_NODES if nodes is None else nodes, chosen.speed)
    else:
        # Here and not at the top: pydantic and ruamel.yaml take longer to import than a preset takes to build.
        from fauxrdma.topology.custom import load_fabric_file

        topology = load_fabric_file(spec, nodes)
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
    if spec.partition(":")[0] in PRESETS:
        return False
    return spec.endswith((".yaml", ".yml")) or os.sep in spec or os.path.isfile(spec)


def _preset(spec: str, hca_rate: Rate | None) -> _Chosen | None:
    """The preset and speed that `spec` names, or None when it is the path of a file."""
    name, colon, speed_name = spec.partition(":")
    preset = PRESETS.get(name)
    if preset is not None:
        speed = SPEEDS.get(speed_name.lower()) if colon else _speed_for(hca_rate)
        if speed is None:
            raise ConfigError(f"{spec}: unknown rate {speed_name!r}{_hint(speed_name, list(SPEEDS))}")
        return _Chosen(preset, speed)
    if is_fabric_file(spec):
        return None
    raise ConfigError(f"unknown fabric {spec!r}{_hint(name, list(PRESETS))} or the path of a YAML file")


def _speed_for(hca_rate: Rate | None) -> Speed:
    """HDR, or the generation whose cables are as fast as the HCAs' ports."""
    return next((speed for speed in SPEEDS.values() if speed.cable == hca_rate), SPEEDS["hdr"])


def _hint(given: str, known: list[str]) -> str:
    close = difflib.get_close_matches(given, known, n=1)
    return f": did you mean {close[0]!r}? Known: {', '.join(known)}" if close else f": known are {', '.join(known)}"
