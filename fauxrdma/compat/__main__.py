"""Run a program written for pyverbs, unchanged::

    python -m fauxrdma.compat program.py ...      (or: -m module ..., as python itself)

`import pyverbs` finds fauxrdma.compat, in its child processes, too; `rdma link show`, `ip addr show` of its network
devices and files under /sys/class/infiniband answer for the emulated devices.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from fauxrdma.compat import install
from fauxrdma.compat.standins import stand_ins

__all__ = ["main"]

_USAGE = (
    "usage: python -m fauxrdma.compat program.py [arguments]\n       python -m fauxrdma.compat -m module [arguments]"
)


def main(arguments: list[str]) -> None:
    """Run `program.py` or `-m module` with the arguments behind it, as its own main module."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(f"{_USAGE}\n\n{__doc__}")
        return
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or (rest[0].startswith("-") and not as_module):
        sys.exit(_USAGE)
    install()
    with stand_ins():
        sys.argv = rest
        if as_module:
            sys.path[0] = ""
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(rest[0]).resolve().parent)
            runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
