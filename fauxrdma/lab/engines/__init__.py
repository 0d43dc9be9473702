"""A lab file as input of the engines people already run: docker compose, Swarm, Kubernetes, Slurm (docs/labs.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fauxrdma.lab.engines.compose import compose
from fauxrdma.lab.engines.kubernetes import kubernetes
from fauxrdma.lab.engines.slurm import slurm
from fauxrdma.lab.engines.swarm import swarm
from fauxrdma.lab.engines.yaml_text import yaml_text
from fauxrdma.lab.file import LabFile

__all__ = ["ENGINES", "compose", "exported", "kubernetes", "slurm", "swarm"]

ENGINES: dict[str, tuple[str, Callable[[LabFile], list[dict[str, Any]] | str]]] = {
    "compose": ("docker-compose.yml", lambda lab_file: [compose(lab_file)]),
    "swarm": ("docker-stack.yml", lambda lab_file: [swarm(lab_file)]),
    "kubernetes": ("kubernetes.yaml", kubernetes),
    "slurm": ("lab.sbatch", slurm),
}
"""By name: the usual file name, and what makes its content: documents to be written as YAML, or the text itself."""


def exported(lab_file: LabFile, engine: str) -> str:
    """The text of the engine's file. Raises ConfigError for a lab that an engine cannot run."""
    content = ENGINES[engine][1](lab_file)
    if isinstance(content, str):
        return content
    return yaml_text(content, f"Made by fauxrdma lab export from {lab_file.path}.")
