"""A lab as a Slurm batch script: the subnet manager on the first node, one `fauxrdma lab node` on every node.

Nothing about the machines is written into the script: which they are, and under which addresses Slurm reaches them, is
read from the job's environment and from scontrol (sbatch(1), srun(1), scontrol(1)).
"""

from __future__ import annotations

import math
import re
import shlex
from string import Template

from fauxrdma.lab.engines.parts import check_exportable, manager_command, node_command
from fauxrdma.lab.file import LabFile

__all__ = ["slurm"]

_KIB = 1024
_SOCKET = "/tmp/fauxrdma-$SLURM_JOB_ID-$SLURM_NODEID.sock"

_SCRIPT = Template(r"""#!/bin/bash
# Made by fauxrdma lab export from $path: sbatch lab.sbatch
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=$cpus
#SBATCH --mem=${memory_kib}K
set -euo pipefail

hosts=($$(scontrol show hostnames "$$SLURM_JOB_NODELIST"))
if (($${#hosts[@]} != $nodes)); then
    echo "the lab has $nodes nodes, Slurm gave $${#hosts[@]} ($$SLURM_JOB_NODELIST): use sbatch --nodes=$nodes" >&2
    exit 2
fi
address() { # where Slurm itself reaches a node: its name need not resolve
    scontrol --oneliner show node "$$1" | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p'
}
manager=$$(address "$${hosts[0]}") master=$$(address "$${hosts[$master_node]}")
# Jobs that share a node differ in their numbers. Below the kernel's range for outgoing connections.
manager_port=$$((20000 + SLURM_JOB_ID % 6000 * 2)) master_port=$$((20001 + SLURM_JOB_ID % 6000 * 2))
export manager manager_port master master_port

cd $folder

# This script runs on the first node.
$manager_command --die-with-parent >&2 &
manager_pid=$$!
trap 'kill "$$manager_pid" 2>/dev/null || true; wait "$$manager_pid" || true' EXIT
until (: <>"/dev/tcp/127.0.0.1/$$manager_port") 2>/dev/null; do
    kill -0 "$$manager_pid" 2>/dev/null || wait "$$manager_pid" # with its exit code
    sleep 0.2
done

# One task a node. The first that fails ends the others, which would wait for it.
node=$$(
    cat <<'END'
$node_script
END
)
srun --ntasks-per-node=1 --cpus-per-task=$cpus --kill-on-bad-exit=1 bash -c "$$node"
""")

_VARIABLES = re.compile(r"[0.]*(?:\$[a-zA-Z_]+)?(?::\$[a-z_]+)?")
"""Words that the job's shell fills in: a host, a host and a port, a number."""


def slurm(lab_file: LabFile) -> str:
    """The text of the script, for ``sbatch``. The folder of the lab file, and ``fauxrdma`` on the submitter's PATH, are
    expected under the same paths on every node, as on a shared file system. Its exit code is that of the node that
    failed. Raises ConfigError for a lab that cannot be exported."""
    check_exportable(lab_file)
    form = lab_file.form
    folder = str(lab_file.folder)
    node = node_command(
        lab_file,
        "$SLURM_NODEID",
        "$manager",
        "$master",
        folder=folder,
        manager_port="$manager_port",
        master_port="$master_port",
    )
    script = [
        "trap : TERM  # passed on to no one: Slurm signals every process of the task",
        f"{_line(node)} || code=$?",
        "# A node that was ended has not failed, and its 143 would hide the code of the one that did.",
        "((${code:=0} == 143)) || exit $code",
    ]
    if form.job is None:  # programs that come later find the daemon by this path
        script.insert(0, f'export FAUXRDMA_SOCKET="{_SOCKET}"')
    return _SCRIPT.substitute(
        path=lab_file.path,
        name=f"fauxrdma-{form.name}",
        nodes=form.nodes,
        cpus=math.ceil(form.resources.cpus),
        memory_kib=math.ceil(form.resources.memory / _KIB),
        master_node=lab_file.placement.places[0].node,
        folder=shlex.quote(folder),
        manager_command=_line(manager_command(lab_file, folder=folder, port="$manager_port")),
        node_script="\n".join(script),
    )


def _line(words: list[str]) -> str:
    return " ".join(f'"{word}"' if "$" in word and _VARIABLES.fullmatch(word) else shlex.quote(word) for word in words)
