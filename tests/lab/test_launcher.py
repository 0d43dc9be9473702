"""Jobs on a real lab: what ranks are told, what comes back, and who is blamed when it goes wrong."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fauxrdma.errors import CheckFailed, ConfigError, FabricUnhealthy, SetupError
from fauxrdma.lab.launcher import RankLine, parse_result_line, resolve_command, run_job
from fauxrdma.lab.local import LocalLab


@pytest.fixture(scope="module")
def lab() -> Iterator[LocalLab]:
    with LocalLab("fat-tree", nodes=2, gpus=2, clock="none") as running:
        yield running


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "job.py"


def ranks_running(lab: LocalLab) -> list[str]:
    return [child.name for child in lab.supervisor.children if child.running and child.name.startswith("rank")]


class TestJobs:
    def test_every_rank_runs_once_with_its_own_environment(self, lab: LocalLab, script: Path) -> None:
        script.write_text(
            "import os, sys\n"
            "print(os.environ['RANK'], os.environ['FAUXRDMA_NODE'], os.environ['FAUXRDMA_HCA'], *sys.argv[1:])\n"
        )
        lines: list[RankLine] = []
        result = run_job(lab, [str(script), "--epochs", "3"], on_line=lines.append)
        assert sorted(line.text for line in lines) == [
            "0 0 hca1 --epochs 3",
            "1 0 hca2 --epochs 3",
            "2 1 hca1 --epochs 3",
            "3 1 hca2 --epochs 3",
        ]
        assert {line.prefix for line in lines} == {"[n0 r0]", "[n0 r1]", "[n1 r2]", "[n1 r3]"}
        assert (result.world_size, result.values) == (4, {})
        assert ranks_running(lab) == []

    def test_the_last_result_line_of_rank_0_counts(self, lab: LocalLab, script: Path) -> None:
        script.write_text(
            textwrap.dedent("""
                import os
                rank = os.environ["RANK"]
                print(f"epoch=1 loss=0.9{rank}")
                print(f"loss=0.5{rank} steps=7")
                print("goodbye, ratio = 3")
            """)
        )
        assert run_job(lab, [str(script)]).values == {"loss": "0.50", "steps": "7"}

    def test_statistics_of_an_earlier_job_are_gone(self, lab: LocalLab, script: Path) -> None:
        (lab.stats_dir / "rank9.json").write_text("{}")
        script.write_text("pass")
        result = run_job(lab, [str(script)])
        assert list(result.stats_dir.iterdir()) == []


class TestFailures:
    def test_the_first_failure_ends_the_job_and_is_blamed(self, lab: LocalLab, script: Path) -> None:
        script.write_text(
            textwrap.dedent("""
                import os, signal
                if os.environ["RANK"] == "2":
                    raise RuntimeError("the reason")
                signal.pause()
            """)
        )
        with pytest.raises(CheckFailed) as caught:
            run_job(lab, [str(script)])
        assert str(caught.value) == "rank 2 (node 1, GPU 0) failed first: exit code 1: RuntimeError: the reason"
        notes = caught.value.__notes__
        assert "exit code 1; the last lines of its stderr:" in notes[0]
        assert any('raise RuntimeError("the reason")' in note for note in notes)
        assert ranks_running(lab) == []
        lab.check()

    def test_a_rank_that_dies_of_a_signal(self, lab: LocalLab, script: Path) -> None:
        script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
        with pytest.raises(CheckFailed, match="failed first: killed by SIGSEGV"):
            run_job(lab, [str(script)])

    @pytest.mark.parametrize(
        ("module", "install"), [("torch_is_not_here", "torch_is_not_here"), ("sklearn.no_such", "scikit-learn")]
    )
    def test_a_missing_module_comes_with_its_fix(self, lab: LocalLab, script: Path, module: str, install: str) -> None:
        script.write_text(f"raise ModuleNotFoundError(\"No module named '{module}'\")\n")
        with pytest.raises(SetupError, match=f"{sys.executable} -m pip install {install}$") as caught:
            run_job(lab, [str(script)])
        assert not hasattr(caught.value, "__notes__")

    def test_a_daemon_that_dies_is_the_cause_of_what_ranks_say(self, script: Path) -> None:
        script.write_text(
            textwrap.dedent("""
                import os, select, signal, sys
                if os.environ["RANK"] == "0":
                    daemon = os.pidfd_open(int(sys.argv[1]))
                    signal.pidfd_send_signal(daemon, signal.SIGKILL)
                    select.select([daemon], [], [])
                    sys.exit("completion in error: RETRY_EXC_ERR")
                signal.pause()
            """)
        )
        notices: list[str] = []
        with LocalLab("fat-tree", nodes=2, gpus=1, clock="none") as lab:
            victim = lab.daemons[1]
            with pytest.raises(FabricUnhealthy, match=r"HCA daemon of node 1 .* died: killed by SIGKILL") as caught:
                run_job(lab, [str(script), str(victim)], on_notice=notices.append)
            assert notices == [str(caught.value)]
            assert any("RETRY_EXC_ERR" in note for note in caught.value.__notes__)
            assert ranks_running(lab) == []

    def test_an_interruption_ends_the_ranks(self, lab: LocalLab, script: Path) -> None:
        script.write_text("import signal\nprint('up')\nsignal.pause()\n")

        def interrupt(_: RankLine) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_job(lab, [str(script)], on_line=interrupt)  # and again at each rank's line while it is being ended
        assert ranks_running(lab) == []


class TestCommands:
    def test_a_script_runs_in_our_interpreter(self, script: Path) -> None:
        script.touch()
        assert resolve_command([str(script), "x"]) == [sys.executable, "-u", str(script), "x"]
        assert resolve_command(["python", str(script)]) == [sys.executable, "-u", str(script)]
        assert resolve_command(["-m", "json.tool"]) == [sys.executable, "-u", "-m", "json.tool"]

    def test_a_program_is_looked_up(self) -> None:
        assert os.path.isabs(resolve_command(["env"])[0])

    @pytest.mark.parametrize(
        ("command", "message"),
        [
            ([], "nothing to run"),
            (["no/such/script.py"], "no script no/such/script.py"),
            (["no-such-program"], "neither a Python script"),
            (["-m"], "name of a module"),
        ],
    )
    def test_what_cannot_be_run_is_a_config_error(self, command: list[str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            resolve_command(command)


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("loss=0.12 accuracy=0.97 steps=55", {"loss": "0.12", "accuracy": "0.97", "steps": "55"}),
        ("  sha=ab=cd  ", {"sha": "ab=cd"}),
        ("loss = 0.12", None),
        ("final loss=0.12", None),
        ("", None),
        ("1x=2", None),
    ],
)
def test_result_lines(line: str, pairs: dict[str, str] | None) -> None:
    assert parse_result_line(line) == pairs
