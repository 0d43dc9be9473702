"""The Python of docs/notebook.md runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (REPOSITORY / "docs/notebook.md").read_text(), re.MULTILINE | re.DOTALL)
EXPECTED = [r"\d+\.\d \['n.*->.*', '.*->.*'\]\n", r"\[3\.0, 3\.0, 3\.0\]\nleaf1\n"]


@pytest.mark.parametrize(("block", "expected"), list(zip(BLOCKS, EXPECTED, strict=True)))
def test_a_block_prints_what_it_should(block: str, expected: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", block], cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert re.fullmatch(expected, ended.stdout), ended.stdout
