"""Every name of pyverbs that programs use is there and works, or is refused with EOPNOTSUPP."""

from __future__ import annotations

import errno
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import exercises_of_cmid as members
import exercises_of_queue_pairs as queue_pairs
import exercises_of_requests as requests
import exercises_of_resources as resources
import pytest
from pyverbs import enums, libibverbs_enums
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs_names import NAMES
from pyverbs_world import World

from fauxrdma.ib import enums as ours
from fauxrdma.lab.local import LocalLab

OFFERED = {**resources.OFFERED, **queue_pairs.OFFERED, **requests.OFFERED, **members.OFFERED}
NOT_OFFERED = {**resources.NOT_OFFERED, **queue_pairs.NOT_OFFERED, **requests.NOT_OFFERED, **members.NOT_OFFERED}


@pytest.fixture(scope="module")
def world(lab: LocalLab) -> Iterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAUXRDMA_SOCKET", str(lab.socket_path(0)))
        made = World()
        yield made
        made.ctx.close()


def test_every_name_is_tried() -> None:
    assert sorted(NAMES) == sorted({**OFFERED, **NOT_OFFERED})
    assert not OFFERED.keys() & NOT_OFFERED.keys()


@pytest.mark.parametrize("name", OFFERED)
def test_it_is_there_and_works(name: str, world: World) -> None:
    assert OFFERED[name](world)


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_it_is_refused_as_not_offered(name: str, world: World) -> None:
    with pytest.raises(PyverbsRDMAError) as caught:
        NOT_OFFERED[name](world)
    assert caught.value.error_code == errno.EOPNOTSUPP


def test_constants_are_those_of_the_engine() -> None:
    """Flat and in classes."""
    known = {name: value for name, value in vars(ours).items() if name.startswith("IBV_")}
    assert {name: int(getattr(enums, name)) for name in known} == {name: int(value) for name, value in known.items()}


def test_constants_are_those_of_the_header(tmp_path: Path) -> None:
    compiler, header = shutil.which("gcc"), Path("/usr/include/infiniband/verbs.h")
    if compiler is None or not header.exists():
        pytest.skip("there is no infiniband/verbs.h, or no compiler, on this machine")
    names = sorted(header_names(header) & set(libibverbs_enums.__all__))
    assert len(names) > 300
    lines = "".join(f'printf("%lld\\n", (long long) {name});\n' for name in names)
    source = tmp_path / "constants.c"
    includes = "".join(f"#include <{name}>\n" for name in ("stdio.h", "infiniband/verbs.h", "infiniband/tm_types.h"))
    source.write_text(f"{includes}int main() {{\n{lines}}}\n")
    subprocess.run([compiler, "-w", "-o", tmp_path / "constants", source], check=True)
    printed = subprocess.run([tmp_path / "constants"], capture_output=True, text=True, check=True).stdout.split()
    differing = [
        name for name, value in zip(names, printed, strict=True) if int(getattr(libibverbs_enums, name)) != int(value)
    ]
    assert differing == []


def header_names(header: Path) -> set[str]:
    folder = header.parent
    text = " ".join((folder / name).read_text() for name in ("verbs.h", "verbs_api.h", "tm_types.h"))
    return {word for word in "".join(c if c.isalnum() or c == "_" else " " for c in text).split() if word[:4] == "IBV_"}
