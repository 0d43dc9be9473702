"""The live display and the plain lines that replace it where there is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fauxrdma.cli import progress
from fauxrdma.cli.progress import LiveProgress, PlainProgress, make_progress
from fauxrdma.lab.launcher import RankLine
from fauxrdma.report.results import RunResult, Timing


@pytest.fixture
def result() -> RunResult:
    return RunResult.model_construct(
        wall_s=3.2, values={"loss": "0.25", "sha": "ab" * 32}, timing=Timing(steps=1, step_ns=1, communication_ns=1)
    )


@pytest.fixture(autouse=True)
def every_change_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_REDRAW_S", -1.0)


def live(*fabrics: str, verbose: bool = False) -> tuple[LiveProgress, io.StringIO]:
    stream = io.StringIO()
    return LiveProgress(fabrics, verbose, Console(file=stream, force_terminal=True, width=90)), stream


def test_the_display_follows_the_runs(result: RunResult) -> None:
    display, stream = live("seed-rail8", "fat-tree")
    with display:
        display.stage("seed-rail8", "running 4 ranks")
        display.line(RankLine(0, 0, "stdout", "epoch=1 loss=0.9"))
        shown = stream.getvalue()
        assert "seed-rail8" in shown
        assert "running 4 ranks" in shown
        assert "[n0 r0] epoch=1 loss=0.9" in shown
        assert "waiting" in shown
        display.done("seed-rail8", result)
        assert "done in 3.2 s of wall time: loss=0.25 sha=abababababab..." in stream.getvalue()
    assert "✓" in stream.getvalue()
    assert "✗" not in stream.getvalue()


def test_a_failure_is_marked_on_the_run_it_happened_in() -> None:
    display, stream = live("fat-tree")
    with pytest.raises(RuntimeError), display:  # noqa: PT012 -- the display must see the exception pass
        display.stage("fat-tree", "running 4 ranks")
        raise RuntimeError
    assert "✗" in stream.getvalue()


def test_verbose_prints_every_line() -> None:
    display, stream = live("fat-tree", verbose=True)
    with display:
        display.stage("fat-tree", "running")
        display.line(RankLine(3, 1, "stderr", "one [brackets] are not markup"))
    assert "[n1 r3] one [brackets] are not markup" in stream.getvalue()


def test_plain_lines(result: RunResult, capsys: pytest.CaptureFixture[str]) -> None:
    plain = make_progress(["fat-tree"], verbose=False)
    assert isinstance(plain, PlainProgress)  # standard error is no terminal here
    with plain:
        plain.stage("fat-tree", "starting")
        plain.line(RankLine(0, 0, "stdout", "not shown"))
        plain.notice("the HCA daemon of node 1 died")
        plain.tick()
        plain.done("fat-tree", result)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "fat-tree: starting",
        "fauxrdma: the HCA daemon of node 1 died",
        "fat-tree: done in 3.2 s of wall time: loss=0.25 sha=abababababab...",
    ]
