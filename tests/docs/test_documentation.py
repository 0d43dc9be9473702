"""The README's commands work as printed, and the pages say what the code does."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from fauxrdma.ib.attributes import DeviceAttr
from fauxrdma.ib.profiles import PROFILES, HcaProfile
from fauxrdma.perf.coll import results as bench_results
from fauxrdma.perf.coll.sweep import Sweep
from fauxrdma.report import results

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(*pages: Path) -> list[str]:
    """Every command of the pages' shell blocks, in order."""
    blocks = [block for page in pages for block in FENCE.findall(page.read_text())]
    return [line for block in blocks for line in block.splitlines() if line.strip() and not line.startswith("#")]


def readme_commands() -> list[str]:
    return commands(REPOSITORY / "README.md")


def run(command: str, directory: Path = REPOSITORY) -> subprocess.CompletedProcess[str]:
    # What activating the virtual environment does, whichever one the tests run in.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", command],
        cwd=directory,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=290,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def test_the_readme_has_commands() -> None:
    found = readme_commands()
    assert "make demo" in found
    assert len(found) > 10


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands(*PAGES) if not c.startswith(("make ", ". "))])
def test_a_command_of_the_documentation_works(command: str) -> None:
    result = run(command)
    if (
        command.startswith("torchrun")
        and "terminate called without an active exception" in result.stdout + result.stderr
    ):
        # gloo's own threads, now and then, when a rank exits on a busy machine; nothing of ours runs under gloo.
        result = run(command)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("command", [c for c in readme_commands() if c.startswith("make ")])
def test_a_make_target_of_the_readme_exists(command: str) -> None:
    result = run(command.replace("make ", "make -n ", 1))
    assert result.returncode == 0, result.stderr


def test_activating_is_the_virtual_environment_that_make_creates() -> None:
    activations = [c for c in readme_commands() if c.startswith(". ")]
    assert activations == [". .venv/bin/activate"]
    assert "VENV   ?= .venv" in (REPOSITORY / "Makefile").read_text()


def test_the_demo_is_the_command_of_the_documentation() -> None:
    printed = run("make -n demo").stdout
    assert "fauxrdma compare seed-rail8 fat-tree --nodes 2 --gpus 2 -- examples/train_digits.py" in printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "model",
    [m for m in vars(results).values() if isinstance(m, type) and issubclass(m, BaseModel) and m is not BaseModel],
)
def test_every_field_of_the_json_file_is_documented(model: type[BaseModel]) -> None:
    text = (REPOSITORY / "docs" / "results.md").read_text()
    assert [name for name in model.model_fields if f"`{name}`" not in text] == []


def test_every_field_of_the_benchs_json_is_documented() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    models = [m for m in vars(bench_results).values() if isinstance(m, type) and issubclass(m, BaseModel)]
    fields = {name for model in models if model not in (BaseModel, Sweep) for name in model.model_fields}
    assert [name for name in sorted(fields) if f"`{name}`" not in text] == []


@pytest.mark.parametrize("command", ["compare", "run", "coll", "devinfo", "plan", "traffic"])
def test_every_option_is_documented(command: str) -> None:
    page = (REPOSITORY / "docs" / "cli.md").read_text()
    shown = run(f"fauxrdma {command} --help").stdout
    options = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)) - {"--help"}
    assert options
    for option in options:
        short = re.search(rf"^  (-\w), {option}\b", shown, re.MULTILINE)
        assert option in page or (short is not None and f"`{short.group(1)}" in page), option


def test_the_page_of_profiles_has_every_habit_limit_and_value_that_differs() -> None:
    lines = (REPOSITORY / "docs" / "profiles.md").read_text().splitlines()
    table = {cells[0].strip("`"): cells[1:] for cells in (line.strip("| ").split(" | ") for line in lines) if cells[2:]}
    assert table.pop("field") == list(PROFILES)
    for name, cells in table.items():
        for cell, profile in zip(cells, PROFILES.values(), strict=True):
            value = getattr(profile, name, None)
            value = getattr(profile.attributes, name) if value is None else value
            shown = errno.errorcode[value] if name == "inline_errno" else str(value)
            assert cell == {"True": "yes", "False": "no"}.get(shown, shown), (name, profile.spec)
    differing = {
        field.name
        for field in dataclasses.fields(DeviceAttr)
        if len({getattr(profile.attributes, field.name) for profile in PROFILES.values()}) > 1
    }
    habits = {field.name for field in dataclasses.fields(HcaProfile)} - {"spec", "attributes"}
    assert differing | habits == set(table)


def test_every_layer_is_documented() -> None:
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    packages = [path.parent.name for path in (REPOSITORY / "fauxrdma").glob("*/__init__.py")]
    assert [name for name in packages if f"fauxrdma/{name}`" not in text] == []


def test_ci_calls_make_test() -> None:
    script = (REPOSITORY / ".ci" / "run").read_text()
    assert shlex.split(script.strip().splitlines()[-1]) == ["exec", "make", "test"]
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)
