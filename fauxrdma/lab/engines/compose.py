"""A lab as docker-compose.yml: one container per node, the subnet manager, a private network."""

from __future__ import annotations

from typing import Any

from fauxrdma.lab.engines.parts import (
    FOLDER,
    MANAGER,
    MANAGER_CHECK,
    NODE_CHECK,
    USER,
    check_exportable,
    manager_command,
    memory_text,
    node_command,
    node_environment,
    node_name,
)
from fauxrdma.lab.file import LabFile

__all__ = ["compose"]


def compose(lab_file: LabFile) -> dict[str, Any]:
    """The file, which belongs into the folder of the lab file. Raises ConfigError for a lab that cannot be exported.

    ``docker compose up --abort-on-container-failure`` runs the job; its exit code is that of the first node that fails.
    """
    check_exportable(lab_file)
    form = lab_file.form
    master = node_name(lab_file.placement.places[0].node)
    services: dict[str, Any] = {
        MANAGER: {
            **_service(lab_file),
            "hostname": MANAGER,
            "entrypoint": manager_command(lab_file),
            "healthcheck": _healthcheck(MANAGER_CHECK),
        }
    }
    for node in range(form.nodes):
        services[node_name(node)] = {
            **_service(lab_file),
            "hostname": node_name(node),
            "entrypoint": node_command(lab_file, str(node), MANAGER, master),
            "environment": {**node_environment(), "FAUXRDMA_NODE": str(node)},
            "depends_on": {MANAGER: {"condition": "service_healthy"}},
            "healthcheck": _healthcheck(NODE_CHECK),
            "cpus": form.resources.cpus,
            "mem_limit": memory_text(form.resources.memory),
            "pids_limit": 1024,
        }
    return {"name": f"fauxrdma-{form.name}", "services": services, "networks": {"fabric": {"internal": True}}}


def _service(lab_file: LabFile) -> dict[str, Any]:
    return {
        "image": lab_file.form.image,
        "init": True,  # signals reach what PID 1 starts, and nobody stays a zombie
        "user": USER,
        "restart": "no",
        "networks": ["fabric"],
        "working_dir": FOLDER,
        "volumes": [{"type": "bind", "source": ".", "target": FOLDER, "read_only": True}],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }


def _healthcheck(command: list[str]) -> dict[str, Any]:
    return {"test": ["CMD", *command], "interval": "5s", "timeout": "5s", "retries": 12, "start_period": "10s"}
