"""A fabric as a file for the processes of a job: what they need to compute the same routes as the subnet manager."""

from __future__ import annotations

import json
from pathlib import Path

from fauxrdma.errors import ConfigError
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.topology.graph import Topology

__all__ = ["TOPOLOGY_VARIABLE", "read_fabric_record", "write_fabric_record"]

TOPOLOGY_VARIABLE = "FAUXRDMA_TOPOLOGY_FILE"
"""Where a rank finds the file."""


def write_fabric_record(path: Path, topology: Topology, seed: int) -> None:
    """Write the fabric and the seed of its subnet manager."""
    path.write_text(json.dumps({"seed": seed, "topology": topology.to_dict()}))


def read_fabric_record(path: str | Path) -> SubnetManager:
    """A subnet manager with the routes of the fabric as it came up: no cable has failed in it. Raises ConfigError for a
    file that is missing or was not written by `write_fabric_record`."""
    try:
        content = json.loads(Path(path).read_text())
        seed, topology = int(content["seed"]), content["topology"]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not the record of a fabric: {type(error).__name__}: {error}") from None
    return SubnetManager(Topology.from_dict(topology), seed)
