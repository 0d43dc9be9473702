"""Collectives where GPUs share HCAs, and where some HCAs cannot reach others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.errors import CollectiveError
from fauxrdma.lab.local import LocalLab

COUNT = 64 << 10
"""float32 elements; four equal blocks."""


@pytest.fixture(scope="module", params=["gpus_per_hca=2", "gpus_per_hca=0", "gpus_per_hca=2,gpudirect=off"])
def shared(request: pytest.FixtureRequest) -> Iterator[LocalLab]:
    """Two nodes whose two GPUs use one HCA."""
    with LocalLab(f"fat-tree,{request.param}", nodes=2, gpus=2, clock="none") as running:
        yield running


def all_reduce(communicator: Communicator) -> float:
    array = np.full(COUNT, communicator.rank + 1, dtype=np.float32)
    communicator.all_reduce(array)
    assert (array == array[0]).all()
    return float(array[0])


def test_two_ranks_share_an_hca_and_every_link_carries_what_the_ring_sends(shared: LocalLab) -> None:
    shared.report(reset=True)
    assert all_well(run_ranks(shared, 4, all_reduce, share_memory=False)) == [10.0] * 4
    nbytes = {link.name: link.nbytes for link in shared.report().links}
    sent = 2 * 3 * COUNT * 4 // 4  # by each rank, in a ring of four
    gpudirect = shared.topology.shape.gpudirect
    same_switch = shared.topology.shape.gpus_per_hca == 2
    pcie = "pcie0" if same_switch else "pcie4"  # the storage HCA has a switch of its own
    for node in range(2):
        # Of the two ranks of a node one sends to its neighbour through their HCA, the other over the cable.
        assert nbytes[f"n{node}.hca1->leaf1"] == nbytes[f"leaf1->n{node}.hca1"] == sent
        assert nbytes[f"n{node}.{pcie}->n{node}.hca1"] == nbytes[f"n{node}.hca1->n{node}.{pcie}"] == 2 * sent
        detour = not (gpudirect and same_switch)
        crossed = 2 * sent if detour else 0
        up = nbytes[f"n{node}.pcie0->n{node}.mem"]
        down = nbytes[f"n{node}.mem->n{node}.pcie0"]
        # Without GPUDirect what is sent and what is received cross the one uplink in both directions.
        assert up == down == (2 * crossed if same_switch else crossed)
        assert nbytes[f"n{node}.hca2->leaf1"] == 0 if same_switch else True


def test_ranks_are_processes_that_open_the_shared_hca(shared: LocalLab) -> None:
    code = (
        "import numpy as np\n"
        "from fauxrdma.communicator import Communicator\n"
        "from fauxrdma.communicator.statistics import process_statistics\n"
        "with Communicator.from_env() as c:\n"
        "    a = np.full(1000, c.rank + 1.0)\n"
        "    c.all_reduce(a)\n"
        "    print(c.statistics.hca, a[0])\n"
    )
    environments = [shared.rank_env(node, gpu) for node in range(2) for gpu in range(2)]
    assert {env["FAUXRDMA_HCA"] for env in environments} == {"hca1"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)
        for env in environments
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4
    assert outputs == ["hca1 10.0\n"] * 4


@pytest.mark.parametrize("fabric", ["rail-only", "dual-plane"])
def test_ranks_on_different_islands_are_told_so(fabric: str) -> None:
    with LocalLab(fabric, nodes=2, gpus=2, clock="none") as lab:
        first, *others = run_ranks(lab, 4, all_reduce)
        assert isinstance(first, CollectiveError)
        assert "rank 0 on hca1 of node 0 cannot reach rank" in str(first)
        assert "no path from LID 1 to LID 2" in str(first) or "no path from LID 1 to LID 11" in str(first)
        assert all(isinstance(other, Exception) for other in others)
    with LocalLab(fabric, nodes=2, gpus=1, clock="none") as lab:  # one rail is one island
        assert all_well(run_ranks(lab, 2, all_reduce)) == [3.0, 3.0]
