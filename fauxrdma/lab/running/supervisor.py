"""The process that keeps a lab in the background, and how it is started.

`start_in_background` runs this module in a session of its own and waits for one line of JSON from it: ``{}`` when all
nodes are in the fabric, else the error. The supervisor ends, and the lab with it, on SIGTERM; and before it has said
that line, when nobody is there any more to read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from fauxrdma import errors
from fauxrdma.errors import FabricUnhealthy, FauxrdmaError
from fauxrdma.lab.file import LabFile, load_lab_text
from fauxrdma.lab.running.folder import LabState, read_state
from fauxrdma.lab.running.keeping import ENDING_SIGNALS, claimed, keep, running_lab, without_interruption

__all__ = ["main", "start_in_background"]


def start_in_background(lab_file: LabFile) -> tuple[Path, LabState]:
    """Start the lab of a file; returns its folder and state when all nodes are in the fabric.

    Raises ConfigError when one of that name is up, and what starting it raised in the supervisor. Whatever is raised
    here, Ctrl-C at any moment with it, nothing of the lab is left.
    """
    with claimed(lab_file) as folder:
        with without_interruption():
            answers = _spawn(folder, lab_file)
        with os.fdopen(answers) as pipe:
            answer = pipe.readline()
        if not answer:
            raise FabricUnhealthy(f"the lab's supervisor ended before the fabric was up{_last_words(folder)}")
        _raise_error(json.loads(answer))
        state = read_state(folder)
        if state is None:
            raise FabricUnhealthy(f"the lab {lab_file.form.name} was ended while it started")
        return folder, state


def _spawn(folder: Path, lab_file: LabFile) -> int:
    """Start the supervisor; the pipe that its answer comes from."""
    state = read_state(folder)
    assert state is not None
    read_fd, write_fd = os.pipe()
    log = (folder / "logs" / "supervisor.log").open("ab")
    try:
        subprocess.Popen(
            # -P: a folder that is called like one of our packages where the user stands must not shadow it.
            [sys.executable, "-P", "-m", __name__, str(folder), str(Path(lab_file.path).resolve()), str(write_fd)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **state.environment},
            start_new_session=True,
            pass_fds=(write_fd,),
        )
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
        log.close()
    return read_fd


def _raise_error(answer: dict[str, str]) -> None:
    """Raise what the supervisor raised, if anything."""
    if not answer:
        return
    kind = getattr(errors, answer["kind"], FabricUnhealthy)
    raise kind(answer["message"]) if issubclass(kind, FauxrdmaError) else FabricUnhealthy(answer["message"])


def _last_words(folder: Path) -> str:
    with contextlib.suppress(OSError, IndexError):
        return f": {(folder / 'logs' / 'supervisor.log').read_text(errors='replace').strip().splitlines()[-1]}"
    return ""


class _Ended(SystemExit):
    """A signal asked the supervisor to end."""


def _on_signal(number: int, _: FrameType | None) -> None:
    for ending in ENDING_SIGNALS:
        signal.signal(ending, signal.SIG_IGN)  # a second one must not break the teardown
    raise _Ended(0)


def main(argv: list[str] | None = None) -> int:
    """Keep the lab in the folder argv[0], of the file argv[1]; argv[2] is the descriptor to say so on."""
    folder, path, answer_fd = sys.argv[1:] if argv is None else argv
    for ending in ENDING_SIGNALS:
        signal.signal(ending, _on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)
    answers = os.fdopen(int(answer_fd), "w")
    try:
        with running_lab(Path(folder), load_lab_text(path, (Path(folder) / "lab.yaml").read_text())) as lab:
            answers.write("{}\n")
            answers.close()  # raises BrokenPipeError when whoever started us is gone
            keep(Path(folder), lab)
    except _Ended:
        return 0
    except FauxrdmaError as error:
        print(f"fauxrdma: error: {error}", file=sys.stderr)
        with contextlib.suppress(OSError, ValueError):
            answers.write(json.dumps({"kind": type(error).__name__, "message": str(error)}) + "\n")
            answers.close()
        return error.exit_code
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
