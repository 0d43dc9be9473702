"""A lab as a Docker Swarm stack: nodes that the swarm places on as many machines as it has."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fauxrdma.lab.engines.compose import compose
from fauxrdma.lab.engines.parts import FOLDER, MANAGER, lab_files, memory_text
from fauxrdma.lab.file import LabFile

__all__ = ["swarm"]


def swarm(lab_file: LabFile) -> dict[str, Any]:
    """The file for ``docker stack deploy``. As `compose`, but files go along as configs, names resolve to containers
    and not to a virtual address, and what has ended is not started again."""
    content = compose(lab_file)
    files = lab_files(lab_file)
    configs = {_config_name(name, path): {"file": f"./{_beside(path, lab_file)}"} for name, path in files.items()}
    mounted = [
        {"source": _config_name(name, path), "target": f"{FOLDER}/{name}", "mode": 0o444}
        for name, path in files.items()
    ]
    resources = lab_file.form.resources
    services = {}
    for name, service in content["services"].items():
        kept = {
            key: value
            for key, value in service.items()
            if key not in ("restart", "volumes", "depends_on", "cpus", "mem_limit", "pids_limit", "security_opt")
        }
        deploy: dict[str, Any] = {
            "replicas": 1,
            "endpoint_mode": "dnsrr",  # a rank binds the address that its own name resolves to
            "restart_policy": {"condition": "none"},
        }
        if name != MANAGER:
            limits = {"cpus": f"{resources.cpus:g}", "memory": memory_text(resources.memory), "pids": 1024}
            deploy["resources"] = {"limits": limits}
        services[name] = {**kept, "configs": mounted, "deploy": deploy}
    network = {"driver": "overlay", "attachable": True, "internal": True}
    return {"services": services, "networks": {"fabric": network}, "configs": configs}


def _beside(path: Path, lab_file: LabFile) -> str:
    return str(path.relative_to(lab_file.folder))


def _config_name(name: str, path: Path) -> str:
    """A config cannot change, so one with other content has another name."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    return f"{''.join(letter if letter.isalnum() else '-' for letter in name)}-{digest}"
