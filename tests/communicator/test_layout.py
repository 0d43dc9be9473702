"""Where ranks sit: learnt from HCAs, environment and each other, never from LOCAL_WORLD_SIZE."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from rank_threads import all_well, run_ranks

from fauxrdma.communicator import Communicator
from fauxrdma.communicator.layout import Layout, Seat, announce_seat, learn_layout, own_seat
from fauxrdma.errors import CollectiveError, ConfigError
from fauxrdma.lab.local import LocalLab
from fauxrdma.lab.rank_threads import ThreadStore
from fauxrdma.runtime.host_identity import host_identity
from fauxrdma.topology.rank_places import RankPlace, parse_places


def seat(node: int, gpu: int, *, hca: int = 0, host: str = "h", leaf: str = "", rail: int | None = None) -> Seat:
    return Seat(RankPlace(node, gpu, hca or gpu + 1), leaf or f"leaf{hca or gpu + 1}", host, rail)


def test_nodes_list_their_ranks_by_gpu_wherever_the_placement_put_them() -> None:
    layout = Layout(0, (seat(1, 1), seat(0, 0), seat(1, 0), seat(0, 1), seat(2, 0)))
    assert layout.nodes == [[1, 3], [2, 0], [4]]
    assert [layout.same_node(0, other) for other in range(5)] == [True, False, True, False, False]
    assert [layout.may_share_memory(other) for other in range(5)] == [True, False, True, False, False]


def test_one_emulated_node_used_from_two_hosts_is_two_nodes() -> None:
    layout = Layout(0, (seat(0, 0, host="a"), seat(0, 1, host="b"), seat(0, 2, host="a"), seat(1, 0, host="a")))
    assert layout.nodes == [[0, 2], [1], [3]]
    assert not layout.may_share_memory(1)
    assert not layout.may_share_memory(3), "another emulated node of the same laptop is reached over the fabric"


def test_rails_come_from_the_leaves_from_the_user_or_from_the_index() -> None:
    two_switches = [seat(n, g, leaf=f"leaf{g % 2 + 1}") for n in range(2) for g in range(4)]
    assert Layout(0, tuple(two_switches)).rails == [0, 1, 0, 1] * 2
    fat_tree = [seat(n, g, leaf=f"leaf{n + 1}") for n in range(2) for g in range(2)]
    assert Layout(0, tuple(fat_tree)).rails == [0, 1, 0, 1]
    given = [seat(0, 0, rail=5), seat(0, 1), seat(1, 0), seat(1, 1, rail=7)]
    assert Layout(0, tuple(given)).rails == [5, 1, 0, 7]


def context(node: int = 0, hca: int = 1, gpus: tuple[int, ...] = (0,)) -> Any:
    return SimpleNamespace(node=node, hca=SimpleNamespace(index=hca, leaf="leaf1", gpus=list(gpus)))


@pytest.mark.parametrize(
    ("environment", "gpu"),
    [
        ({}, 2),
        ({"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "1"}, 3),
        ({"LOCAL_RANK": "1"}, 2),  # no GPU of this HCA
        ({"RANK": "1", "LOCAL_RANK": "2", "FAUXRDMA_PLACES": "0:0:1 0:3:2"}, 3),
        ({"RANK": "0", "FAUXRDMA_PLACES": "0:0:1 0:3:2"}, 2),  # the place of another HCA: not this communicator's
        ({"RANK": "1", "FAUXRDMA_PLACES": "0:0:1 0:3:2", "FAUXRDMA_GPU": "2"}, 2),
    ],
)
def test_the_own_gpu(environment: dict[str, str], gpu: int) -> None:
    assert own_seat(context(hca=2, gpus=(2, 3)), environment).place == RankPlace(0, gpu, 2)


@pytest.mark.parametrize("text", ["0:1", "0:0:0", "a:0:1", "0:0:1:4", "0:0:1 0:-1:1"])
def test_places_that_make_no_sense_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"FAUXRDMA_PLACES: the place of rank [01] is"):
        parse_places(text)


def test_a_gpu_that_is_no_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="FAUXRDMA_GPU is 'gpu1'"):
        own_seat(context(), {"FAUXRDMA_GPU": "gpu1"})


def test_everybody_learns_the_same() -> None:
    store, seats = ThreadStore(), [seat(0, 0), seat(0, 1), seat(1, 0, rail=3)]
    seen: list[Layout] = []
    threads = [
        threading.Thread(target=lambda rank=rank: seen.append(learn_layout(store, "p/", rank, 3))) for rank in range(3)
    ]
    for rank in range(3):
        announce_seat(store, "p/", rank, seats[rank])
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(layout.rank for layout in seen) == [0, 1, 2]
    assert all(layout.seats == tuple(seats) for layout in seen)


def test_a_rank_that_never_comes_is_named() -> None:
    store = ThreadStore(timeout_s=0.01)
    announce_seat(store, "", 0, seat(0, 0))
    with pytest.raises(CollectiveError, match="rank 0 waited for rank 1 to say where it runs"):
        learn_layout(store, "", 0, 2)


def test_over_real_daemons(lab: LocalLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # a lie, as under some launchers

    def layout(communicator: Communicator) -> Layout:
        return communicator._mesh.layout

    layouts = all_well(run_ranks(lab, 4, layout))
    for rank, found in enumerate(layouts):
        assert found.rank == rank
        assert found.places == [RankPlace(0, 0, 1), RankPlace(0, 1, 2), RankPlace(1, 0, 1), RankPlace(1, 1, 2)]
        assert found.nodes == [[0, 1], [2, 3]]
        assert {s.host for s in found.seats} == {host_identity()}
        assert [found.may_share_memory(peer) for peer in range(4)] == [peer // 2 == rank // 2 for peer in range(4)]
