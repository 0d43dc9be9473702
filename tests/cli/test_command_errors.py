"""Everything that can go wrong before or while a job runs: one line that says what to do, and the right exit code."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

BAD_FABRIC = """\
name: bad
hosts: {count: 2, gpus: 1}
switches:
  leaf1: {ports: 4, tier: leaf}
cables:
  - {from: "n*.hca1", to: leaf1, rate: 200, length: 2m}
"""

WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return None
sys.meta_path.insert(0, Blocker())
"""


def error_line(result: subprocess.CompletedProcess[str]) -> str:
    """The one error line, which must be the last; no traceback of ours (the job's own are passed through)."""
    lines = [line for line in result.stderr.strip().splitlines() if not line.startswith("[n")]
    assert "Traceback" not in "".join(lines)
    assert [line for line in lines if line.startswith("fauxrdma: error: ")] == lines[-1:]
    return lines[-1].removeprefix("fauxrdma: error: ")


class TestInput:
    def test_bad_yaml_names_file_line_and_column(self, cli: Any) -> None:
        (cli.directory / "bad.yaml").write_text(BAD_FABRIC)
        for arguments in (["topo", "validate", "bad.yaml"], ["run", "bad.yaml", "--", cli.script("pass")]):
            result = cli(*arguments)
            assert result.returncode == 2
            line = error_line(result)
            assert line.startswith("bad.yaml:6:")
            assert "200" in line
            assert "unit" in line

    def test_an_unknown_preset_comes_with_a_suggestion(self, cli: Any) -> None:
        result = cli("compare", "seed-rail9", "fat-tree", "--", cli.script("pass"))
        assert result.returncode == 2
        assert "seed-rail8" in error_line(result)

    def test_more_nodes_than_ports(self, cli: Any) -> None:
        result = cli("run", "seed-two-switch", "--nodes", "9", "--", cli.script("pass"))
        assert result.returncode == 2
        assert "ports" in error_line(result)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["run", "fat-tree"], "give the script after --"),
            (["run", "fat-tree", "--", "missing.py"], "there is no script missing.py"),
            (["run", "fat-tree", "--gpus", "9", "--", "job.py"], "8 GPUs per node"),
            (["run", "fat-tree", "--dilation", "much", "--", "job.py"], "--dilation must be auto or a number"),
            (["run", "fat-tree", "--clock", "fast", "--", "job.py"], "fast"),
            (["run", "fat-tree", "--listen", "here", "--", "job.py"], "--listen must be HOST:PORT"),
            (["compare", "fat-tree", "fat-tree", "--", "job.py"], "fat-tree is given twice"),
            (["compare", "fat-tree", "--output", "job.py", "--", "job.py"], "--output job.py: cannot write"),
            (["compare"], "fauxrdma compare --help"),
            (["nonsense"], "nonsense"),
            (["devinfo"], "Name a fabric"),
            (["devinfo", "--socket", "x", "--profile", "ibta"], "a running daemon has its own"),
            (["devinfo", "fat-tree", "--profile", "cx9"], "there is no HCA profile 'cx9'"),
            (["run", "fat-tree", "--profile", "ibta,max_qps=1", "--", "true"], "is not FIELD=VALUE"),
            (["devinfo", "fat-tree", "-d", "hca12"], "there is no device hca12"),
            (["topo", "show", "fat-tree", "--svg", "no/such/directory/x.svg"], "cannot write there"),
        ],
    )
    def test_usage(self, cli: Any, arguments: list[str], words: str) -> None:
        cli.script("pass")
        result = cli(*arguments)
        assert result.returncode == 2
        assert words in error_line(result)
        assert result.stdout == ""


