"""The folders of labs: one of a name at a time, whole or not there, and none of somebody else's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from fauxrdma.errors import ConfigError, SetupError
from fauxrdma.lab.running.folder import claim, end_lab, find_lab, labs, read_state, tidy_labs
from fauxrdma.lab.running.folder import labs_folder as _labs_folder
from fauxrdma.lab.running.logs import follow_logs, rank_log, read_logs


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("fauxrdma.lab.running.folder.labs_folder", lambda: tmp_path / "labs")
    return tmp_path / "labs"


def test_one_lab_of_a_name_at_a_time(base: Path) -> None:
    folder = claim("one", "a.yaml", "text", "fat-tree")
    state = read_state(folder)
    assert state is not None
    assert (state.phase, state.alive, (folder / "lab.yaml").read_text()) == ("starting", True, "text")
    with pytest.raises(ConfigError, match=r"the lab one is up \(started from a.yaml\)"):
        claim("one", "b.yaml", "", "fat-tree")
    assert [path.name for path in base.iterdir()] == ["one"]  # the second left nothing
    end_lab(folder)
    assert not base.exists()


def test_which_lab_is_meant() -> None:
    with pytest.raises(ConfigError, match="no lab is up"):
        find_lab()
    one = claim("one", "a.yaml", "", "fat-tree")
    assert find_lab()[0] == one
    two = claim("two", "b.yaml", "", "fat-tree")
    assert find_lab("two")[0] == two
    with pytest.raises(ConfigError, match=r"several labs are up \(one, two\)"):
        find_lab()
    with pytest.raises(ConfigError, match="the lab three is not up; there is one, two"):
        find_lab("three")
    for folder in labs():
        end_lab(folder)
    assert labs() == {}


def test_what_a_killed_starter_left_is_removed_and_what_a_live_one_makes_is_not(base: Path) -> None:
    base.mkdir()
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    (base / f".new-{os.getpid()}-{stat[19]}-a").mkdir()
    (base / f".new-{os.getpid()}-1-b").mkdir()  # an earlier process of this number
    tidy_labs()
    assert [path.name[-1] for path in base.iterdir()] == ["a"]


def test_a_folder_of_labs_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr("tempfile.tempdir", short)
        theirs = Path(short) / f"fauxrdma-labs-{os.getuid()}"
        theirs.mkdir()
        assert _labs_folder() == theirs
        theirs.chmod(0o777)
        with pytest.raises(SetupError, match="is not a folder of yours alone"):
            _labs_folder()


def test_logs_by_source_and_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "hca-n0.log").write_text("up\nhal")
    (tmp_path / "logs" / "subnet-manager.log").write_text("swept\n")
    rank_log(tmp_path, 3, 1).write_text("loss=1\n")
    every = [(line.source, line.node, line.text) for line in read_logs(tmp_path)]
    assert every == [("sm", None, "swept"), ("n0 hca", 0, "up"), ("n0 hca", 0, "hal"), ("n1 r3", 1, "loss=1")]
    assert [line.text for line in read_logs(tmp_path, 1)] == ["loss=1"]
    following = follow_logs(tmp_path, 0)
    assert next(following).text == "up"
    with (tmp_path / "logs" / "hca-n0.log").open("a") as log:
        log.write("f\n")
    assert next(following).text == "half"  # a line is shown once it is whole
