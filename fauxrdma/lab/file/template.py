"""The lab file that `fauxrdma lab init` writes: what most labs need, each key with a word about it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

__all__ = ["lab_template"]


def lab_template(name: str, fabric: str, nodes: int, gpus: int, command: Sequence[str]) -> str:
    """The text of the file. `command` is what each rank runs."""
    return f"""\
# A lab: `fauxrdma lab up` starts it, `fauxrdma lab up --run` runs the job in it and judges the thresholds.
# Every key there is: `fauxrdma lab schema --format table`.
name: {name}
fabric: {fabric}  # a preset (fauxrdma topo list) or a fabric file beside this one
nodes: {nodes}
gpus: {gpus}  # of each node: one rank each
placement: block  # cyclic, rail-aligned, random:SEED or a file of places
clock: paced  # shaped by the model of the fabric; none: as fast as this host goes
dilation: auto  # one ns of fabric time lasts so many ns of wall time
seed: 0

job:
  command: {_as_yaml(shlex.join(command))}
  env: {{}}

# What must hold for `fauxrdma lab up --run` to succeed (docs/results.md#thresholds).
thresholds: []
#  - all_reduce.busbw >= 0.1 * line_rate

# For `fauxrdma lab export` and driver: compose
image: fauxrdma
resources:
  cpus: 1
  memory: 2GiB
"""


def _as_yaml(text: str) -> str:
    """A text as YAML writes it in single quotes."""
    return "'" + text.replace("'", "''") + "'"
