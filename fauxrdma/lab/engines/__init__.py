"""A lab file as input of the engines people already run: docker compose, Swarm, Kubernetes (docs/labs.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fauxrdma.lab.engines.compose import compose
from fauxrdma.lab.engines.kubernetes import kubernetes
from fauxrdma.lab.engines.swarm import swarm
from fauxrdma.lab.engines.yaml_text import yaml_text
from fauxrdma.lab.file import LabFile

__all__ = ["ENGINES", "compose", "exported", "kubernetes", "swarm"]

ENGINES: dict[str, tuple[str, Callable[[LabFile], list[dict[str, Any]]]]] = {
    "compose": ("docker-compose.yml", lambda lab_file: [compose(lab_file)]),
    "swarm": ("docker-stack.yml", lambda lab_file: [swarm(lab_file)]),
    "kubernetes": ("kubernetes.yaml", kubernetes),
}
"""By name: the usual file name, and what makes the documents in it."""


def exported(lab_file: LabFile, engine: str) -> str:
    """The text of the engine's file. Raises ConfigError for a lab that an engine cannot run."""
    return yaml_text(ENGINES[engine][1](lab_file), f"Made by fauxrdma lab export from {lab_file.path}.")
