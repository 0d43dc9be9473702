"""`fauxrdma lab export` and `node`: labs on engines that place nodes, and what they place."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fauxrdma.cli.options import Format, FormatOption

__all__ = ["export", "node"]

_LINGER_S = 2.0


class Engine(StrEnum):
    """Who places the nodes."""

    COMPOSE = "compose"
    SWARM = "swarm"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The lab file.")] = Path("lab.yaml"),
    driver: Annotated[Engine, typer.Option("--driver", "-d", help="For which engine.")] = Engine.COMPOSE,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write into this file, beside the lab file.", show_default=False),
    ] = None,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Print a lab as input of docker compose, Docker Swarm, Kubernetes or Slurm; with --format json as JSON.

    The image (key `image`) is that of the Dockerfile. Each node is a container with its HCA daemon and its ranks. For
    Slurm it is a batch script (a string in JSON), whose nodes are tasks of srun, without an image.

    \b
    Examples:
      fauxrdma lab export -o docker-compose.yml && docker compose up --abort-on-container-failure
      fauxrdma lab export --driver swarm -o docker-stack.yml && docker stack deploy -c docker-stack.yml digits
      fauxrdma lab export --driver kubernetes | kubectl apply -f -
      fauxrdma lab export --driver slurm | sbatch
    """
    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import SetupError
    from fauxrdma.lab.engines import ENGINES, exported
    from fauxrdma.lab.file import load_lab

    lab_file = load_lab(file)
    if format_ is Format.JSON:
        print_json(ENGINES[driver.value][1](lab_file))
        return
    text = exported(lab_file, driver.value)
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise SetupError(f"cannot write {output}: {error.strerror}") from None
    print(f"{output} is written")


def node(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The lab file, the same on every machine.")],
    number: Annotated[int, typer.Option("--node", min=0, help="Which node this is, from 0.")],
    subnet_manager: Annotated[
        str, typer.Option("--subnet-manager", metavar="HOST:PORT", help="Where it listens; waited for.")
    ],
    master: Annotated[
        str, typer.Option("--master", metavar="HOST:PORT", help="Where rank 0 serves the rendezvous.")
    ] = "127.0.0.1:29500",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where other nodes reach this one's HCA daemon.")
    ] = "0.0.0.0:0",
    job: Annotated[bool, typer.Option("--job/--no-job", help="Run this node's ranks, or serve until ended.")] = True,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Be one node of a lab on several machines: its HCA daemon and its ranks. Engines run this, one on each machine.

    The Unix socket is at FAUXRDMA_SOCKET if that is set. The exit code is that of `fauxrdma run`.

    \b
    Examples:
      fauxrdma-subnet-manager fat-tree --nodes 2 --listen 0.0.0.0:7471     # on one machine
      fauxrdma lab node lab.yaml --node 0 --subnet-manager host0:7471 --master host0:29500
      fauxrdma lab node lab.yaml --node 1 --subnet-manager host0:7471 --master host0:29500
    """
    import os
    import sys

    from fauxrdma.cli.output import print_json
    from fauxrdma.cli.pass_through import PassThrough
    from fauxrdma.communicator.settings.algorithm_rules import ALGO_VARIABLE
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.file import load_lab
    from fauxrdma.lab.launcher import resolve_command, run_job
    from fauxrdma.lab.node import LabNode
    from fauxrdma.lab.ports import parse_endpoint

    lab_file = load_lab(file)
    form = lab_file.form
    if number >= form.nodes:
        raise ConfigError(f"{file} has nodes 0..{form.nodes - 1}: there is no node {number}")
    if form.clock == "virtual":
        raise ConfigError(f"{file}: virtual time is kept for processes of one machine: use clock: paced")
    if job and form.job is None:
        raise ConfigError(f"{file} names no job: add job: {{command: train.py}}, or --no-job")
    if job and form.job is not None:
        resolve_command(form.job.command, lab_file.folder)
    place = LabNode(
        lab_file,
        number,
        parse_endpoint(subnet_manager, "--subnet-manager"),
        parse_endpoint(master, "--master"),
        listen=listen,
        socket=os.environ.get("FAUXRDMA_SOCKET") or None,
    )
    progress = PassThrough(prefix=True, everything_to_stderr=format_ is Format.JSON)
    with place, progress:
        print(f"n{number}: in the fabric with all {form.nodes} nodes", file=sys.stderr, flush=True)
        if not job or form.job is None:
            place.keep()
            return
        algorithm = {ALGO_VARIABLE: form.algorithm} if form.algorithm is not None else {}
        result = run_job(
            place,
            form.job.command,
            node=number,
            environment={**form.job.env, **algorithm},
            folder=lab_file.folder,
            on_line=progress.line,
            on_notice=progress.notice,
        )
        if format_ is Format.JSON:
            print_json({"node": number, "ranks": lab_file.placement.ranks_on(number), "values": result.values})
        place.linger(_LINGER_S)
