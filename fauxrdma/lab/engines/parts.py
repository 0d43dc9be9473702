"""What all engines are told: the commands of the processes, and the files they need."""

from __future__ import annotations

from pathlib import Path

from fauxrdma.errors import ConfigError
from fauxrdma.ib.profiles import parse_profile
from fauxrdma.lab.file import LabFile
from fauxrdma.topology.loading import is_fabric_file
from fauxrdma.topology.placement.choosing import is_places_file

__all__ = [
    "FOLDER", "MANAGER", "MANAGER_CHECK", "MANAGER_PORT", "MASTER_PORT", "NODE_CHECK", "SOCKET", "USER",
    "check_exportable", "lab_files", "manager_command", "memory_text", "node_command", "node_environment", "node_name",
]  # fmt: skip

MANAGER = "subnet-manager"
"""Name of the service."""
MANAGER_PORT = 7471
MASTER_PORT = 29500
FOLDER = "/lab"
"""Where the lab file and what it names are, in every container."""
SOCKET = "/tmp/fauxrdma-hca.sock"
USER = "1000:1000"
"""The user of the Dockerfile."""
MANAGER_CHECK = [
    "python3", "-c", f"import socket; socket.create_connection(('127.0.0.1', {MANAGER_PORT}), 2).close()"
]  # fmt: skip
NODE_CHECK = ["fauxrdma", "devinfo", "--list"]


def check_exportable(lab_file: LabFile) -> None:
    """Raise ConfigError for what only processes of one machine can do, and for files not beside the lab file."""
    if lab_file.form.clock == "virtual":
        raise ConfigError(f"{lab_file.path}: virtual time is kept for processes of one machine: use clock: paced")
    if lab_file.events:
        raise ConfigError(f"{lab_file.path}: events go into the fabric's own file where an engine runs it")
    lab_files(lab_file)


def node_name(node: int) -> str:
    """Of its service and its host."""
    return f"n{node}"


def lab_files(lab_file: LabFile) -> dict[str, Path]:
    """The lab file, and the fabric, the places and the script that it names, by their path below its
    folder. Raises ConfigError for one that is elsewhere: a container would not find it."""
    form = lab_file.form
    named = [form.fabric.partition(",")[0]] if is_fabric_file(form.fabric) else []
    places = is_places_file(form.placement)
    named += [places] if places is not None else []
    if form.job is not None:
        named += [word for word in form.job.command[:2] if word.endswith(".py")]
    found = {Path(lab_file.path).name: Path(lab_file.path).resolve()}
    for name in named:
        path = (lab_file.folder / name).resolve()
        if not path.is_relative_to(lab_file.folder):
            raise ConfigError(f"{lab_file.path}: {name} is not below the folder of the lab file, where containers look")
        if path.is_file():
            found[str(path.relative_to(lab_file.folder))] = path
    return found


def manager_command(lab_file: LabFile, *, folder: str = FOLDER, port: str = str(MANAGER_PORT)) -> list[str]:
    """Of the subnet manager, as LocalLab starts it; `folder` is where the lab file's folder is found there."""
    form, placement = lab_file.form, lab_file.placement
    fabric = lab_file.fabric.replace(str(lab_file.folder), folder)
    return [
        "fauxrdma-subnet-manager", fabric,
        "--nodes", str(form.nodes), "--gpus", str(placement.gpus_to_pace(lab_file.topology)),
        "--nodes-in-use", str(len(placement.nodes)), "--profile", parse_profile(form.profile).spec,
        "--clock", form.clock, "--dilation", form.dilation, "--seed", str(form.seed),
        *(["--routing", form.routing] if form.routing else []),
        "--listen", f"0.0.0.0:{port}", "--verbose",
    ]  # fmt: skip


def node_command(
    lab_file: LabFile,
    node: str,
    manager: str,
    master: str,
    *,
    folder: str = FOLDER,
    manager_port: str = str(MANAGER_PORT),
    master_port: str = str(MASTER_PORT),
) -> list[str]:
    """Of one node: its HCA daemon and, if the lab has a job, its ranks. `manager` and `master` are host names."""
    return [
        "fauxrdma", "lab", "node", f"{folder}/{Path(lab_file.path).name}", "--node", node,
        "--subnet-manager", f"{manager}:{manager_port}", "--master", f"{master}:{master_port}",
        *([] if lab_file.form.job is not None else ["--no-job"]),
    ]  # fmt: skip


def node_environment() -> dict[str, str]:
    """Of every process in a node's container, `docker compose exec` and torchrun with them."""
    return {"FAUXRDMA_SOCKET": SOCKET, "DIST_BACKEND": "fauxrdma"}


def memory_text(nbytes: int) -> str:
    """A size as Docker reads it, which rounds nothing: bytes with the unit b."""
    return f"{nbytes}b"