class TestEnvironment:
    @pytest.mark.parametrize("option", ["--listen", "--master-port"])
    def test_a_port_in_use(self, cli: Any, option: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            value = f"127.0.0.1:{port}" if option == "--listen" else str(port)
            result = cli("run", "fat-tree", option, value, "--", cli.script("pass"))
        assert result.returncode == 3
        assert f"{option}: port {port} of 127.0.0.1 is in use" in error_line(result)

    def test_no_torch(self, cli: Any) -> None:
        blocker = cli.directory / "blocker"
        blocker.mkdir()
        (blocker / "sitecustomize.py").write_text(WITHOUT_TORCH)
        env = {"PYTHONPATH": str(blocker)}
        result = cli("run", "fat-tree", "--clock", "none", "--", cli.script("import torch"), env=env)
        assert result.returncode == 3
        line = error_line(result)
        assert "needs the Python module torch" in line
        assert line.endswith("-m pip install 'fauxrdma[torch]'")

        checks = {
            check["name"]: check for check in json.loads(cli("doctor", "--format", "json", env=env).stdout)["checks"]
        }
        assert checks["torch"]["status"] == "warn"
        assert "fauxrdma[torch]" in checks["torch"]["fix"]

    def test_a_shadowed_daemons_package(self, cli: Any) -> None:
        package = cli.directory / "elsewhere" / "daemons"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        result = cli("doctor", env={"PYTHONPATH": str(package.parent)})
        assert result.returncode == 3
        assert "daemons package" in error_line(result)
        assert str(package) in result.stdout

    def test_a_daemons_directory_where_the_user_stands_does_no_harm(self, cli: Any) -> None:
        (cli.directory / "daemons").mkdir()
        (cli.directory / "daemons" / "__init__.py").write_text("raise RuntimeError('the wrong daemons')")
        result = cli("run", "fat-tree", "--clock", "none", "--nodes", "1", "--", cli.script("print('fine')"))
        assert result.returncode == 0
        assert "[n0 r0] fine" in result.stdout

    def test_no_daemon_at_the_socket(self, cli: Any) -> None:
        result = cli("devinfo", "--socket", "nowhere.sock")
        assert result.returncode == 3
        assert "no HCA daemon answers at nowhere.sock" in error_line(result)


class TestJobs:
    def test_a_failing_job_is_exit_code_1_and_its_last_words_are_shown(self, cli: Any) -> None:
        script = cli.script("import os\nif os.environ['RANK'] == '1': raise ValueError('the reason')\n")
        result = cli("run", "fat-tree", "--clock", "none", "--", script)
        assert result.returncode == 1
        lines = result.stderr.splitlines()
        assert lines[-1] == (
            "fauxrdma: error: rank 1 (node 1, GPU 0) failed first: exit code 1: ValueError: the reason"
        )
        assert any("the last lines of its stderr" in line for line in lines)

    def test_a_dead_daemon_is_exit_code_4(self, cli: Any) -> None:
        script = cli.script(
            textwrap.dedent("""
                import os, signal
                from pathlib import Path
                mine = os.environ["FAUXRDMA_SOCKET"].encode()
                for process in Path("/proc").glob("[0-9]*"):
                    try:
                        words = (process / "cmdline").read_bytes().split(b"\\0")
                    except OSError:
                        continue
                    if mine in words and os.environ["RANK"] == "0":
                        os.kill(int(process.name), signal.SIGKILL)
                        raise SystemExit("the transfer failed")
                signal.pause()
            """)
        )
        result = cli("run", "fat-tree", "--clock", "none", "--", script)
        assert result.returncode == 4
        assert "the HCA daemon of node 0" in error_line(result)
        assert "killed by SIGKILL" in error_line(result)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
    @pytest.mark.parametrize("command", ["run", "compare"])
    def test_an_interrupted_command_tears_everything_down(
        self, cli: Any, number: signal.Signals, code: int, command: str
    ) -> None:
        fifo = cli.directory / "started"
        os.mkfifo(fifo)
        script = cli.script(f"import signal\nopen({str(fifo)!r}, 'w').close()\nsignal.pause()\n")
        with cli.start(command, "fat-tree", "--clock", "none", "--nodes", "1", "--", script) as process:
            fifo.open().close()  # returns when the rank has opened the other end: it runs
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
        assert process.returncode == code
        assert "Traceback" not in stderr

    def test_debug_shows_the_traceback(self, cli: Any) -> None:
        result = cli("topo", "show", "nothing", env={"FAUXRDMA_DEBUG": "1"})
        assert result.returncode == 1
        assert "ConfigError" in result.stderr
        assert "Traceback" in result.stderr


def test_a_reader_that_leaves_is_no_error(cli: Any, tmp_path: Path) -> None:
    command = " ".join(cli.command("topo", "show", "fat-tree", "--format", "json"))
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} | head -1"],
        capture_output=True,
        text=True,
        env=cli.env,
        check=False,
    )
    assert result.stdout.strip() == "{"
    assert result.stderr == ""
