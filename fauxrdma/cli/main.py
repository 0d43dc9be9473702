"""The command `fauxrdma`: finds the subcommand, and turns every failure into one line and an exit code.

Exit codes: 0 ok, 1 a check or the user's job failed, 2 usage or configuration, 3 environment, 4 fabric unhealthy,
130 and 143 interrupted by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated

import typer

from fauxrdma import __version__
from fauxrdma.cli import coll, compare, devinfo, doctor, fault, lab, perf, place, plan, routes, run, topo, traffic
from fauxrdma.cli.options import JobCommand
from fauxrdma.cli.output import print_error
from fauxrdma.errors import FauxrdmaError

__all__ = ["app", "main"]

_INTERRUPTED = 128 + signal.SIGINT
_LAB_COMMANDS = (["lab", "init"], ["lab", "up"], ["lab", "exec"])

# Without rich markup, `fauxrdma --help` loads only what it prints.
app = typer.Typer(
    name="fauxrdma",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("compare", cls=JobCommand)(compare.compare)
app.command("run", cls=JobCommand)(run.run)
app.command("coll")(coll.coll)
app.command("devinfo")(devinfo.devinfo)
app.add_typer(topo.app, name="topo")
app.add_typer(lab.app, name="lab")
app.command("routes")(routes.routes)
app.command("plan")(plan.plan)
app.command("place")(place.place)
app.command("traffic")(traffic.traffic)
app.command("perf")(perf.perf)
app.add_typer(fault.app, name="fault")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fauxrdma {__version__}")
        raise typer.Exit


@app.callback()
def _fauxrdma(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run distributed jobs over emulated InfiniBand fabrics on this machine, and compare the fabrics.

    \b
    Examples:
      fauxrdma doctor
      fauxrdma topo list
      fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
      fauxrdma run fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py
    """


class _Terminated(SystemExit):
    """A signal asked the command to end. Raised where it arrived, so that everything is torn down on the way out."""


def _on_signal(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one must not break the teardown
    raise _Terminated(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's) and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    job: list[str] | None = None
    # The parser would mix what follows -- into the fabrics that precede it.
    if "--" in arguments and (arguments[0] in ("compare", "run") or arguments[:2] in _LAB_COMMANDS):
        place = arguments.index("--")
        arguments, job = arguments[:place], arguments[place + 1 :]
    previous = {number: signal.signal(number, _on_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        result = app(args=arguments, prog_name="fauxrdma", standalone_mode=False, obj=job)
        sys.stdout.flush()
        if result == _INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except _Terminated as end:
        return int(end.code or 0)
    except (KeyboardInterrupt, typer.Abort):
        print("fauxrdma: interrupted; everything it started has been ended", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("FAUXRDMA_DEBUG") == "1":
            raise
        return _report(error)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _report(error: Exception) -> int:
    for note in getattr(error, "__notes__", []):
        print(f"fauxrdma: {note}", file=sys.stderr)
    if isinstance(error, FauxrdmaError):
        print_error(str(error))
        return error.exit_code
    usage = getattr(error, "format_message", None)  # click's exceptions, vendored by some versions of typer
    if usage is not None:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "fauxrdma"
        print_error(f"{usage()} (see {path} --help)")
        return 2
    print_error(f"internal error, please report it: {type(error).__name__}: {error} (FAUXRDMA_DEBUG=1 shows where)")
    return 1


if __name__ == "__main__":
    sys.exit(main())
