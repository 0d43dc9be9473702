"""`fauxrdma lab`: labs from a file, started in the background, looked at, and taken down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fauxrdma.cli import fault, lab_engines, lab_running
from fauxrdma.cli.completion import complete_fabric
from fauxrdma.cli.options import Format, FormatOption, JobCommand, StrictOption

if TYPE_CHECKING:
    from fauxrdma.lab.file import LabFile

__all__ = ["app"]

app = typer.Typer(
    help="Labs from one file: init, up, ps, logs, exec, down, export.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("ps")(lab_running.ps)
app.command("logs")(lab_running.logs)
app.command("exec", cls=JobCommand)(lab_running.exec_)
app.command("down")(lab_running.down)
app.add_typer(fault.app, name="fault")
app.command("export")(lab_engines.export)
app.command("node")(lab_engines.node)

LAB_FILE = Path("lab.yaml")
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The lab file.")]


@app.command("init", cls=JobCommand)
def init(
    context: typer.Context,
    file: FileArgument = LAB_FILE,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the lab.  [default: that of the folder]", show_default=False)
    ] = None,
    fabric: Annotated[
        str, typer.Option("--fabric", help="A preset or a YAML file.", autocompletion=complete_fabric)
    ] = "seed-rail8",
    nodes: Annotated[int, typer.Option("--nodes", "-n", min=1, help="Emulated nodes.")] = 2,
    gpus: Annotated[int, typer.Option("--gpus", "-g", min=1, help="GPUs of each node that take part.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Write a lab file to begin with; after -- what each rank runs.

    \b
    Examples:
      fauxrdma lab init
      fauxrdma lab init digits.yaml --fabric fat-tree --nodes 4 -- train.py --epochs 1
    """
    import re

    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError, SetupError
    from fauxrdma.lab.file import load_lab_text
    from fauxrdma.lab.file.template import lab_template

    if file.exists() and not force:
        raise ConfigError(f"{file} is there: name another file, or add --force to overwrite it")
    folder = re.sub(r"[^a-z0-9]+", "-", file.resolve().parent.name.lower()).strip("-")[:32].strip("-")
    text = lab_template(name or folder or "lab", fabric, nodes, gpus, context.obj or ["train.py"])
    checked = load_lab_text(str(file), text)
    try:
        file.write_text(text)
    except OSError as error:
        raise SetupError(f"cannot write {file}: {error.strerror}") from None
    if format_ is Format.JSON:
        print_json({"file": str(file), **checked.form.model_dump(mode="json")})
        return
    where = "" if file == LAB_FILE else f" {file}"
    print(f"{file} is written: start it with `fauxrdma lab up{where}`, run its job with `fauxrdma lab up{where} --run`")


@app.command("schema")
def schema(format_: FormatOption = Format.JSON) -> None:
    """Print the JSON schema of lab files, by which editors complete keys and mark mistakes; or the keys as a table.

    \b
    Examples:
      fauxrdma lab schema > lab.schema.json
      fauxrdma lab schema --format table
    """
    from rich.table import Table

    from fauxrdma.cli.output import console, print_json
    from fauxrdma.lab.file import json_schema, keys

    if format_ is Format.JSON:
        print_json(json_schema())
        return
    table = Table("key", "default", "meaning", box=None, pad_edge=False)
    for key in keys():
        table.add_row(key.path, key.default, key.description)
    console().print(table)


@app.command("up", cls=JobCommand)
def up(
    context: typer.Context,
    file: FileArgument = LAB_FILE,
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run the job in the foreground, judge the thresholds, take the lab down. After --: another job.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="With --run: write comparison.json and report.html here.", show_default=False
        ),
    ] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix/--no-prefix", help="With --run: start every line with node and rank, as [n0 r1].")
    ] = True,
    strict: StrictOption = False,
    format_: FormatOption = Format.TABLE,
) -> None:
    """Start the fabric of a lab file in the background; return when all nodes are in it.

    With --run the job's output is passed through, and the exit code says what became of it and of the thresholds. While
    it runs, ps, logs and exec work from another terminal. Ctrl-C ends everything, here and later.

    \b
    Examples:
      fauxrdma lab up
      fauxrdma lab up digits.yaml --run
      fauxrdma lab up --run -- train.py --epochs 3
    """
    from dataclasses import asdict

    from fauxrdma.cli.output import print_json
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.file import load_lab
    from fauxrdma.lab.running.supervisor import start_in_background

    lab_file = load_lab(file)
    if lab_file.form.driver == "compose":
        raise ConfigError(
            f"{file}: driver: compose: this starts processes; write a compose file with "
            f"`fauxrdma lab export {file} -o docker-compose.yml` and start it with `docker compose up`"
        )
    command = list(context.obj or (lab_file.form.job.command if lab_file.form.job is not None else []))
    if run:
        _run(lab_file, command, output, prefix, strict, format_)
        return
    if context.obj or output is not None or strict:
        raise ConfigError("a job after --, --output and --strict are for --run: add it")
    _, state = start_in_background(lab_file)
    if format_ is Format.JSON:
        print_json(asdict(state))
        return
    name, nodes = state.name, f"{state.nodes} node{'' if state.nodes == 1 else 's'}"
    pace = {"paced": f"{state.dilation:g} times slower than modelled", "virtual": "in virtual time"}
    print(f"{name} is up: {lab_file.form.fabric}, {nodes}, {pace.get(state.clock, 'unshaped')}")
    print(f"  fauxrdma lab exec --lab {name} n0 -- fauxrdma devinfo --list")
    print(f"  fauxrdma lab down {name}")


def _run(
    lab_file: LabFile, command: list[str], output: Path | None, prefix: bool, strict: bool, format_: Format
) -> None:
    """The job in the foreground: this process keeps the lab."""
    from functools import partial

    from fauxrdma.cli.job import JobSpec, check_job, run_on_lab
    from fauxrdma.cli.pass_through import PassThrough
    from fauxrdma.cli.run_output import print_result
    from fauxrdma.errors import ConfigError
    from fauxrdma.lab.running.keeping import claimed, note_deaths, running_lab
    from fauxrdma.lab.running.logs import rank_log
    from fauxrdma.report.files import check_writable
    from fauxrdma.report.thresholds import judge, parse_threshold

    form = lab_file.form
    if not command:
        raise ConfigError(f"{lab_file.path} names no job: add job: {{command: train.py}}, or give one after --")
    spec = JobSpec(
        command,
        lab_file.fabric,
        form.nodes,
        form.gpus,
        form.clock,
        form.dilation,
        form.seed,
        profile=form.profile,
        routing=form.routing,
        placement=lab_file.placement_spec,
        on_nodes=lab_file.on_nodes,
        algorithm=form.algorithm,
        name=form.name,
        environment=dict(form.job.env) if form.job is not None else {},
        folder=lab_file.folder,
    )
    topology = check_job(spec).topology
    if output is not None:
        check_writable(output)
    with (
        claimed(lab_file) as folder,
        running_lab(folder, lab_file) as lab,
        PassThrough(prefix, format_ is Format.JSON, partial(rank_log, folder)) as progress,
    ):
        try:
            result = run_on_lab(lab, spec, progress)
        finally:
            note_deaths(folder, lab)
    thresholds = [parse_threshold(text) for text in form.thresholds]
    result = result.model_copy(update={"thresholds": judge(result, thresholds)})
    print_result(result, topology, output, format_, strict=strict)
