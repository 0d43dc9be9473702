"""Sends and receives between ranks of one node, each a process of its own: by shared memory, counted on the way between
their GPUs, over the HCAs where that is wanted or cannot be."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives.point_to_point import HEADER_BYTES
from fauxrdma.communicator import Communicator
from fauxrdma.communicator.messages import SLOT_BYTES
from fauxrdma.communicator.node_peer import NodePeer
from fauxrdma.fabric.peer_way import peer_way
from fauxrdma.lab.local import LocalLab

SHORT, LONG = 1000, 700_001
"""Elements of 4 bytes: one message that is sent at once, one that asks first."""

EXCHANGE = f"""
import sys
import numpy as np
from fauxrdma.communicator import Communicator
with Communicator.from_env(timeout_s=60) as communicator:
    for count in ({SHORT}, {LONG}):
        if communicator.rank == 0:
            communicator.send(np.arange(count, dtype="f4"), 1, tag=count)
        elif communicator.rank == 1:
            got = np.zeros(count, "f4")
            communicator.recv(got, 0 if count == {SHORT} else None, tag=count)
            assert (got == np.arange(count, dtype="f4")).all()
    if len(sys.argv) > 1:
        print("ready", flush=True)
        communicator.recv(np.zeros(1), 1 - communicator.rank)
"""


@pytest.fixture(scope="module", params=["none", "paced"])
def pair(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    with LocalLab("seed-rail8", nodes=1, gpus=2, clock=request.param, dilation=1000) as running:
        yield running


def start(lab: LocalLab, directory: Path, *arguments: str, **env: str) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [sys.executable, "-c", EXCHANGE, *arguments],
            env={**os.environ, **lab.env_of_rank(rank), **env},
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def predicted_bytes(lab: LocalLab, source: int, target: int) -> Counter[str]:
    """What goes from the GPU of rank `source` to that of `target`, by link: rank 0 sends, rank 1 clears."""
    parts = -(-LONG * 4 // (SLOT_BYTES - HEADER_BYTES))
    nbytes = HEADER_BYTES  # clear to send
    if source == 0:
        nbytes = (HEADER_BYTES + SHORT * 4) + HEADER_BYTES + (parts * HEADER_BYTES + LONG * 4)
    return Counter(dict.fromkeys(peer_way(lab.topology.shape, 0, source, target).links, nbytes))


def test_between_processes_they_are_counted_between_the_gpus_and_nowhere_else(pair: LocalLab, tmp_path: Path) -> None:
    pair.report(reset=True)
    for rank in start(pair, tmp_path):
        _, said = rank.communicate(timeout=60)
        assert rank.returncode == 0, said
    got = Counter({link.name: link.nbytes for link in pair.report().links if link.nbytes})
    assert got == predicted_bytes(pair, 0, 1) + predicted_bytes(pair, 1, 0)


def test_with_shared_memory_disabled_they_go_over_the_hcas(pair: LocalLab, tmp_path: Path) -> None:
    pair.report(reset=True)
    for rank in start(pair, tmp_path, NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1"):
        _, said = rank.communicate(timeout=60)
        assert rank.returncode == 0, said
    carried = {link.name: link.nbytes for link in pair.report().links if link.nbytes}
    assert carried["n0.hca1->leaf1"] >= (SHORT + LONG) * 4


def test_a_killed_rank_is_noticed_by_who_receives_from_it(pair: LocalLab, tmp_path: Path) -> None:
    ranks = start(pair, tmp_path, "and wait")
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    ranks[0].kill()
    said = ranks[1].communicate(timeout=30)[1]  # long before the timeout
    assert ranks[0].wait() == -signal.SIGKILL
    assert ranks[1].returncode == 1
    assert re.search(
        rf"rank 1 lost rank 0: shared memory \(path n0\.gpu1->.*\) with process {ranks[0].pid}, which has ended", said
    ), said


def test_where_memory_cannot_be_mapped_the_hcas_do(pair: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(peer: NodePeer, description: bytes) -> None:
        raise PermissionError("the system hides other processes' descriptors")

    monkeypatch.setattr(NodePeer, "connect", forbidden)

    def work(communicator: Communicator) -> bool:
        array = np.full(LONG, 7, "i4")
        if communicator.rank == 0:
            communicator.send(array, 1)
        else:
            got = np.zeros(LONG, "i4")
            communicator.recv(got)
            assert (got == array).all()
        return True

    pair.report(reset=True)
    assert all_well(run_ranks(pair, 2, work)) == [True, True]
    carried = {link.name: link.nbytes for link in pair.report().links if link.nbytes}
    assert carried["n0.hca1->leaf1"] >= LONG * 4
