"""`auto` and `file:` over running daemons: all ranks choose alike, by the fabric they are on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.collectives.channels import channel_routes
from fauxrdma.collectives.rank_paths import RankPaths
from fauxrdma.collectives.request import Request
from fauxrdma.collectives.selector import Selector
from fauxrdma.communicator import Communicator
from fauxrdma.communicator.algorithm_choice import size_of
from fauxrdma.errors import ConfigError
from fauxrdma.fabric.record import TOPOLOGY_VARIABLE, read_fabric_record
from fauxrdma.fabric.subnet import SubnetManager
from fauxrdma.lab.local import LocalLab
from fauxrdma.topology.rank_places import block_places

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "plans"


@pytest.fixture
def on_the_fabric(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> LocalLab:
    monkeypatch.setenv(TOPOLOGY_VARIABLE, lab.rank_env(0, 0)[TOPOLOGY_VARIABLE])
    return lab


def test_the_lab_tells_ranks_its_fabric(lab: LocalLab) -> None:
    manager = read_fabric_record(lab.rank_env(1, 1)[TOPOLOGY_VARIABLE])
    assert manager.topology == lab.topology
    assert manager.tables == SubnetManager(lab.topology, lab.seed).tables


def test_every_operation_by_itself(on_the_fabric: LocalLab) -> None:
    n = 4

    def work(communicator: Communicator) -> list[tuple[str, str]]:
        rank = communicator.rank
        for size in (1, 5000, 400_000):
            mine = np.full(size, rank + 1, np.int64)
            communicator.all_reduce(mine, algorithm="auto")
            assert (mine == 10).all()
            whole = np.zeros((n, size), np.int64)
            communicator.all_gather(whole, mine * rank, algorithm="auto")
            assert (whole == 10 * np.arange(n)[:, None]).all()
            communicator.reduce_scatter(mine, whole, algorithm="auto")
            assert (mine == 40 * rank).all()
            out = np.zeros((n, size), np.int64)
            communicator.all_to_all(out, whole + rank, algorithm="auto")
            assert (out == 10 * rank + np.arange(n)[:, None]).all()
            communicator.broadcast(mine, 2, algorithm="auto")
            assert (mine == 80).all()
        # Each rank knows only its own part of the table: its total must not decide.
        sends, receives = [rank * 100_000] * n, [a * 100_000 for a in range(n)]
        out = np.zeros(sum(receives), np.int8)
        communicator.all_to_all_uneven(out, np.full(sum(sends), rank, np.int8), sends, receives, algorithm="auto")
        assert (out == np.repeat(np.arange(n), receives)).all()
        return [(op.op, op.algorithm) for op in communicator.statistics.operations]

    first, *others = all_well(run_ranks(on_the_fabric, n, work))
    assert all(other == first for other in others)
    manager = SubnetManager(on_the_fabric.topology, on_the_fabric.seed)
    selector = Selector(RankPaths(manager, block_places(on_the_fabric.topology, 2, 2), "hca"))
    wanted = [selector.choose("all_reduce", 8 * size).algorithm for size in (1, 5000, 400_000)]
    assert [algorithm for operation, algorithm in first if operation == "all_reduce"] == wanted


def test_a_plan_from_a_file_runs(lab: LocalLab) -> None:
    path = EXAMPLES / "two_pairs.yaml"

    def work(communicator: Communicator) -> None:
        for size in (0, 1, 7, 3_000_001):
            mine = np.full(size, communicator.rank, np.float32)
            communicator.all_reduce(mine, "avg", algorithm=f"file:{path}")
            assert (mine == 1.5).all()
        assert communicator.statistics.operations[-1].algorithm == f"file:{path}"
        with pytest.raises(ConfigError, match="is for all_reduce, not for broadcast"):
            communicator.broadcast(np.zeros(4), algorithm=f"file:{path}")

    all_well(run_ranks(lab, 4, work))


def test_the_environment_chooses_for_calls_that_do_not(
    on_the_fabric: LocalLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = EXAMPLES / "two_pairs.yaml"

    def work(communicator: Communicator) -> list[str]:
        mine = np.full(300_000, communicator.rank, np.float32)
        communicator.all_reduce(mine)
        assert (mine == 6).all()
        communicator.all_reduce(mine, algorithm="bcube")
        communicator.broadcast(mine)
        communicator.barrier()
        return [operation.algorithm for operation in communicator.statistics.operations]

    monkeypatch.setenv("FAUXRDMA_ALGO", f"file:{path}")
    assert all_well(run_ranks(on_the_fabric, 4, work)) == [[f"file:{path}", "bcube", "ring", "dissemination"]] * 4
    monkeypatch.setenv("FAUXRDMA_ALGO", "auto")
    first, *others = all_well(run_ranks(on_the_fabric, 4, work))
    assert others == [first] * 3
    assert first[0] != "ring"
    assert first[1::2] == ["bcube", "dissemination"]


def test_channels_are_part_of_the_choice(on_the_fabric: LocalLab) -> None:
    def work(communicator: Communicator) -> str:
        mine = np.full(2_000_000, communicator.rank, np.float32)
        communicator.all_reduce(mine, algorithm="auto")
        assert (mine == 6).all()
        return communicator.statistics.operations[-1].algorithm

    first, *others = all_well(run_ranks(on_the_fabric, 4, work, channels=2, cross_nic=0))
    assert others == [first] * 3
    paths = RankPaths(SubnetManager(on_the_fabric.topology), block_places(on_the_fabric.topology, 2, 2), "hca")
    routes = channel_routes([[0, 1], [2, 3]], [1, 2, 1, 2], [0, 1, 0, 1], 2, 0)
    wanted = Selector(paths, routes=routes, channel_slot_bytes=1 << 20).choose("all_reduce", 8_000_000)
    assert first == wanted.algorithm


def test_auto_without_a_fabric_is_refused(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPOLOGY_VARIABLE, raising=False)

    def work(communicator: Communicator) -> None:
        with pytest.raises(ConfigError, match=f"set {TOPOLOGY_VARIABLE}"):
            communicator.all_reduce(np.zeros(4), algorithm="auto")
        communicator.all_reduce(np.zeros(4))  # nothing was sent, so the communicator is whole

    all_well(run_ranks(lab, 2, work))


def test_a_file_that_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "fabric.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_fabric_record(path)
    for text in ("{", "[]", '{"seed": 1}', '{"seed": 1, "topology": {}}'):
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_fabric_record(path)


def test_sizes_are_what_all_ranks_see_alike() -> None:
    assert size_of(Request("all_reduce", 3, 10, 4, 64, 2)) == 40
    assert size_of(Request("all_gather", 3, (1, 2, 3), 4, 64, 2)) == 24
    assert size_of(Request("all_to_all", 2, ((1, 2), (3, 4)), 4, 64, 2)) == 20
